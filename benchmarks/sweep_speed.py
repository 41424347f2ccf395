"""Scenarios per second of a sweep, one core, whole-array, nothing written.

    python -m benchmarks.sweep_speed [--engine vllm-triton,sglang-triton] [--seconds 3]

Goals: 1 000 000 a second for grid, splits, coverage and traffic; 300 000 with predicted time.
"""

from __future__ import annotations

import argparse
import time

from decodecalc.gpus import load_gpu
from decodecalc.models import load_model
from decodecalc.sweeps import Axes, sweep

LAUNCH = (
    *("launched_blocks", "live_blocks", "unsplit_blocks", "sm_coverage", "waves", "s_star"),
    *("splits_requested", "splits_launched", "splits_live", "kv_read_bytes", "partial_traffic_bytes", "partial_share"),
)


def rate(engine: str, columns: tuple[str, ...], seconds: float) -> float:
    """Scenarios per second of one engine over two models, three TP degrees, two GPUs, 256 batches and 400 contexts."""
    axes = Axes(
        models=(load_model("llama3-8b"), load_model("llama3-70b")),
        tps=(1, 4, 8),
        gpus=(load_gpu("h100-sxm"), load_gpu("h200-sxm")),
        engines=(engine,),
        batches=tuple(range(1, 257)),
        contexts=tuple(range(128, 128 * 401, 128)),
    )
    done, start = 0, time.perf_counter()
    for _, chunk in sweep(axes):
        for name in columns:
            chunk.full(name)
        done += chunk.size
        if time.perf_counter() - start > seconds:
            break
    return done / (time.perf_counter() - start)


def main() -> None:
    """One line per engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm-triton,sglang-triton,flash-attention-3,flashinfer,flash-decoding")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--no-time", action="store_true", help="leave the predicted time out")
    args = parser.parse_args()
    for engine in args.engine.split(","):
        line = f"{engine:20s} {rate(engine, LAUNCH, args.seconds) / 1e6:6.2f} M/s launches"
        if not args.no_time:
            line += f", {rate(engine, (*LAUNCH, 'total_s'), args.seconds) / 1e6:6.2f} M/s with time"
        print(line, flush=True)


if __name__ == "__main__":
    main()
