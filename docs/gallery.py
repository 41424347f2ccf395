"""The gallery: figures drawn by `decodecalc plot`, from the tool itself and from the committed reports.

`python docs/gallery.py FOLDER` draws all of them into FOLDER; the documentation draws them while it is built.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Figure:
    """One figure: the command that draws it (without -o), and what to see in it."""

    name: str
    title: str
    command: str
    words: str
    report: str | None = None

    @property
    def argv(self) -> list[str]:
        """Arguments of decodecalc, the output left out."""
        measured = f" --measured {self.report}" if self.report else ""
        return shlex.split(self.command + measured)


FIGURES = (
    Figure(
        "occupancy-tp",
        "SM coverage against batch",
        "plot occupancy --model llama3-70b --tps 1,8 --engine vllm-triton --gpu h100-sxm",
        "Thick pale lines: one block per request and KV head. The split path covers the GPU from batch 1 on one rank;"
        " on TP 8 a fixed 16 splits of one KV head reach 12 % of the SMs.",
    ),
    Figure(
        "occupancy-splits",
        "SM coverage against the split count",
        "plot occupancy --against splits --model llama3-8b --batch 1,4,16",
        "S* (dotted) is where the first wave is full. It is a coverage heuristic and says nothing about speed.",
    ),
    Figure(
        "splits",
        "Requested and live splits against context",
        "plot splits --model llama3-8b --engine vllm-triton,sglang-triton,flash-attention-3",
        "Engines answer the same question in different ways: a fixed count, a count that grows and is capped, and a"
        " search over waves.",
    ),
    Figure(
        "segments",
        "One ragged launch, key by key",
        "plot segments --model llama3-8b --seq-lens 257,2560,8192 --engine vllm-triton,sglang-triton",
        "Every request's key ranges. Grey slots at the right are blocks that were launched and return at once.",
    ),
    Figure(
        "merge",
        "Merge traffic against context",
        "plot merge --model llama3-8b --engine vllm-triton,sglang-triton",
        "Partial states are a fixed number of bytes per split, so their share of the KV bytes falls with the context.",
    ),
    Figure(
        "roofline",
        "Where decode attention stands under the roof",
        "plot roofline --model llama3-8b --gpu h100-sxm",
        "Sharing a KV head over more query heads is the only thing here that moves a layer to the right. Splitting"
        " does not: it moves the achieved point up, towards the roof.",
    ),
    Figure(
        "latency",
        "Predicted time against the split count",
        "plot latency --model llama3-70b --tp 8 --gpu h200 --context 32k",
        "The whole trade-off in one curve: latency falls as splits multiply, then partial states and whole waves cost"
        " more than they save. Each engine stands where its rule puts it.",
    ),
    Figure(
        "regret",
        "What a fixed count loses",
        "plot regret --model llama3-70b --tp 8 --gpu h200 --engine vllm-triton",
        "Time under vLLM's rule over the time at S_opt, both on the bundled kernel, so that only the rule differs.",
    ),
    Figure(
        "waves",
        "Blocks on SMs over time",
        "plot waves --model llama3-8b --gpu h200 --seq-lens 512,2048,16384 --engine vllm-triton",
        "The schedule behind a prediction: one long request sets the end.",
    ),
    Figure(
        "gpus",
        "The same workload over GPUs",
        "plot gpus --model llama3-8b --context 8k",
        "Hatched bars are extrapolated from a calibrated GPU, and their intervals say so.",
    ),
)


def available() -> tuple[Figure, ...]:
    """Figures whose report, where they need one, is committed."""
    return tuple(f for f in FIGURES if f.report is None or (ROOT / f.report).exists())


@functools.cache
def draw(figure: Figure) -> bytes:
    """The figure as PNG."""
    from decodecalc.cli.main import run

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        target = Path(folder) / "figure.png"
        if run([*figure.argv, "-o", str(target)]):
            raise SystemExit(f"gallery: decodecalc {shlex.join(figure.argv)}: {said.getvalue()}")
        return target.read_bytes()


def figures() -> dict[str, Callable[[], bytes]]:
    """File name -> a function that draws it."""
    return {f"{figure.name}.png": functools.partial(draw, figure) for figure in available()}


def page() -> str:
    """The gallery's Markdown."""
    out: list[str] = []
    for f in available():
        out += [f"## {f.title}", "", f.words, "", f"![{f.title}](figures/{f.name}.png){{ loading=lazy }}", ""]
        out += [f"`decodecalc {shlex.join(f.argv)} -o {f.name}.png`", ""]
    return "\n".join(out)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "gallery")
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in figures().items():
        (folder / name).write_bytes(make())
    print(f"wrote {len(figures())} figures to {folder}")
