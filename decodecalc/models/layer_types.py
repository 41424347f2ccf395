"""Says which layers of a model run softmax attention, and of which kind.

Sources of the rules: `__post_init__` of the configuration classes of transformers 5.24.0; for models whose code lives
on the Hub, the way in which vLLM 0.33 reads them (`config/model.py`, `model_executor/models`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from decodecalc.errors import ModelConfigError
from decodecalc.models.fields import MAX_LAYERS, Fields, class_defaults, whole, whole_list

FULL, SLIDING, CHUNKED, SPARSE, NONE = "full", "sliding", "chunked", "sparse", "none"

# What the words of configurations mean. A word that is not here is an error, never a guess.
KINDS = {
    **dict.fromkeys(
        ("full_attention", "attention", "full", "global", "global_attention", "hybrid", "softmax", "softmax_attention"),
        FULL,
    ),
    **dict.fromkeys(
        (
            "sliding_attention",
            "sliding",
            "local",
            "local_attention",
            "swa",
            "hybrid_sliding",
            "sliding_window",
            "window_attention",
        ),
        SLIDING,
    ),
    **dict.fromkeys(("chunked_attention", "chunked"), CHUNKED),
    **dict.fromkeys(
        (
            "indexed_attention",
            "deepseek_sparse_attention",
            "minimax_m3_sparse",
            "qwen_sparse_attention",
            "sparse_attention",
        ),
        SPARSE,
    ),
    **dict.fromkeys(
        (
            "linear_attention",
            "lightning_attention",
            "gated_deltanet",
            "gdn",
            "deltanet",
            "kda",
            "mamba",
            "mamba1",
            "mamba2",
            "conv",
            "short_conv",
            "recurrent",
            "ssm",
            "rwkv",
            "mlp",
            "moe",
            "no_op",
            "identity",
        ),
        NONE,
    ),
}

# Layer i is full when i % period == remainder, and sliding otherwise, in classes with a fixed pattern.
FULL_EVERY = {
    "gemma2": (2, 1),
    "vaultgemma": (2, 1),
    "gpt_oss": (2, 1),
    "gemma3": (6, 5),
    "gemma3_text": (6, 5),
    "gemma3n": (5, 4),
    "gemma3n_text": (5, 4),
    "gemma4": (6, 5),
    "gemma4_text": (6, 5),
    "gemma4_unified_text": (6, 5),
    "diffusion_gemma_text": (6, 5),
    "embedding_gemma2_text": (6, 5),
    "cohere2": (4, 3),
    "olmo3": (4, 3),
    "dory": (4, 3),
    "kolibri1": (5, 4),
    "inkling_text": (6, 5),
    "inkling2_text": (6, 5),
    "inkling2_loop_text": (6, 5),
    "cwm": (4, 0),
    "granite_swa": (4, 0),
    "granitemoe_swa": (4, 0),
    "modernbert-decoder": (3, 0),
}
# Classes with a window whose layers are full unless `layer_types` says otherwise.
FULL_UNLESS_LISTED = frozenset(("laguna", "mellum", "step3p5", "step3p7", "cohere_compass_text"))

_FULL_EVERY_COUNTED_BACK = {"muse_glimmer_text": 4, "muse_spark_text": 4}

# Linear attention elsewhere: layer i is full when i % period == remainder.
_FULL_AMONG_LINEAR = {
    "qwen3_next": (4, 3),
    "qwen3_5_text": (4, 3),
    "qwen3_5_moe_text": (4, 3),
    "qwen4_exp_text": (4, 3),
    "olmo_hybrid": (4, 3),
    "glm5_next_text": (4, 3),
    "minimax": (2, 0),
}

_NEMOTRON_H = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


class LayerPlan(NamedTuple):
    """`kinds` (FULL, SLIDING …) and the configuration's or class's `words`, one per layer. `notes` are facts
    about where the pattern came from."""

    kinds: tuple[str, ...]
    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


def plan_layers(fields: Fields) -> LayerPlan:
    """One kind per layer of the model."""
    for rule in (_explicit, _hybrid, _sliding_pattern):
        plan = rule(fields)
        if plan is not None:
            return plan
    return _plan(["full_attention"] * layer_count(fields))


def layer_count(fields: Fields) -> int:
    """Layers of the model (`num_hidden_layers` or an older name)."""
    layers = fields.count("layers", high=MAX_LAYERS)
    if layers is None:
        raise ModelConfigError("no layer count: num_hidden_layers (or n_layer, num_layers, …) is missing")
    return layers


def _plan(words: list[str], *notes: str) -> LayerPlan:
    kinds = []
    for word in words:
        kind = KINDS.get(word.lower())
        if kind is None:
            raise ModelConfigError(f"layer type {word[:60]!r} is not known: cannot tell whether it runs attention")
        kinds.append(kind)
    return LayerPlan(tuple(kinds), tuple(words), notes)


def _explicit(fields: Fields) -> LayerPlan | None:
    """A list (or string) that names every layer."""
    for name in ("layer_types", "layers_block_type"):
        words = fields.words(name)
        if words is None:
            continue
        if fields.model_type == "nemotron_h":
            return _plan(words, *_against_stated(fields, name, words))
        if fields.model_type == "dory" and "mlp" in words:
            return _plan(words[::2], "attention and MLP blocks are listed separately: two entries make one layer")
        return _fit(fields, name, words)
    pattern = fields.raw("hybrid_override_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern or len(pattern) > MAX_LAYERS:
            raise ModelConfigError(f"hybrid_override_pattern must be a string of M, *, - and E, not {pattern!r:.60}")
        unknown = set(pattern) - set(_NEMOTRON_H)
        if unknown:
            raise ModelConfigError(f"hybrid_override_pattern has unknown letters {''.join(sorted(unknown))[:20]!r}")
        words = [_NEMOTRON_H[letter] for letter in pattern]
        return _plan(words, *_against_stated(fields, "hybrid_override_pattern", words))
    for name, words_of in _FLAG_LISTS.items():
        flags = fields.counts(name, 0, 1)
        if flags is not None:
            return _fit(fields, name, [words_of[flag] for flag in flags])
    sparse = fields.mapping("sparse_attention_config")
    if sparse.get("sparse_attention_freq") is not None:
        flags = whole_list("sparse_attention_freq", sparse["sparse_attention_freq"], 0, 1)
        words = ["minimax_m3_sparse" if flag else "full_attention" for flag in flags]
        return _fit(fields, "sparse_attention_freq", words)
    types = fields.raw("attention_types")
    if types is not None or fields.model_type == "gpt_neo":
        return _gpt_neo(fields, types)
    return None


# One flag per layer, and what 0 and 1 mean.
_FLAG_LISTS = {
    "attn_type_list": ("linear_attention", "full_attention"),  # MiniMax
    "hybrid_layer_pattern": ("full_attention", "sliding_attention"),  # MiMo-V2
}


def _fit(fields: Fields, name: str, words: list[str]) -> LayerPlan:
    """Cuts a list that also names prediction (MTP) layers to the model's; a list that is too short is an error."""
    layers = layer_count(fields) if fields.is_stated("layers") else len(words)
    if len(words) < layers:
        raise ModelConfigError(f"{name} has {len(words)} entries for {layers} layers")
    if len(words) > MAX_LAYERS:
        raise ModelConfigError(f"{name} has {len(words)} entries: more than {MAX_LAYERS} layers")
    extra = len(words) - layers
    notes = (f"{name} has {extra} more entries than there are layers: they were ignored",) if extra else ()
    return _plan(words[:layers], *notes)


def _against_stated(fields: Fields, name: str, words: list[str]) -> tuple[str, ...]:
    """A note where a list from which transformers derives the layer count has another length than the stated count.
    ModelConfigError where the stated count is none."""
    stated = fields.count("layers", high=MAX_LAYERS)
    if stated is None or stated == len(words):
        return ()
    return (f"num_hidden_layers is {stated}, but transformers counts the {len(words)} entries of {name}",)


def _gpt_neo(fields: Fields, types: Any) -> LayerPlan:
    """Expands the pattern of GPT-Neo: [[["global", "local"], 12]] repeats that pair twelve times."""
    layers = layer_count(fields)
    if types is None:
        types = [[["global", "local"], -(-layers // 2)]]
    words: list[str] = []
    try:
        for kinds, repeat in types:
            words += [str(kind) for kind in kinds] * whole("attention_types", repeat, 1, MAX_LAYERS)
            if len(words) > MAX_LAYERS:
                raise ModelConfigError(f"attention_types names more than {MAX_LAYERS} layers")
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelConfigError):
            raise
        raise ModelConfigError(f"attention_types must be pairs of kinds and a repeat, not {types!r:.60}") from None
    return _fit(fields, "attention_types", words)


def _hybrid(fields: Fields) -> LayerPlan | None:
    """Rules that say which layers run attention beside Mamba, linear attention or convolutions."""
    kind, full = fields.model_type, _attention_indices(fields)
    if full is not None:
        layers = layer_count(fields)
        chosen = set(full)
        other = "conv" if kind.startswith("lfm") else "mamba" if kind in _MAMBA_HYBRIDS else "linear_attention"
        return _plan(["full_attention" if i in chosen else other for i in range(layers)])
    if kind == "recurrent_gemma" or fields.raw("block_types") is not None:
        blocks = fields.words("block_types") or class_defaults("recurrent_gemma")["block_types"]
        words = [blocks[i % len(blocks)] for i in range(layer_count(fields))]
        # Attention blocks of RecurrentGemma are always local.
        return _plan([{"attention": "local_attention"}.get(word, word) for word in words])
    if kind == "jamba" or (fields.raw("attn_layer_period") is not None and kind != "zamba"):
        period = fields.count("attn_layer_period", high=MAX_LAYERS) or 1
        offset = fields.count("attn_layer_offset", low=0, high=MAX_LAYERS) or 0
        return _plan(["attention" if i % period == offset else "mamba" for i in range(layer_count(fields))])
    if kind == "zamba":
        period = fields.count("attn_layer_period", high=MAX_LAYERS) or 6
        offset = fields.count("attn_layer_offset", low=0, high=MAX_LAYERS) or 0
        rest = ["hybrid" if i % period == offset else "mamba" for i in range(max(0, layer_count(fields) - 3))]
        return _plan((["mamba", "mamba", "hybrid", *rest])[: layer_count(fields)])
    if kind == "zamba2":
        if fields.is_stated("layers") and layer_count(fields) != ZAMBA2_LAYERS:
            raise ModelConfigError(
                f"zamba2 without hybrid_layer_ids: the class's own pattern is of {ZAMBA2_LAYERS} layers, and the "
                f"configuration has {layer_count(fields)}; hybrid_layer_ids says which of them run attention"
            )
        words = ["mamba"] + (["mamba"] * 5 + ["hybrid"]) * 7 + ["mamba"] * 4 + ["hybrid"] + ["mamba"] * 3
        return _fit(fields, "the pattern of zamba2's class", [*words, "hybrid", "mamba", "mamba"])
    if kind == "granitemoehybrid":
        return _plan(["mamba"] * layer_count(fields))
    if kind == "lara_mini":
        block = ["linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"]
        return _plan([block[i % 5] for i in range(layer_count(fields))])
    if kind == "lfm3":
        return _plan([_lfm3_word(i) for i in range(layer_count(fields))])
    interval = fields.count("full_attention_interval", high=MAX_LAYERS)
    group = fields.count("layer_group_size", high=MAX_LAYERS)
    period, remainder = _FULL_AMONG_LINEAR.get(kind, (0, 0))
    if interval or group:
        period = interval or group or 1
        remainder = period - 1
    if period:
        words = [
            "full_attention" if i % period == remainder else "linear_attention" for i in range(layer_count(fields))
        ]
        return _plan(words)
    if kind == "kimi_linear":
        return _plan(["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layer_count(fields))])
    if kind == "plamo2":
        return _plan(_plamo2(fields))
    return None


ZAMBA2_LAYERS = 54
_MAMBA_HYBRIDS = {"bamba", "nemotron_h", "mamba_ssm"}


def _lfm3_word(i: int) -> str:
    if i % 4 == 2:
        return "full_attention"
    return "sliding_attention" if i % 4 == 0 and i > 0 else "conv"


def _plamo2(fields: Fields) -> list[str]:
    """The pattern of PLaMo-2 (`is_mamba` in its modeling code): the middle layer of each run of `mamba_step` layers has
    attention."""
    layers, step = layer_count(fields), fields.count("mamba_step", low=2, high=MAX_LAYERS) or 2
    if fields.flag("mamba_enabled") is False:
        return ["full_attention"] * layers
    if layers <= step // 2:
        return ["mamba"] * (layers - 1) + ["full_attention"]
    return ["full_attention" if i % step == step // 2 else "mamba" for i in range(layers)]


def _attention_indices(fields: Fields) -> list[int] | None:
    """Layers that a list of indices marks as softmax attention, from 0."""
    linear = fields.mapping("linear_attn_config")
    if linear.get("full_attn_layers") is not None:  # Kimi Linear counts layers from 1
        return [i - 1 for i in whole_list("full_attn_layers", linear["full_attn_layers"], 1, MAX_LAYERS)]
    for name in ("attn_layer_indices", "attn_layer_idx", "full_attn_idxs", "full_attention_idx", "hybrid_layer_ids"):
        value = fields.raw(name)
        if value is not None:
            return whole_list(name, value, 0, MAX_LAYERS)
    return None


def _sliding_pattern(fields: Fields) -> LayerPlan | None:
    """Rules that say which layers are local."""
    kind = fields.model_type
    if (fields.raw("attention_chunk_size") is not None and kind.startswith("llama4")) or kind in (
        "llama4",
        "llama4_text",
    ):
        return _llama4(fields)
    local = fields.counts("local_layer_ids", 0, MAX_LAYERS)
    if local is not None:
        chosen = set(local)
        return _plan(["sliding_attention" if i in chosen else "full_attention" for i in range(layer_count(fields))])
    global_ids = fields.counts("global_attn_idx", 0, MAX_LAYERS)
    if global_ids is not None:  # Hymba
        chosen = set(global_ids)
        return _plan(["full_attention" if i in chosen else "sliding_attention" for i in range(layer_count(fields))])
    if kind == "mimo_v2_flash":
        layers = range(layer_count(fields))
        return _plan(["full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in layers])
    if kind == "flint":
        last = layer_count(fields) - 1
        full = [i < 2 or i % 4 == 1 or i == last for i in range(last + 1)]
        return _plan(["full_attention" if here else "sliding_attention" for here in full])
    if kind == "beam":
        last = layer_count(fields) - 1
        full = [(i + 1) % 6 == 0 or i == last for i in range(last + 1)]
        return _plan(["full_attention" if here else "sliding_attention" for here in full])
    if kind in _FULL_EVERY_COUNTED_BACK:
        period, last = _FULL_EVERY_COUNTED_BACK[kind], layer_count(fields) - 1
        return _plan(["full_attention" if (last - i) % period == 0 else "sliding_attention" for i in range(last + 1)])
    return _periodic(fields)


def _periodic(fields: Fields) -> LayerPlan | None:
    kind, pattern = fields.model_type, fields.raw("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE-4: "LLLG", local and global
        if not pattern or set(pattern) - set("LG") or len(pattern) > MAX_LAYERS:
            raise ModelConfigError(f"sliding_window_pattern must be a number or letters L and G, not {pattern!r:.60}")
        words = [pattern[i % len(pattern)] for i in range(layer_count(fields))]
        return _plan(["sliding_attention" if word == "L" else "full_attention" for word in words])
    stated = fields.count("sliding_window_pattern", low=0, high=MAX_LAYERS, quiet=True)
    period, remainder = FULL_EVERY.get(kind, (0, 0))
    origin = "class default"
    every = fields.count("global_attn_every_n_layers", high=MAX_LAYERS, quiet=True)
    if every is not None and kind in ("afmoe", "modernbert-decoder"):
        period, remainder = every, (every - 1 if kind == "afmoe" else 0)
    elif stated:
        period, remainder = stated, stated - 1
        origin = "sliding_window_pattern" if pattern is not None else origin
        if pattern is not None and FULL_EVERY.get(kind) == (period, remainder):
            origin = "class default"
    if kind in ("exaone4", "exaone_moe") and fields.value("window", quiet=True) is None:
        return None
    if not period:
        return None
    words = ["full_attention" if i % period == remainder else "sliding_attention" for i in range(layer_count(fields))]
    if kind.startswith("gemma4") or kind == "diffusion_gemma_text":
        words[-1] = "full_attention"
    if period == 2:
        note = "local and global layers alternate: every other layer has the window"
    else:
        note = f"{period - 1} local layers for 1 global layer (pattern {period}, {origin})"
    return _plan(words, note)


def _llama4(fields: Fields) -> LayerPlan:
    """The pattern of Llama-4: layers with rotary embedding attend within their chunk, the others to every key."""
    layers = layer_count(fields)
    chunk = fields.count("attention_chunk_size")
    if chunk is None:
        return _plan(["full_attention"] * layers)
    rope = fields.counts("no_rope_layers", 0, 1)
    interval = fields.count("no_rope_layer_interval", high=MAX_LAYERS, quiet=True) or 4
    if rope is None:
        rope = [int((i + 1) % interval != 0) for i in range(layers)]
    words = ["chunked_attention" if uses_rope else "full_attention" for uses_rope in rope]
    every = {4: "4th"}.get(interval, f"{interval}-th")
    note = f"RoPE layers attend within chunks of {chunk} keys; every {every} layer (no_rope) has full attention"
    plan = _fit(fields, "no_rope_layers", words)
    return LayerPlan(plan.kinds, plan.words, (*plan.notes, note))
