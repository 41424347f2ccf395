"""The constants of the time model, each by the law that it stands for: another value fails here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decodecalc.cost.calibration import Calibration
from decodecalc.cost.model import Work, stream_time
from decodecalc.cost.parameters import Parameter, Variant
from decodecalc.cost.rates import Rates
from decodecalc.cost.schedule import ragged_bodies
from decodecalc.cost.variants import resolve

# One slot an SM, tiles of one second each, nothing shared: times can be worked out by hand.
PLAIN: dict[str, Any] = {
    "sm_count": 2, "slots": 2, "launch_s": 0.0, "launch_block_s": 0.0, "gap_s": 0.0, "hbm_bytes_per_s": 1e12,
    "l2_bytes_per_s": 1e20, "l2_capacity_bytes": 40e6, "peak_flop_per_s": 1e15, "exponent": 64.0, "refill_s": 0.0,
    "row_s": 0.0, "blocks": (1.0, 2.0), "latency_s": (1.0, 1.0), "starts_s": ((0.0, 0.0),) * 5,
    "merge_rows": (1.0, 2.0), "merge_splits": (1.0, 2.0), "merge_s": (0.0,) * 4, "warm": False, "half_width": 0.1,
    "half_width_ragged": 0.1,
}  # fmt: skip


def stage1_s(*tiles: int) -> float:
    """Stage 1 of blocks with these tiles, in launch order (0: nothing to do), on two slots."""
    found = np.array(tiles, dtype=np.int64)
    n, total = int((found > 0).sum()), int(found.sum())
    work = Work(
        blocks=n, started=n, tiles=int(found.max()), tiles_total=total, hbm_bytes=total, requested_bytes=total, flop=0,
        launched_blocks=len(found), is_split=False, live_splits=1, states=0, merge_bytes=0, merge_rows=0,
    )  # fmt: skip
    return float(ragged_bodies(found, work, Rates(**PLAIN)).scheduled_s)


def test_a_block_without_work_holds_its_slot_for_a_twentieth_of_a_tile() -> None:
    """Forty of them on two slots delay what comes behind them by one tile: 40 x 0.05 / 2. (Measured on an H200 at 15
    split counts: 0.05 tiles are within 10 %, 0.5 tiles up to 34 % off.)"""
    free, behind = stage1_s(10, 10), stage1_s(*([0] * 40), 10, 10)
    assert free == pytest.approx(10.0, rel=1e-6)
    assert behind - free == pytest.approx(40 * 0.05 / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("capacities", "share"), [(0.5, 0.0), (1.0, 0.0), (1.15, 0.5), (1.3, 1.0), (2.0, 1.0)]
)  # fmt: skip
def test_the_l2_forgets_between_one_and_1_3_times_its_capacity(capacities: float, share: float) -> None:
    """Warm KV up to the capacity comes from the L2 alone; at 1.3 capacities replays find nothing, and in between the
    share that comes from memory grows in proportion."""
    rates = Rates(**{**PLAIN, "warm": True})
    kv = capacities * rates.l2_capacity_bytes
    assert float(stream_time(kv, kv, rates)) == pytest.approx(share * kv / rates.hbm_bytes_per_s, abs=1e-12)


WANTED = Variant("k", "bf16", 128, 128, 64, 16)


def stand_in(*variants: Variant, wanted: Variant = WANTED) -> Variant:
    """Which of the variants' measurements stand in for the wanted one."""
    number = {"slots_per_sm": Parameter("slots_per_sm", 1.0)}
    return resolve(Calibration(gpu={}, parameters={}, variants=dict.fromkeys(variants, number)), wanted).used


# Each pair differs from the wanted variant in one respect only, and weighs a little less than the other: the first one
# stands in. The order is the law, from what changes a tile's time least to what changes it most.
NEARER = [
    # two more loads in flight (0.2) before twice the warps (0.25) before three more loads (0.3)
    (WANTED._replace(warps=4, stages=4), WANTED._replace(warps=8, stages=2), {"warps": 4, "stages": 2}),
    (WANTED._replace(warps=8, stages=2), WANTED._replace(warps=4, stages=5), {"warps": 4, "stages": 2}),
    # four times the warps (0.5) before twice the rows (1.0); another layout (0.5) too, but three doublings cost more
    (WANTED._replace(layout="run"), WANTED._replace(rows=32), {}),
    (WANTED._replace(layout="run"), WANTED._replace(warps=32), {"warps": 4}),
    (WANTED._replace(warps=8), WANTED._replace(layout="run", warps=4), {"warps": 4}),
    # twice the rows (1.0) before twice the width (1.5) before twice the tile (2.0)
    (WANTED._replace(rows=32), WANTED._replace(head_dim=256, head_dim_v=256), {}),
    (WANTED._replace(head_dim=256, head_dim_v=256), WANTED._replace(tile_keys=128), {}),
    (WANTED._replace(head_dim=256, head_dim_v=256), WANTED._replace(rows=64), {}),
    (WANTED._replace(tile_keys=128), WANTED._replace(rows=64, layout="run"), {}),
    # twice the tile (2.0) before another type of the same size (3.0), which comes before four times the tile (4.0)
    (WANTED._replace(tile_keys=32), WANTED._replace(dtype="fp16"), {}),
    (WANTED._replace(dtype="fp16"), WANTED._replace(tile_keys=256), {}),
    (WANTED._replace(dtype="fp16"), WANTED._replace(path="unsplit"), {"path": "split", "dtype": "bf16"}),
    # the other path (4.0) before a type of another size (6.0), which comes before eight times the tile and twice the
    # rows (7.0)
    (WANTED._replace(path="unsplit"), WANTED._replace(dtype="fp8", path="split"), {"path": "split"}),
    (WANTED._replace(dtype="fp8"), WANTED._replace(tile_keys=512, rows=32), {}),
    # a latent that is key and value at once is another kernel (3.0 more than its width alone)
    (WANTED._replace(tile_keys=128), WANTED._replace(head_dim=256, head_dim_v=0), {}),
    (WANTED._replace(head_dim=256, head_dim_v=0), WANTED._replace(tile_keys=256), {}),
]


@pytest.mark.parametrize(("nearer", "further", "more"), NEARER)
def test_the_variant_that_changes_a_tile_least_stands_in(nearer: Variant, further: Variant, more: Any) -> None:
    """Whatever the order in which they were measured."""
    wanted = WANTED._replace(**more)
    filled = [
        v._replace(**{k: x for k, x in more.items() if getattr(v, k) == getattr(WANTED, k)}) for v in (nearer, further)
    ]
    assert stand_in(*filled, wanted=wanted) == stand_in(*filled[::-1], wanted=wanted) == filled[0]
