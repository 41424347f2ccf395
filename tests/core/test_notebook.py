"""What a notebook shows: every public value as a table, and the notebook of the documentation, which runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import decodecalc as dc

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "data" / "traces" / "h200_b.json.gz"
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
GEO, BATCH = dc.Geometry(q_heads=32, kv_heads=8, head_dim=128), dc.Batch([128, 8192])


@cache
def plan() -> dc.LaunchPlan:
    """One plan for all examples."""
    return dc.plan("vllm-triton", GEO, BATCH, gpu="h200")


def sparse() -> dc.Gather:
    """The gather of a sparse model's layers."""
    groups = dc.load_model("deepseek-v3.2").layer_groups
    return next(group.geometry.gather for group in groups if group.geometry.gather is not None)


# An example of every public class, made as a user makes it.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "Audit": lambda: dc.audit(TRACE, model="llama3-70b", tp=8, seq_lens=[32768]),
    "Axes": lambda: dc.Axes((dc.load_model("llama3-8b"),), (1,), (dc.load_gpu("h200"),), ("vllm-triton",), (1,), (9,)),
    "Batch": lambda: BATCH,
    "Calibration": lambda: dc.load_calibration(gpu="h200"),
    "Choice": lambda: dc.choose(GEO, BATCH, gpu="h200"),
    "Drawn": lambda: dc.figure("occupancy", model="llama3-8b", tp=8),
    "Gate": lambda: plan().gates[0],
    "Gather": sparse,
    "Geometry": lambda: GEO,
    "Gpu": lambda: dc.load_gpu("h200"),
    "Indexer": lambda: sparse().indexer,
    "KernelLaunch": lambda: plan().stage1,
    "KvCache": lambda: plan().kv,
    "LaunchPlan": plan,
    "LayerGroup": lambda: dc.load_model("llama3-8b").layer_groups[0],
    "Model": lambda: dc.load_model("llama3-8b"),
    "Occupancy": lambda: dc.occupancy(plan()),
    "Paging": lambda: dc.paging(plan()),
    "Prediction": lambda: dc.predict(plan()),
    "RankModel": lambda: dc.load_model("llama3-8b").shard(2),
    "Report": lambda: dc.read_report(str(ROOT / "reports" / "h200" / "verify.json")),
    "Roofline": lambda: dc.roofline(plan()),
    "Segment": lambda: next(iter(dc.segments(plan()))),
    "Splits": lambda: plan().splits,
    "Step": lambda: dc.step("llama3-8b", BATCH, gpu="h200"),
    "StepFloor": lambda: dc.step("llama3-8b", BATCH, gpu="h200").floor,
    "Table": lambda: dc.table("grid", model="llama3-8b", gpu="h200"),
    "TokenTime": lambda: dc.token_time("llama3-8b", BATCH, gpu="h200"),
    "Traffic": lambda: dc.traffic(plan()),
}


class Cells(HTMLParser):
    """The rows of a table, and whether every tag was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_public_class_has_an_example() -> None:
    """A class that is added to the public names has to be shown here too."""
    classes = [name for name in dc.__all__ if isinstance(getattr(dc, name), type)]
    assert sorted(EXAMPLES) == sorted(n for n in classes if not issubclass(getattr(dc, n), Exception))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_public_value_is_a_table_in_a_notebook(name: str) -> None:
    """It shows a table whose rows are alike, and becomes a frame with at least one row."""
    value = EXAMPLES[name]()
    assert type(value) is getattr(dc, name)
    if name == "Drawn":  # a picture
        assert value._repr_png_().startswith(b"\x89PNG")
        assert all(ax.figure is value.fig for ax in value.axes)
        assert len(value.to_frame()) == len(value.rows)
        return
    cells = Cells()
    cells.feed(value._repr_html_())
    assert cells.open == []
    assert cells.rows
    assert len(set(cells.rows)) == 1
    assert len(value.to_frame()) >= 1


def test_times_and_bytes_carry_their_units_in_a_notebook() -> None:
    """A reader sees microseconds and gigabytes, not powers of ten."""
    shown = dc.predict(plan())._repr_html_()
    assert "µs</td>" in shown
    assert "e-06" not in shown
    assert "TB/s</td>" in dc.load_gpu("h200")._repr_html_()


def test_an_answer_with_a_sentence_shows_it_first() -> None:
    """The verdict of an audit and of a report, and the line of a prediction, stand above their tables."""
    for name in ("Audit", "Report", "Prediction", "Step"):
        value = EXAMPLES[name]()
        caption = value._repr_html_().partition("</caption>")[0]
        first = str(value).split(";")[0].split("'")[0]
        assert first in caption


def test_a_failure_comes_first_in_a_frame() -> None:
    """Rows that failed stand above those that passed."""
    verdicts = EXAMPLES["Report"]().to_frame()["verdict"].tolist()
    assert verdicts[0] == "fail"
    assert verdicts.index("off") < verdicts.index("pass")


def test_the_notebook_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs in a fresh kernel, in the folder that the notebook lies in, and shows what it ends in."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "strip the outputs"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *map(os.path.abspath, filter(None, sys.path))]))
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    for cell in code:
        if not cell.source.rstrip().endswith(";") and "import" not in cell.source.splitlines()[0]:
            kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
            assert kinds & {"text/html", "image/png", "image/svg+xml"}, cell.source
