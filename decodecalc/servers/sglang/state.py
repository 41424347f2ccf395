"""SGLang's arguments while they are being resolved."""

from __future__ import annotations

from dataclasses import dataclass, field

from decodecalc.servers.device import ServerDevice
from decodecalc.servers.question import Layer, Question, SglangSettings
from decodecalc.servers.sglang.rules import SglangServerRules

# An architecture that SGLang's configuration class renames before anything is resolved (`configs/olmo3.py`).
_RENAMED = {"Olmo3ForCausalLM": "Olmo2ForCausalLM"}
_DSA = (
    "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration", "GlmMoeDsaForCausalLM", "Glm5NextForConditionalGeneration",
    "LongcatFlashForCausalLM", "Dots3NoteForCausalLM",
)  # fmt: skip


class RefusedError(Exception):
    """Resolution raises: the stage, the class of SGLang's exception, its words and a code."""

    def __init__(self, words: str, code: str, error: str = "ValueError", stage: str = "arguments") -> None:
        super().__init__(words)
        self.words, self.code, self.error, self.stage = words, code, error, stage


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The arguments, as every step leaves them."""

    question: Question
    """The question."""
    settings: SglangSettings
    """SGLang's settings."""
    rules: SglangServerRules
    """The release's rules."""
    device: ServerDevice
    """The device."""
    attention: str | None = None
    """`attention_backend`."""
    prefill: str | None = None
    """`prefill_attention_backend`."""
    decode: str | None = None
    """`decode_attention_backend`."""
    page: int | None = None
    """`page_size`."""
    kv_dtype: str = "auto"
    """`kv_cache_dtype`."""
    disable_radix: bool = False
    """`disable_radix_cache`."""
    dsa_prefill: str | None = None
    """Prefill kernel of the sparse backend."""
    dsa_decode: str | None = None
    """Decode kernel of the sparse backend."""
    notes: list[str] = field(default_factory=list)
    """What each step did, in whole sentences."""

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.question.layer

    @property
    def architecture(self) -> str | None:
        """The architecture as SGLang sees it."""
        name = self.settings.architecture
        if name is None and self.layer.sparse and self.layer.mla:
            return "DeepseekV32ForCausalLM"
        return _RENAMED.get(name, name) if name else None

    @property
    def is_dsa(self) -> bool:
        """A DeepSeek-style sparse model (`is_deepseek_dsa`)."""
        return self.architecture in _DSA and self.layer.index_topk is not None

    @property
    def is_deepseek_family(self) -> bool:
        """An architecture of the DeepSeek override."""
        return self.architecture in _DSA

    @property
    def has_mla(self) -> bool:
        """Latent attention (`use_mla_backend`)."""
        return self.layer.mla is not None

    @property
    def on_hopper(self) -> bool:
        """`is_sm90` on NVIDIA."""
        return not self.device.hip and self.device.major == 9

    @property
    def on_sm100(self) -> bool:
        """`is_sm100`: compute capability 10.x."""
        return not self.device.hip and self.device.major == 10

    @property
    def on_sm120(self) -> bool:
        """`is_sm120`: compute capability 12.x."""
        return not self.device.hip and self.device.major == 12

    @property
    def on_blackwell(self) -> bool:
        """`is_blackwell`: 10.x, 11.x and 12.x."""
        return not self.device.hip and self.device.major in (10, 11, 12)

    @property
    def topk(self) -> int:
        """Speculative top-k, 0 without drafts."""
        return self.settings.speculative_eagle_topk or 0

    @property
    def drafts(self) -> bool:
        """Speculative decoding is on."""
        return self.settings.speculative_algorithm is not None

    @property
    def nothing_given(self) -> bool:
        """None of the three backends is set."""
        return self.attention is None and self.prefill is None and self.decode is None

    def phases(self) -> tuple[str | None, str | None]:
        """(prefill, decode) backends: each falls back to `attention_backend`."""
        return self.prefill or self.attention, self.decode or self.attention

    def choose(self, backend: str, why: str) -> None:
        """Set `attention_backend`, and say why."""
        self.attention = backend
        self.notes.append(f"{backend}: {why}.")

    def impose_page(self, page: int, why: str) -> None:
        """Set the page, and say so where the user gave another."""
        if self.page != page:
            was = f" instead of {self.page}" if self.page is not None else ""
            self.notes.append(f"Pages hold {page} keys{was}: {why}.")
        self.page = page
