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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import report_figures  # noqa: E402


@dataclass(frozen=True)
class Figure:
    """One figure: the command that draws it (without -o), and what to see in it. make: drawn by this instead."""

    name: str
    title: str
    command: str
    words: str
    make: Callable[[], bytes] | None = None

    @property
    def argv(self) -> list[str]:
        """Arguments of decodecalc, the output left out."""
        return shlex.split(self.command)

    @property
    def how(self) -> str:
        """What draws it, for its caption."""
        return self.command if self.make else f"decodecalc {shlex.join(self.argv)} -o {self.name}.png"


FIGURES = (
    Figure(
        "occupancy-tp",
        "SM coverage against batch",
        "plot occupancy --model llama3-70b --tp 1,8 --engine vllm-triton --gpu h100-sxm",
        "Above, how many SMs work; below, the split counts that lead there. The split path covers the GPU from batch 1"
        " on one rank; on TP 8 a fixed 16 splits of one KV head reach 12 % of the SMs, and S* says how many would be"
        " needed.",
    ),
    Figure(
        "occupancy-splits",
        "SM coverage against the split count",
        "plot occupancy --against splits --model llama3-8b --batch 1,4,16",
        "S* (dotted, in the colour of its line) is where the first wave is full. It is a coverage heuristic and says"
        " nothing about speed.",
    ),
    Figure(
        "splits",
        "Requested, launched and live splits against context",
        "plot splits --model llama3-8b --engine vllm-triton,sglang-triton,flash-attention-3",
        "Engines answer the same question in different ways: a fixed count, a count that grows and is capped, and a"
        " search over waves.",
    ),
    Figure(
        "segments",
        "One ragged launch, key by key",
        "plot segments --model llama3-8b --seq-lens 257,2560,8192 --engine vllm-triton,sglang-triton",
        "Left, the keys of every request, shaded split by split; right, how many of its splits have keys. Grey ones"
        " were launched and return at once.",
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
        " more than they save. Each engine has a line below the curve, with a point where its rule puts it.",
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
        "The schedule behind a prediction: every SM has a lane, grey where it is idle, and one long request sets the"
        " end.",
    ),
    Figure(
        "gpus",
        "The same workload over GPUs",
        "plot gpus --model llama3-8b --context 8k",
        "Hatched bars are extrapolated from a calibrated GPU, and their intervals say so.",
    ),
)


def measured() -> Iterator[Figure]:
    """Figures of the committed reports."""
    if (ROOT / report_figures.PEERS).exists():
        yield Figure(
            "kernels-vs-peers",
            "The bundled kernel beside its peers",
            "python docs/gallery.py",
            "How many times longer than a plain read of the same bytes each kernel takes: 1 is the memory's own rate."
            f" Measured on one GPU in one run; the numbers are in `{report_figures.PEERS}`.",
            report_figures.peers,
        )
    for name, command in report_figures.latency_commands():
        yield Figure(
            name,
            f"Time against the split count, measured: {' '.join(command.split()[2:-4])}",
            command,
            "Crosses are measurements from the report; the line was predicted without them.",
        )


def available() -> tuple[Figure, ...]:
    """Every figure there is to draw."""
    return (*FIGURES, *measured())


@functools.cache
def draw(figure: Figure) -> bytes:
    """The figure as PNG."""
    if figure.make:
        return figure.make()
    from decodecalc.cli.main import run

    said = io.StringIO()
    argv = [str(ROOT / a) if a.startswith("reports/") else a for a in figure.argv]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        target = Path(folder) / "figure.png"
        if run([*argv, "-o", str(target)]):
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
        out += [f"`{f.how}`", ""]
    return "\n".join(out)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "gallery")
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in figures().items():
        (folder / name).write_bytes(make())
    print(f"wrote {len(figures())} figures to {folder}")
