"""How one launch is shaped: plain numbers, from any policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import log2
from typing import Any

from decodecalc_kernels.blocks import MLA_HOPPER, cdiv, default_rows, next_power_of_2

# Bytes of keys and values of a tile of the invariant launch: 64 keys of 128 + 128 bf16 elements.
TILE_BYTES = 32768
INVARIANT_KEYS = 256  # keys of its splits: of 128, 256 and 512 the fastest in the geometric mean (NOTES.md, step 39)
SMALL_BLOCK = 2048  # rows x elements of a value that two warps compute as fast as four, with three tiles in flight
KERNELS = ("stage1", MLA_HOPPER["kernel"])
SPLIT_RULES = ("size", "count", "counts", "sizes")  # in the order of merge.BY_SIZE …


@dataclass(frozen=True)
class LaunchConfig:
    """The launch of one decode step. Nothing in it depends on the lengths: those are read on the device.

    Splits: `num_splits` is the grid's extent (launched). Which of them are live, and each one's keys, follow on the
    device from `seq_lens` and the rule:

    ======== =========================================================== ================================
    rule     keys per split of a request with L keys                     whose
    ======== =========================================================== ================================
    size     `split_value`                                               fixed split size: batch-invariant
    count    ceil(ceil(L / split_unit) / split_value) · split_unit       vLLM (unit = its tile, value 16)
    counts   the same with `split_values[request]` for the count         SGLang (unit 32)
    sizes    `split_values[request]`                                     any other policy
    ======== =========================================================== ================================

    With a sliding window, L above is the whole request (`window_partition` "full": vLLM) or only its visible keys
    ("window"). num_splits 1 with rule "count" and value 1 is the unsplit kernel: no partial states and no merge.

    `tile_keys`, `rows`, `warps`, `stages`: stage 1's tile, its query rows per block (a power of two >= 16; `rows_used`
    of them hold queries, all when None), its warps and loads in flight. `merge`: "kernel" or "fused" (the last block
    of a row block merges). `merge_splits` and `merge_dims`: states and output elements a merge block takes a step.
    `pdl` (programmatic dependent launch, NVIDIA 9.0 and later, ignored elsewhere): "none"; "merge" overlaps the
    merge's launch with stage 1; "chain" also stage 1's with whatever ran before it (it still waits for that to finish
    before it reads anything). `p_parts`: 1 rounds softmax weights to the cache's type for the second product, as most
    kernels do; 2 keeps twice the bits. `idle_requests`: extra grid rows that return at once, as engines launch.

    `listed`: for requests of different lengths. In a grid of requests x `num_splits`, blocks of short requests find
    nothing to do between others that work. Listed, stage 1 has a block for each entry of the list of live splits, whole
    ones first (split_list.py); the bits are the same. `list_length`: entries that the grid holds, at least the
    live splits of all requests plus the requests without keys; None: requests x `num_splits`. `live.list_length` bounds
    it by the keys in the cache. Blocks past the list's end come last and return at once.
    """

    num_splits: int = 1
    split_rule: str = "count"
    split_value: int = 1
    split_unit: int = 1
    window_partition: str = "full"
    tile_keys: int = 64
    rows: int = 16
    rows_used: int | None = None
    warps: int = 4
    stages: int = 3
    p_parts: int = 1
    merge: str = "kernel"
    merge_rows: int = 1
    merge_splits: int = 16
    merge_dims: int = 128
    merge_warps: int = 4
    pdl: str = "chain"
    idle_requests: int = 0
    kernel: str = "stage1"
    listed: bool = False
    list_length: int | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, text: str) -> None:
            if not ok:
                raise ValueError(f"LaunchConfig: {text}")

        need(self.split_rule in SPLIT_RULES, f"split_rule must be one of {SPLIT_RULES}, not {self.split_rule!r}")
        need(1 <= self.num_splits <= 65535, f"num_splits must be 1 to 65535 (grid axis z), not {self.num_splits}")
        if self.split_rule in ("size", "count"):
            need(self.split_value >= 1, f"split_value must be at least 1, not {self.split_value}")
        if self.split_rule == "count":
            need(
                self.split_value <= self.num_splits,
                f"{self.split_value} splits do not fit a grid of num_splits {self.num_splits}",
            )
        need(self.split_unit >= 1, f"split_unit must be at least 1, not {self.split_unit}")
        need(self.window_partition in ("full", "window"), "window_partition must be 'full' or 'window'")
        need(self.merge in ("kernel", "fused"), "merge must be 'kernel' or 'fused'")
        need(self.pdl in ("none", "merge", "chain"), "pdl must be 'none', 'merge' or 'chain'")
        need(self.p_parts in (1, 2), "p_parts must be 1 or 2")
        need(self.stages >= 1, "stages must be at least 1")
        need(self.idle_requests >= 0, "idle_requests must not be negative")
        need(not self.listed or not self.direct, "an unsplit launch has no list of splits")
        need(
            self.list_length is None or (self.listed and self.list_length >= 1),
            "list_length must be at least 1, and is for listed launches",
        )
        need(self.kernel in KERNELS, f"kernel must be one of {KERNELS}, not {self.kernel!r}")
        if self.kernel == MLA_HOPPER["kernel"]:
            wrong = [f"{name} {value}" for name, value in MLA_HOPPER.items() if getattr(self, name) != value]
            need(not wrong, f"kernel mla_stage1 has {', '.join(wrong)} only")
            need(self.merge == "kernel", "kernel mla_stage1 takes merge 'kernel' only")
            need(self.p_parts == 1, "kernel mla_stage1 takes p_parts 1 only")
            need(not self.listed, "kernel mla_stage1 takes no list of splits")
        for name, low in (("tile_keys", 16), ("rows", 16), ("warps", 1), ("merge_warps", 1), ("merge_rows", 1),
                          ("merge_splits", 1), ("merge_dims", 16)):  # fmt: skip
            value = getattr(self, name)
            if name == "warps" and self.kernel == MLA_HOPPER["kernel"]:
                continue
            need(value >= low and value & (value - 1) == 0, f"{name} must be a power of two >= {low}, not {value}")
        need(
            self.rows_used is None or 1 <= self.rows_used <= self.rows,
            f"rows_used must be between 1 and rows ({self.rows})",
        )

    @classmethod
    def fixed_size(cls, split_keys: int, max_seq_len: int, **more: Any) -> LaunchConfig:
        """Splits of `split_keys` keys, enough of them for `max_seq_len`. A request's bits never depend on others."""
        return cls(num_splits=cdiv(max_seq_len, split_keys), split_rule="size", split_value=split_keys, **more)

    @classmethod
    def fixed_count(cls, count: int, unit: int = 16, **more: Any) -> LaunchConfig:
        """`count` splits for every request, each a multiple of `unit` keys (vLLM's 3D rule: 16 splits, unit = tile)."""
        return cls(num_splits=count, split_rule="count", split_value=count, split_unit=unit, **more)

    @classmethod
    def per_request_counts(cls, cap: int, unit: int = 32, **more: Any) -> LaunchConfig:
        """Counts per request from a device array (SGLang); the grid is always `cap` deep."""
        return cls(num_splits=cap, split_rule="counts", split_unit=unit, **more)

    @classmethod
    def per_request_sizes(cls, cap: int, **more: Any) -> LaunchConfig:
        """Keys per split of each request from a device array; the grid is `cap` deep."""
        return cls(num_splits=cap, split_rule="sizes", **more)

    @property
    def direct(self) -> bool:
        """Unsplit: stage 1 writes the output, nothing is merged."""
        return self.num_splits == 1 and self.split_rule == "count"

    def on_grid(self, **changes: Any) -> LaunchConfig:
        """A copy that launches the grid of requests and splits and no list, with some fields changed."""
        return replace(self, listed=False, list_length=None, **changes)

    def replace(self, **changes: Any) -> LaunchConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def invariant_config(
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    max_seq_len: int,
    split_keys: int = INVARIANT_KEYS,
    v_dim: int | None = None,
    mla: bool = False,
    q_len: int = 1,
    kv_bytes_per_element: int = 2,
    window: int | None = None,
) -> LaunchConfig:
    """A LaunchConfig under which a request's bits never depend on the batch: a fixed split size, and tile, rows, warps
    and merge from the layer alone.

    `max_seq_len`: the longest request that will ever come (it only sizes the grid, and does not change bits).
    `split_keys`: keys per split, rounded up to whole tiles; smaller fills the GPU at small batches, larger merges less.
    """
    v_dim = head_dim if v_dim is None else v_dim
    key_bytes = (head_dim if mla else head_dim + v_dim) * kv_bytes_per_element
    rows = default_rows(q_len, q_heads // kv_heads, v_dim)
    small = rows * next_power_of_2(v_dim) <= SMALL_BLOCK
    tile = max(16, min(64, 1 << round(log2(TILE_BYTES / key_bytes)), 4096 // rows))
    size = cdiv(split_keys, tile) * tile
    shape: dict[str, Any] = {
        "tile_keys": tile, "rows": rows, "warps": 2 if small else 4, "stages": 3 if small else 2,
        # The merge takes its states in steps of the same number whatever the longest request.
        "merge_rows": 1, "merge_splits": 64, "merge_dims": min(32, max(16, next_power_of_2(v_dim))), "merge_warps": 1,
    }  # fmt: skip
    if window is not None:
        shape["window_partition"] = "window"
    return LaunchConfig.fixed_size(size, max_seq_len, **shape)
