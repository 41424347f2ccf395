"""The bars that predicted times must meet over a suite."""

from __future__ import annotations

MEAN_BAR = 0.08  # mean absolute relative error
P90_BAR = 0.18  # 90th percentile, and the tolerance of a single row
LARGE_KV_BYTES = 64_000_000  # from here on memory bandwidth rules
REGRET_BAR = 1.05  # time at S_opt over the best time found by trying
INSIDE_BAR = 0.8  # share of the times of engines' own kernels that the 90 % intervals must hold
