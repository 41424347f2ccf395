"""Bytes of a model's weights, from the shapes that its configuration states.

Norms, biases and rotary tables are left out: they are below a thousandth of the whole. A family whose layers are built
in a way that is not known here has no weights (None); nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decodecalc.errors import DecodecalcError
from decodecalc.models.fields import MAX_LAYERS, Fields

# Bytes of one weight of a linear layer. 4-bit checkpoints have one 16-bit scale and a 4-bit zero for 128 weights, NVFP4
# one FP8 scale for 16, MXFP4 one E8M0 scale for 32; FP8 scales (one for 128 x 128 weights, or for a row) are left out.
LINEAR_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
# `quant_method` of a checkpoint's configuration, and the values of a server's own flag.
_METHODS = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "modelopt": "fp8", "modelopt_fp8": "fp8", "w8a8_fp8": "fp8",
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4",
    "auto-round": "int4", "auto_round": "int4",
    "int8": "int8", "w8a8_int8": "int8", "bitsandbytes": "int4", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "moe_wna16": "int4", "experts_int8": "int8",
}  # fmt: skip
# Families whose feed-forward blocks have two matrices; the others have three (a gate beside the first).
_PLAIN_MLP = (
    "gpt2",
    "gptj",
    "gpt_neox",
    "phi",
    "phi-msft",
    "starcoder2",
    "gpt_bigcode",
    "falcon",
    "nemotron",
    "nemotron_h",
)
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "cohere", "cohere2", "starcoder2")
_STRANGE = ("deepseek_v4", "longcat_flash", "nemotron-nas", "kimi_k3", "kimi_linear", "step3", "step3p5", "dbrx")
# Fields that change a layer in ways the shapes below do not know.
_STRANGE_FIELDS = (
    "block_configs",
    "compress_ratios",
    "moe_latent_size",
    "routed_expert_hidden_size",
    "share_expert_dim",
)
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class WeightPart(NamedTuple):
    """Matrices of one kind, over all layers of the whole model."""

    name: str
    """attention, kv_projection, mlp, experts, shared_expert, router, linear_attention, embedding or head."""
    params: int
    """Parameters."""
    most_shards: int | None = None
    """Ranks over which they can be divided; None stands for any number, 1 for a copy on every rank."""
    quantized: bool = True
    """Whether a quantised checkpoint stores them in few bits."""
    experts: int = 0
    """Routed experts of a layer, for `experts`."""
    experts_per_token: int = 0
    """Routed experts that one token visits."""

    def share_read(self, tokens: int) -> float:
        """Share of the matrices that a step of `tokens` query tokens reads.

        Dense parts are read whole. Of the routed experts, those are read that at least one token visits; for a router
        that visits all of them equally often the share is 1 - (1 - k / E)^tokens, and a router with favourites reads
        fewer. The embedding is read one row per token, which counts as nothing.
        """
        if self.name == "embedding":
            return 0.0
        if not self.experts:
            return 1.0
        return 1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens


class Weights(NamedTuple):
    """The weights of a whole model."""

    parts: tuple[WeightPart, ...]
    """Its matrices by kind."""
    stored: str = "bf16"
    """How the checkpoint stores linear layers: a name of `LINEAR_BYTES`."""
    only_experts: bool = False
    """Whether the checkpoint quantises only the routed experts."""

    @property
    def params(self) -> int:
        """Parameters of the model."""
        return sum(part.params for part in self.parts)

    @property
    def active_params(self) -> float:
        """Parameters that one token reads, the embedding left out."""
        return sum(part.params * part.share_read(1) for part in self.parts)

    def rank_bytes(
        self, *, tp: int = 1, expert_ranks: int | None = None, stored: str | None = None, tokens: int | None = None
    ) -> float:
        """Bytes that one rank of `tp` stores, or that it reads in a step of `tokens` tokens where these are given.

        expert_ranks: ranks over which the routed experts are divided; None stands for `tp`. stored: how linear layers
        are stored, where it differs from the checkpoint.
        """
        kind = stored or self.stored
        total = 0.0
        for part in self.parts:
            shards = tp if not part.experts or expert_ranks is None else expert_ranks
            if part.most_shards is not None:
                shards = min(shards, part.most_shards)
            few = part.quantized and (bool(part.experts) or not (self.only_experts and stored is None))
            share = 1.0 if tokens is None else part.share_read(tokens)
            total += part.params * share / shards * LINEAR_BYTES[kind if few else "fp32" if kind == "fp32" else "bf16"]
        return total


class States(NamedTuple):
    """Recurrent states of a hybrid model's layers (linear attention, Mamba), per sequence and layer."""

    layers: int
    """Layers that keep a state."""
    conv_elements: int
    """Elements of the convolution's window, of the whole model."""
    state_elements: int
    """Elements of the recurrent state, of the whole model."""
    state_dtype: str = "bfloat16"
    """Element type of the recurrent state as the configuration states it."""

    def bytes_per_sequence(self, tp: int = 1, layers: int | None = None) -> int:
        """Bytes that one sequence keeps on one rank, over all its layers (or `layers` of them)."""
        one = self.conv_elements * 2 + self.state_elements * STATE_BYTES.get(self.state_dtype, 2)
        return (self.layers if layers is None else layers) * one // tp


def storage_of(method: str, bits: int | None = None) -> str | None:
    """How a quantisation method stores linear layers, or None for one that is not known.

    >>> storage_of("awq"), storage_of("compressed-tensors", 8), storage_of("gguf")
    ('int4', 'int8', None)
    """
    key = method.lower()
    if bits is not None and key in (
        "compressed-tensors",
        "gptq",
        "gptq_marlin",
        "awq",
        "awq_marlin",
        "quark",
        "modelopt",
    ):
        return {4: "int4", 8: "int8"}.get(bits)
    return _METHODS.get(key)


def weights_of(fields: Fields, words: Sequence[str], groups: Sequence[Any]) -> Weights | None:
    """The weights that a configuration describes, or None where its shapes are not stated or not known.

    words: the layers' kinds; groups: the model's layer groups.
    """
    try:
        if fields.model_type in _STRANGE or any(fields.raw(name) is not None for name in _STRANGE_FIELDS):
            return None
        hidden, vocab = fields.count("hidden", quiet=True), _number(fields, "vocab_size")
        if not hidden or not vocab:
            return None
        parts = [*_attention(fields, hidden, groups), *_linear(fields, hidden, words)]
        mlps = _feed_forward(fields, hidden, words)
        if mlps is None:
            return None
        head = WeightPart(name="head", params=hidden * vocab, quantized=False)
        tied = fields.raw("tie_word_embeddings")
        if tied is None:
            tied = fields.model_type in _TIED
        embedding = () if tied else (WeightPart(name="embedding", params=hidden * vocab, quantized=False),)
        stored, only_experts = _checkpoint(fields)
        found = tuple(part for part in (*parts, *mlps, *embedding, head) if part.params)
        return Weights(parts=found, stored=stored, only_experts=only_experts)
    except DecodecalcError:
        return None  # a field that attention does not need may hold anything


def _number(fields: Fields, *names: str) -> int:
    for name in names:
        value = fields.raw(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0


def _checkpoint(fields: Fields) -> tuple[str, bool]:
    settings: Mapping[str, Any] = fields.mapping("quantization_config")
    method = settings.get("quant_method")
    if not isinstance(method, str):
        return "bf16", False
    bits = settings.get("num_bits", settings.get("bits"))
    stored = storage_of(method, bits if isinstance(bits, int) else None) or "bf16"
    # gpt-oss and Kimi-K2.5 quantise their experts alone.
    return stored, stored == "mxfp4" or settings.get("experts_only") is True


def _attention(fields: Fields, hidden: int, groups: Sequence[Any]) -> list[WeightPart]:
    parts: list[WeightPart] = []
    for group in groups:
        geo, n = group.geometry, group.layers
        if geo.mla:
            parts += _latent(fields, hidden, geo, n)
            continue
        gate = 2 if fields.raw("attn_output_gate") is True else 1
        own = hidden * geo.q_heads * (geo.head_dim * gate + geo.v_dim)
        parts.append(WeightPart(name="attention", params=n * own))
        kv = hidden * geo.kv_heads * (geo.head_dim + geo.v_dim)
        parts.append(WeightPart(name="kv_projection", params=n * kv, most_shards=geo.kv_heads))
    return parts


def _latent(fields: Fields, hidden: int, geo: Any, n: int) -> list[WeightPart]:
    rank, rope = geo.v_dim, geo.head_dim - geo.v_dim
    nope, v = _number(fields, "qk_nope_head_dim"), _number(fields, "v_head_dim")
    low = _number(fields, "q_lora_rank")
    query = geo.q_heads * (nope + rope)
    sharded = (low or hidden) * query + rank * geo.q_heads * (nope + v) + geo.q_heads * v * hidden
    copied = hidden * (rank + rope) + hidden * low
    index_heads, index_dim = _number(fields, "index_n_heads"), _number(fields, "index_head_dim")
    if index_heads and index_dim:
        copied += low * index_heads * index_dim + hidden * (index_dim + index_heads)
    return [
        WeightPart(name="attention", params=n * sharded),
        WeightPart(name="kv_projection", params=n * copied, most_shards=1),
    ]


def _linear(fields: Fields, hidden: int, words: Sequence[str]) -> list[WeightPart]:
    found = states_of(fields, words)
    if found is None:
        return []
    heads, groups = _number(fields, "mamba_num_heads", "mamba_n_heads"), _number(fields, "n_groups", "mamba_n_groups")
    if heads:
        inner = heads * _number(fields, "mamba_head_dim", "mamba_d_head")
        state = _number(fields, "ssm_state_size", "mamba_d_state")
        one = hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden
    else:
        keys = _number(fields, "linear_num_key_heads") * _number(fields, "linear_key_head_dim")
        value_heads = _number(fields, "linear_num_value_heads")
        values = value_heads * _number(fields, "linear_value_head_dim")
        one = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    return [WeightPart(name="linear_attention", params=found.layers * one)]


def states_of(fields: Fields, words: Sequence[str]) -> States | None:
    """Recurrent states of the layers that run Mamba-2 or gated delta rules, where the configuration gives their sizes.

    Shapes: vLLM `model_executor/layers/mamba/mamba_utils.py: MambaStateShapeCalculator` (mamba2_state_shape,
    gated_delta_net_state_shape).
    """
    layers = sum(word in ("linear_attention", "mamba", "mamba2", "gated_deltanet", "gdn") for word in words)
    if not layers:
        return None
    stated = fields.raw("mamba_ssm_dtype")
    dtype = stated if isinstance(stated, str) else "bfloat16"
    heads = _number(fields, "mamba_num_heads", "mamba_n_heads")
    if heads:
        dim, state = (
            _number(fields, "mamba_head_dim", "mamba_d_head"),
            _number(fields, "ssm_state_size", "mamba_d_state"),
        )
        inner, groups = heads * dim, _number(fields, "n_groups", "mamba_n_groups")
        window = max(_number(fields, "conv_kernel", "mamba_d_conv") - 1, 0)
        return States(
            layers=layers,
            conv_elements=window * (inner + 2 * groups * state),
            state_elements=heads * dim * state,
            state_dtype=dtype,
        )
    value_heads, value_dim = _number(fields, "linear_num_value_heads"), _number(fields, "linear_value_head_dim")
    key_heads, key_dim = _number(fields, "linear_num_key_heads"), _number(fields, "linear_key_head_dim")
    if not (value_heads and value_dim and key_heads and key_dim):
        return None
    window = max(_number(fields, "linear_conv_kernel_dim") - 1, 0)
    return States(
        layers=layers,
        conv_elements=window * (2 * key_heads * key_dim + value_heads * value_dim),
        state_elements=value_heads * value_dim * key_dim,
        state_dtype=dtype,
    )


def _feed_forward(fields: Fields, hidden: int, words: Sequence[str]) -> list[WeightPart] | None:
    matrices = 2 if fields.model_type in _PLAIN_MLP else 3
    dense = _number(fields, "intermediate_size", "n_inner", "ffn_hidden_size") or (4 * hidden if matrices == 2 else 0)
    experts = _number(fields, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if fields.model_type == "nemotron_h":
        plain, routed = sum(word == "mlp" for word in words), sum(word == "moe" for word in words)
    elif not experts:
        plain, routed = len(words), 0
    else:
        chosen = _expert_layers(fields, len(words))
        routed = sum(chosen)
        plain = len(words) - routed
    if (plain and not dense) or (routed and not experts):
        return None
    inner = _number(fields, "moe_intermediate_size") or dense
    if fields.model_type.startswith("llama4"):
        dense, shared = _number(fields, "intermediate_size_mlp"), inner
    else:
        shared = _number(fields, "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
        shared = shared or _number(fields, "n_shared_experts", "num_shared_experts") * inner
    if fields.model_type.startswith("gemma4") and experts:
        shared, plain = dense, 0  # a dense block runs beside the experts in every layer
    per_token = _number(fields, "num_experts_per_tok", "top_k_experts", "num_experts_per_token", "moe_top_k")
    if routed and not per_token:
        return None
    expert_part = WeightPart(
        name="experts",
        params=routed * experts * matrices * hidden * inner,
        experts=experts,
        experts_per_token=per_token,
    )
    return [
        WeightPart(name="mlp", params=plain * matrices * hidden * dense),
        *((expert_part,) if routed else ()),
        WeightPart(name="shared_expert", params=routed * matrices * hidden * shared),
        WeightPart(name="router", params=routed * experts * hidden, most_shards=1, quantized=False),
    ]


def _expert_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers route to experts."""
    kinds = fields.words("mlp_layer_types") if fields.raw("mlp_layer_types") is not None else None
    if kinds and len(kinds) == layers:
        return [kind == "sparse" for kind in kinds]
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list) and len(frequency) == layers:
        return [bool(value) for value in frequency]
    first = _number(fields, "first_k_dense_replace")
    step = frequency if isinstance(frequency, int) and frequency > 0 else 1
    chosen = [i >= first and i % step == 0 for i in range(min(layers, MAX_LAYERS))]
    sparse = _number(fields, "decoder_sparse_step", "interleave_moe_layer_step")
    if sparse > 1:
        chosen = [(i + 1) % sparse == 0 for i in range(layers)]
    listed = fields.raw("mlp_only_layers")
    if isinstance(listed, list):
        chosen = [value and i not in listed for i, value in enumerate(chosen)]
    return chosen
