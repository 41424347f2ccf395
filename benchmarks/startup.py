"""Start-up of the main command against bare imports, alternating runs in one environment.

    python -m benchmarks.startup [--runs 15] [-- grid arguments]

Prints the median of both and their ratio; the goal is at most 1.8.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

BASE = [sys.executable, "-c", "import click, rich, numpy"]
MAIN = [sys.executable, "-m", "decodecalc", "grid", "--model", "llama3-8b", "--tp", "8"]


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    # An installed package has its byte code; a variable that keeps it from being written would time the compiler.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Alternate, take medians, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("extra", nargs="*", help="arguments added to the grid command")
    args = parser.parse_args()
    command = [*MAIN, *args.extra]
    seconds(BASE), seconds(command)  # warm the file cache and the byte code
    pairs = [(seconds(BASE), seconds(command)) for _ in range(args.runs)]
    base, ours = (statistics.median(column) for column in zip(*pairs))
    print(f"imports {base * 1e3:.0f} ms, grid {ours * 1e3:.0f} ms, ratio {ours / base:.2f} (goal 1.80)")


if __name__ == "__main__":
    main()
