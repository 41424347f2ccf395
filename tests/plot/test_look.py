"""What every figure promises: it is legible, nothing covers anything, and nothing that was asked for is missing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from matplotlib.text import Text

from decodecalc.cli.main import run
from decodecalc.cli.plot import command
from decodecalc.engines.registry import engine_names
from decodecalc.errors import DecodecalcError, InputError
from decodecalc.plot import FIGURES, draw
from decodecalc.plot.drawing import MORE, Drawn, draw_words
from decodecalc.plot.style import DARK, LIGHT, MOST_STYLES, SIZES, figure_bytes, line_style
from decodecalc.request import UNSAID

# One request a figure in which several things differ, so that panels, labels and keys are all there.
BUSY: dict[str, dict[str, Any]] = {
    "occupancy": {"model": "llama3-70b", "tp": (1, 8), "engine": "vllm-triton,sglang-triton", "batch": 4},
    "splits": {"model": "gemma3-27b", "engine": "vllm-triton,flash-attention-3,flashinfer", "gpu": "h200"},
    "segments": {"seq_lens": "257,2560,8192", "engine": "vllm-triton,sglang-triton,flash-attention-3"},
    "waves": {"model": "llama3-70b", "tp": 8, "engine": "vllm-triton,flash-attention-3"},
    "roofline": {"gpu": "h100-sxm,a100", "engine": "vllm-triton", "batch": "1,8"},
    "merge": {"engine": "vllm-triton,sglang-triton,flashinfer,flash-attention-3"},
    "latency": {"model": "llama3-70b", "tp": 8, "gpu": "h200", "context": "8k,32k"},
    "regret": {"engine": "vllm-triton,sglang-triton", "gpu": "h200"},
    "gpus": {"engine": "bundled,vllm-triton"},
}
ASKED = [(name, "busy", size) for name in FIGURES for size in SIZES] + [(name, "plain", "column") for name in FIGURES]
asked = pytest.mark.parametrize(("name", "words", "size"), ASKED, ids=["-".join(case) for case in ASKED])
figures = pytest.mark.parametrize("name", FIGURES)


@functools.cache
def made(name: str, words: str = "busy", size: str = "column", dark: bool = False) -> Drawn:
    """A figure that several tests look at."""
    return draw_words(name, {**(BUSY[name] if words == "busy" else {}), "size": size, "dark": dark})


def texts(drawn: Drawn) -> list[Text]:
    """Every text that is seen; drawn first, so that ticks are where they will be."""
    drawn.fig.draw_without_rendering()
    found = [text for text in drawn.fig.findobj(Text) if text.get_visible() and text.get_text().strip()]
    shown = [tick for ax in drawn.fig.axes for axis in (ax.xaxis, ax.yaxis) for tick in _ticks(axis)]
    ticks = {id(label) for ax in drawn.fig.axes for axis in (ax.xaxis, ax.yaxis)
             for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)}  # fmt: skip
    return [text for text in found if id(text) not in ticks] + shown


def _ticks(axis: Any) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label1
        for tick in axis.get_major_ticks()
        if tick.label1.get_visible() and tick.label1.get_text() and low <= tick.get_loc() <= high
    ]


@asked
def test_no_two_labels_overlap_and_none_is_cut(name: str, words: str, size: str) -> None:
    """The boxes of all texts, as the renderer measures them, are apart and inside the figure, at every size."""
    drawn = made(name, words, size)
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts(drawn)]
    room = drawn.fig.bbox
    for text, box in boxes:
        assert box.x0 >= room.x0 - 2, text
        assert box.x1 <= room.x1 + 2, text
        assert box.y0 >= room.y0 - 2, text
        assert box.y1 <= room.y1 + 2, text
    slack = 0.12 * drawn.fig.dpi * SIZES[size].font / 72  # a box is taller than its letters
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide <= slack or high <= slack, (one, other)


@asked
def test_every_text_has_at_least_8_points(name: str, words: str, size: str) -> None:
    """At the size of a paper's column too."""
    drawn = made(name, words, size)
    assert min(text.get_fontsize() for text in texts(drawn)) >= 8
    assert drawn.fig.get_size_inches()[0] == SIZES[size].width


@pytest.mark.parametrize("dark", [False, True])
@figures
def test_no_two_series_look_the_same(name: str, dark: bool) -> None:
    """On one pair of axes, (colour, dash, marker, fill) is another for every series with a name of its own."""
    for ax in made(name, dark=dark).fig.axes:
        looks: dict[Any, str] = {}
        for line in ax.get_lines():
            if not str(line.get_label()).startswith("_"):
                look = (line.get_color(), str(line._dash_pattern), line.get_marker(), line.get_fillstyle())  # type: ignore[attr-defined]
                assert looks.setdefault(look, str(line.get_label())) == line.get_label()


def test_styles_do_not_repeat() -> None:
    """All styles that there are differ in colour, dash or marker; neighbours differ in all three."""
    for theme in (LIGHT, DARK):
        made = [line_style(i, theme) for i in range(MOST_STYLES)]
        assert len({(s["color"], str(s["linestyle"]), s["marker"]) for s in made}) == MOST_STYLES
        for a, b in itertools.pairwise(made):
            assert a["color"] != b["color"]
            assert a["linestyle"] != b["linestyle"]
            assert a["marker"] != b["marker"]


@figures
def test_title_is_one_question_and_the_scenario_stands_under_it(name: str) -> None:
    """The question is that of `FIGURES`; below it stands what all panels have in common."""
    title, scenario, *_ = (text.get_text().replace("\n", " ") for text in made(name).fig.texts)
    assert title == FIGURES[name]
    assert title.endswith("?")
    assert "KV bf16, page 16" in scenario
    assert BUSY[name].get("model", "llama3-8b") in scenario


def test_a_title_takes_the_questions_place() -> None:
    """As it stands: a dollar sign begins no formula."""
    assert draw_words("splits", {"title": "Mine $x$"}).fig.texts[0].get_text() == "Mine $x$"


def said_anywhere(drawn: Drawn) -> str:
    """All words that a reader gets: in the figure, and the sentences beside it."""
    words = [text.get_text() for text in texts(drawn)]
    return " ".join(" ".join([*words, *drawn.said]).split())


def lists(values: Sequence[Any], most: int) -> Any:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


# Every example is a figure or several seconds of one: without the search for a smaller failing one.
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    name=st.sampled_from(list(FIGURES)),
    engines=lists(engine_names(), 4),
    batches=lists(("1", "3", "16"), 2),
    contexts=lists(("512", "3000", "16k"), 2),
    q_lens=lists(("1", "2"), 2),
    models=lists(("llama3-8b", "gemma3-27b"), 2),
    gpus=lists(("h200-sxm", "a100-sxm"), 2),
    tps=lists((1, 2), 2),
)
def test_everything_asked_for_is_drawn_or_refused(name: str, **words: list[Any]) -> None:
    """Whatever lists a user gives, each entry is named in the figure or in a sentence, has rows behind it, or the whole
    is refused with a reason; nothing is the first of a list in silence."""
    names = {"engine": "engines", "batch": "batches", "context": "contexts", "q_len": "q_lens", "model": "models",
             "gpu": "gpus"}  # fmt: skip
    try:
        drawn = draw_words(name, {option: words[key] for option, key in names.items()} | {"tp": words["tps"]})
    except DecodecalcError:
        return  # the whole is refused with a sentence
    read = said_anywhere(drawn)
    refused = {engine for engine in words["engines"] if any(engine in line for line in drawn.said)}
    for engine in words["engines"]:
        assert engine in read
        assert engine in refused or any(row.get("engine") == engine for row in drawn.rows)
    if refused:
        return  # an engine refuses some steps only: those are in the sentences
    for value in (*words["models"], *words["gpus"]):
        assert value in read
    rows = [row for row in drawn.rows if row.get("engine")]
    assert {row["tp"] for row in rows} == set(words["tps"])
    assert {row["q_len"] for row in rows} >= set(map(int, words["q_lens"]))
    assert {row["batch"] for row in rows} >= set(map(int, words["batches"]))
    assert {row["context"] for row in rows} >= {int(c.replace("16k", "16384")) for c in words["contexts"]}
    if name != "gpus":  # which adds the layers up
        for model, groups in (("llama3-8b", 1), ("gemma3-27b", 2)):
            assert (
                model not in words["models"] or len({r["layer_group"] for r in rows if r["model"] == model}) == groups
            )


def test_the_only_engine_with_a_prediction_is_named() -> None:
    """Two engines have no calibration: the points are the third one's, and say so."""
    engines = ["paged-attention-v1", "paged-attention-v2", "sglang-triton"]
    drawn = draw_words("roofline", {"engine": engines, "gpu": "a100-sxm", "model": "llama3-8b", "batch": ["3", "16"]})
    assert "sglang-triton" in said_anywhere(drawn)


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("splits", {"seq_lens": "128,8192"}, "instead of --seq-lens"),
        ("regret", {"seq_lens": "128,8192"}, "draw latency"),
        ("occupancy", {"against": "splits", "engine": "vllm-triton"}, "leave --engine out"),
        ("waves", {"against": "batch"}, "--against is for figures of lines"),
        ("merge", {"measured": "x.json"}, "not by merge"),
        ("splits", {"engine": "all", "batch": "1,2,3,4"}, "panels"),
        ("segments", {"batch": 65}, "at most 64 requests"),
        ("gpus", {"gpu": "h300"}, "h300"),
        ("occupancy", {"colour": "red"}, "colour"),
        ("pie", {}, "figure"),
        ("occupancy", {"size": "poster"}, "slide, page, column"),
        (
            "occupancy",
            {"gpu": "h200,h100", "tp": (1, 2, 4, 8), "kv_dtype": "bf16,fp8", "page_size": range(16, 96, 16)},
            "combinations",
        ),
    ],
)
def test_what_a_figure_cannot_draw_is_refused(name: str, words: dict[str, Any], reason: str) -> None:
    """With a sentence that says what would work."""
    with pytest.raises(InputError, match=reason):
        draw_words(name, words)


def test_idle_sms_have_their_lane() -> None:
    """`waves` runs over all SMs of the GPU, and says how many of them get nothing."""
    drawn = draw_words("waves", {"model": "llama3-70b", "tp": 8, "gpu": "h200"})
    (axes,) = drawn.fig.axes
    assert axes.get_ylim() == (0, 132)
    busy = {row["sm"] for row in drawn.rows}
    assert f"{132 - len(busy)} SMs idle" in said_anywhere(drawn)
    assert f"on {len(busy)} of 132 SMs" in said_anywhere(drawn)


@figures
def test_figures_are_deterministic(name: str) -> None:
    """The same request gives the same bytes, as SVG and as PNG."""
    one, two = made(name), draw_words(name, {**BUSY[name], "size": "column"})
    assert figure_bytes(one.fig, "svg") == figure_bytes(two.fig, "svg")
    assert figure_bytes(one.fig, "png", 72) == figure_bytes(two.fig, "png", 72)


@figures
def test_dark_figures_have_dark_ground_and_light_text(name: str) -> None:
    """No text has the colour of a light figure's ink."""
    from matplotlib.colors import to_hex

    drawn = made(name, dark=True)
    assert to_hex(drawn.fig.get_facecolor()) == DARK.paper.lower()
    light = {colour.lower() for colour in (DARK.ink, DARK.quiet, *DARK.colors)}
    cells = {"#000000"} if name == "regret" else set()  # numbers on light cells
    assert {to_hex(text.get_color()) for text in texts(drawn)} <= light | cells


def test_a_notebook_gets_matplotlib_axes() -> None:
    """`draw` takes the command's options as words and lists, and returns the axes."""
    from matplotlib.axes import Axes

    axes = draw("splits", model="llama3-8b", engine=["vllm-triton", "sglang-triton"], batch=[1, 8], size="page")
    assert len(axes) == 4
    assert all(isinstance(ax, Axes) for ax in axes)
    assert {ax.figure for ax in axes} == {axes[0].figure}
    assert sorted("batch 8" in ax.get_title("left").replace("\n", " ") for ax in axes) == [False, False, True, True]


def test_words_of_the_command_and_of_a_notebook_are_the_same() -> None:
    """Every option of `decodecalc plot` is a word of `draw` with the same default, but for those about files."""
    context = command.make_context("plot", ["splits"])
    assert {k: v for k, v in context.params.items() if k not in ("figure", "data", "output", "dpi")} == {
        **UNSAID,
        **MORE,
    }


def test_dpi_sets_the_pixels_of_a_png(tmp_path: Path) -> None:
    """Pixels are inches times dpi; a column has 300 by itself."""
    from matplotlib.image import imread

    for argv, dpi in ((["--dpi", "72"], 72), ([], 300)):
        target = tmp_path / f"{dpi}.png"
        assert run(["plot", "splits", "--size", "column", *argv, "-o", str(target)]) == 0
        assert imread(target).shape[1] == pytest.approx(3.4 * dpi, abs=1)
    assert run(["plot", "splits", "--dpi", "5", "-o", str(tmp_path / "x.png")]) == 2
