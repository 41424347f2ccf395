"""Kernels out of a torch profiler trace."""

from __future__ import annotations

from decodecalc.verify.run.profile import observed_kernels


def event(name, ts, grid, block, **args):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "args": {"grid": grid, "block": block, **args}}


def test_the_bundled_kernels_come_in_order_of_start_with_what_cupti_says():
    seen = observed_kernels(
        [
            event("merge_kernel", 20.5, [32, 1, 1], [128, 1, 1]),
            event("void at::native::fill", 5.0, [1, 1, 1], [64, 1, 1]),
            event(
                "stage1_kernel", 10.0, [8, 1, 16], [64, 2, 1], **{"registers per thread": 96, "shared memory": 65536}
            ),
            {"ph": "X", "cat": "cuda_runtime", "name": "stage1_kernel", "ts": 1, "args": {}},
        ]
    )
    assert [(k.role, k.grid, k.threads) for k in seen] == [("stage1", (8, 1, 16), 128), ("merge", (32, 1, 1), 128)]
    assert (seen[0].registers, seen[0].shared_bytes) == (96, 65536)
    assert seen[1].registers is None
