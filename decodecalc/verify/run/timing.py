"""The measurement protocol: the time per layer of one CUDA graph over several layers, each with its own KV, replayed.

The layers together read at least three times the L2, so that a replay finds none of its KV there ("cold"). The graph
repeats them until it runs for a millisecond and a half, because starting a graph takes some ten microseconds, which
three layers of ten microseconds would not hide. The time is the median of many replays, and the spread is (90th - 10th
percentile) / median. A spread above 5 % is measured again with more replays, and is flagged if it stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

COLD_FACTOR = 3  # layers' KV over L2
MAX_LAYERS = 768
MIN_LAYERS = 3
SPREAD_LIMIT = 0.05
MEMORY_SHARE = 0.4  # of the free device memory that the pool may take
FALLBACK_L2_BYTES = 64 * 2**20
MIN_REPLAYS, MAX_REPLAYS, BUDGET_S = 9, 60, 0.06
HASTY_REPLAYS = 4  # at least, where less than BUDGET_S is to be spent
GRAPH_S = 1.5e-3  # of one replay at least
MAX_CALLS = 4096  # in one graph


@dataclass(frozen=True)
class Timed:
    """Seconds per layer. spread: relative. flagged: the spread is above the limit even after a second measurement.

    calls: layers in one graph; every one of `layers` occurs equally often.
    """

    median_s: float
    spread: float
    replays: int
    layers: int
    calls: int
    cold: bool
    flagged: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "median_s": self.median_s, "spread": self.spread, "replays": self.replays, "layers": self.layers,
            "calls": self.calls, "cold": self.cold, "flagged": self.flagged,
        }  # fmt: skip


def layers_needed(read_bytes: int, layer_bytes: int, l2_bytes: int | None, free_bytes: int | None) -> tuple[int, bool]:
    """How many layers the pool takes, and whether they are enough for a cold L2.

    read_bytes: how much of its layer_bytes the launch of a layer reads (less under a window).

    >>> layers_needed(10_000_000, 10_000_000, 62_914_560, None)
    (19, True)
    """
    enough = COLD_FACTOR * (l2_bytes or FALLBACK_L2_BYTES)
    layers = min(max(math.ceil(enough / max(read_bytes, 1)), MIN_LAYERS), MAX_LAYERS)
    if free_bytes is not None:
        layers = max(1, min(layers, int(free_bytes * MEMORY_SHARE) // max(layer_bytes, 1)))
    return layers, layers * read_bytes >= enough


def rounds_needed(layers: int, once_s: float) -> int:
    """How often the graph repeats its layers, when one round takes `once_s`.

    >>> rounds_needed(3, 1e-4), rounds_needed(700, 4e-3)
    (15, 1)
    """
    return max(1, min(math.ceil(GRAPH_S / max(once_s, 1e-6)), MAX_CALLS // layers))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile.

    >>> percentile([3, 1, 2], 0.5)
    2
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def summarise(times_s: Sequence[float]) -> tuple[float, float]:
    """Median and relative spread."""
    median = percentile(times_s, 0.5)
    return median, (percentile(times_s, 0.9) - percentile(times_s, 0.1)) / median if median else 0.0


def captured(call: Callable[[], Any]) -> Any:
    """`call` as a CUDA graph. It must have run once before (compilation cannot be captured)."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def time_layers(per_layer: Callable[[int], Any], layers: int, cold: bool, budget_s: float = BUDGET_S) -> Timed:
    """Seconds per layer of `per_layer(0 … layers - 1)` in one graph. budget_s: about how long it is replayed in all."""

    def graph_of(rounds: int) -> Any:
        def all_layers() -> None:
            for layer in range(rounds * layers):
                per_layer(layer % layers)

        return captured(all_layers)

    per_layer(0)
    graph = graph_of(1)
    once_s = percentile(replay_times(graph, 3), 0.5)
    rounds = rounds_needed(layers, once_s)
    if rounds > 1:
        graph = graph_of(rounds)
        replay_times(graph, 1)
    least = MIN_REPLAYS if budget_s >= BUDGET_S else HASTY_REPLAYS
    count = min(MAX_REPLAYS, max(least, int(budget_s / max(rounds * once_s, 1e-6))))
    median, spread = summarise(replay_times(graph, count))
    if spread > SPREAD_LIMIT:
        count = min(2 * MAX_REPLAYS, 3 * count)
        median, spread = summarise(replay_times(graph, count))
    calls = rounds * layers
    return Timed(median / calls, spread, count, layers, calls, cold, spread > SPREAD_LIMIT)


def replay_times(graph: Any, count: int) -> list[float]:
    """Seconds of each of `count` replays, by events on the device."""
    import torch

    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]
