"""One question to one release of vLLM, with the facts that many of its rules look at."""

from __future__ import annotations

from typing import NamedTuple

from decodecalc.servers.device import ServerDevice
from decodecalc.servers.question import ABSENT, INSTALLED, Layer, Question, VllmSettings
from decodecalc.servers.vllm.parameters import VllmRules


class Ask(NamedTuple):
    """What the selector of one release hands to a backend."""

    question: Question
    """The question."""
    rules: VllmRules
    """The release's rules."""
    device: ServerDevice
    """The device."""
    settings: VllmSettings
    """vLLM's settings."""

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.question.layer

    @property
    def kv_dtype(self) -> str:
        """`--kv-cache-dtype`."""
        return self.question.kv_cache_dtype

    @property
    def is_quantized(self) -> bool:
        """Whether the cache counts as quantised (`is_quantized_kv_cache`)."""
        kv, rules = self.kv_dtype, self.rules
        return kv.startswith(rules.quantized_prefixes) or kv in rules.quantized_names or kv.endswith("per_token_head")

    @property
    def batch_invariant(self) -> bool:
        """Batch-invariant mode."""
        return self.settings.batch_invariant

    @property
    def has_flashinfer(self) -> bool:
        """The FlashInfer package can be imported: never on AMD."""
        return self.settings.flashinfer != ABSENT and not self.device.hip

    def trtllm_kernels(self, is_prefill: bool = False) -> bool:
        """`vllm/utils/flashinfer.py: supports_trtllm_attention`: XQA or trtllm-gen kernels of FlashInfer can be had."""
        if self.batch_invariant or self.settings.flashinfer != INSTALLED:
            return False
        if any(self._on_xqa_family(code) for code in self.rules.xqa_families):
            return not is_prefill
        return self.device.family(100)

    def can_use_trtllm(self, is_prefill: bool = False) -> bool:
        """`can_use_trtllm_attention`: the same for these heads, unless the user switched it off."""
        return (
            self.settings.use_trtllm_attention is not False
            and self.trtllm_kernels(is_prefill)
            and self.layer.q_heads % self.layer.kv_heads == 0
        )

    @property
    def on_xqa_device(self) -> bool:
        """One of the devices on which FlashInfer's decode kernel of the TensorRT-LLM interface is XQA."""
        return any(self._on_xqa_family(code) for code in self.rules.xqa_families)

    def _on_xqa_family(self, code: int) -> bool:
        return self.device.exactly(90) if code == 90 else self.device.family(code)
