"""The machine words of plans: codes of refusals (`GateError.code`) and names of gates (`Gate.name`), one sentence each.

Codes that engines of several folders use stand here; those of one folder stand in its `codes.py`, which ends with
`CODES = Codes(refusals=..., gates=...)` and is found by being there (`engines.registry.all_codes`). All are snake_case.
They are part of JSON rows, so that a code keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Codes with their sentences."""

    refusals: Mapping[str, str] = field(default_factory=dict)
    """Code of a refusal -> what is refused."""
    gates: Mapping[str, str] = field(default_factory=dict)
    """Name of a gate -> what holds where it passes."""

    def with_(self, other: Codes, where: str = "") -> Codes:
        """Both together. ValueError where the other says something else of a code that is known."""
        for mine, theirs in ((self.refusals, other.refusals), (self.gates, other.gates)):
            twice = sorted(code for code in mine.keys() & theirs.keys() if mine[code] != theirs[code])
            if twice:
                raise ValueError(f"{where} repeats {', '.join(twice)} with another sentence")
        return Codes(refusals={**self.refusals, **other.refusals}, gates={**self.gates, **other.gates})


_REFUSALS = {
    "arch": "The engine has no kernel for this architecture.",
    "block_size": "The kernel is not compiled for this size of a block (of the cache, or of its threads).",
    "context_parallel": "The keys of a request cannot be divided over ranks, as the kernel returns no log-sum-exp.",
    "compute_capability": "The compute capability of the device is too low, or it is not known.",
    "dense_layer": "The layer reads every key, and the engine reads lists of keys only.",
    "dtype": "The engine does not take the element types of cache and queries.",
    "equal_widths": "The engine runs only layers whose keys and values differ in width.",
    "grid": "The launch does not fit the axes of the grid.",
    "group": "The kernel does not take this number of query heads for each KV head.",
    "head_dim": "No kernel serves the width of the keys, or of keys and values together.",
    "head_dim_not_multiple_of_16": "The width of a head has to be a multiple of 16 with this cache type.",
    "head_dim_not_multiple_of_8": "The width of a head has to be a multiple of 8.",
    "head_dim_too_large": "The width of a head exceeds what the kernels are compiled for.",
    "head_dim_v": "The engine needs another width of the values beside these keys.",
    "heads": "The kernel does not take this number of query heads.",
    "bf16": "The device has no BF16 arithmetic; models run there in FP16.",
    "kv_dtype": "The engine does not take the element type of the cache on this device.",
    "kv_heads": "The kernel does not take this number of KV heads.",
    "mla": "The engine has no kernel for MLA layers.",
    "not_amd": "The engine runs on AMD devices only.",
    "not_mla": "The engine serves MLA layers only, whose cache holds one latent that is both key and value.",
    "not_nvidia": "The engine runs on NVIDIA devices only.",
    "not_sm100": "The kernel runs on data-centre Blackwell (compute capability 10.x) only.",
    "not_sm90": "The kernel runs on compute capability 9.0 (Hopper) only.",
    "other_vendor": "The engine runs on devices of another vendor only.",
    "output_dtype": "No kernel writes this output type from these queries and this cache.",
    "page_size": "The engine does not take pages of this size.",
    "q_len": "The kernel does not take this number of query tokens for each request.",
    "query_dtype": "The engine does not take the element type of the queries with this cache.",
    "ragged_q_len": "Every request of the step needs the same number of query tokens.",
    "shared_memory": "A block needs more shared memory than the device has.",
    "sinks": "The engine has no attention sinks.",
    "softcap": "The engine has no logit soft cap.",
    "sparse_layer": "The layer gathers its keys by a list, and the engine does not read such a list.",
    "tile_keys": "The keys of a tile have to be a power of two.",
    "too_many_splits": "The split count exceeds what the kernels hold.",
    "warps": "The warps of a block have to be a power of two.",
    "window": "The engine does not serve this sliding window.",
}
_GATES = {
    "all_splits_live": "Every launched split has keys.",
    "arch": "The engine has a kernel for the architecture of the device.",
    "batch_invariant": "The result of a request does not depend on the rest of the batch.",
    "combine_supported": "The combine kernel is compiled for this number of parts.",
    "dynamic_splits": "A kernel on the device picks the split count of each request.",
    "engine_picks_it": "The engine chooses this kernel for the step, and not its other one.",
    "gqa_path": "Query heads of a KV head are packed into one block.",
    "group": "The number of query heads for each KV head is served.",
    "head_dim": "The width of a head is served.",
    "kv_dtype": "The cache type is served.",
    "metadata_fits": "The scheduler's arrays fit the shared memory of a block.",
    "occupancy_given": "The blocks that fit an SM were given and are not assumed.",
    "pack_gqa": "The query heads of a KV head share a tile, so that its keys are read once.",
    "page_size": "The engine takes the page size.",
    "persistent": "The persistent kernel runs.",
    "query_dtype": "The type of the queries is served.",
    "query_len": "The longest request has few enough query tokens to be split.",
    "scratch_rows": "The partial states of all query tokens fit the scratch buffers.",
    "shared_memory": "The shared memory of a block fits the device.",
    "sinks": "The layer has no attention sinks.",
    "softcap": "Logits have no cap, or the kernel applies it.",
    "split": "The keys are split.",
    "threshold": "There are few enough requests to split them.",
    "window": "No sliding window stands in the way.",
    "within_capture": "The requests are no longer than those that the captured launch was planned for.",
}
SHARED = Codes(refusals=_REFUSALS, gates=_GATES)
