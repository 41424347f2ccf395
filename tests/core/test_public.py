"""The public face: every name is there, typed, documented, and refuses what it cannot take in words."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import decodecalc as dc
from decodecalc import _HOME
from decodecalc.analysis.roofline import TileWork
from decodecalc.cost.choice import CurvePoint, Regret
from decodecalc.tables.table import Table

ROOT = Path(__file__).parents[2]
CONSUMER = Path(__file__).with_name("consumer.py")
EXPORTED = [getattr(dc, name) for name in sorted(dc.__all__) if dataclasses.is_dataclass(getattr(dc, name))]
VALUES = [*EXPORTED, TileWork, CurvePoint, Regret]  # the last three lie inside exported values


def test_the_three_lists_of_public_names_agree() -> None:
    """`__all__`, the table of homes and the imports for type checkers name the same things."""
    tree = ast.parse((ROOT / "decodecalc" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(_HOME) == set(dc.__all__) - {"__version__"}
    assert all(getattr(dc, name) is not None for name in dc.__all__)


def test_a_consumer_touches_every_public_name() -> None:
    """The file that the type checker reads leaves no public name out."""
    tree = ast.parse(CONSUMER.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(dc.__all__) - used == set()


def test_the_public_face_is_typed(tmp_path: Path) -> None:
    """A strict type checker accepts a user's code that touches every public name, and meets no Any in it.

    Tables and plain dictionaries are left out of the second check: what they hold is Any by nature.
    """
    pytest.importorskip("mypy")
    text = CONSUMER.read_text(encoding="utf-8")
    plain = tmp_path / "consumer_without_tables.py"
    plain.write_text("# mypy: disallow-any-expr\n" + text[: text.index("def tables")], encoding="utf-8")
    flags = ["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    command = [sys.executable, "-m", "mypy", *flags, str(CONSUMER), str(plain)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_value_objects_have_their_own_signature_and_a_doc_under_every_field(cls: type) -> None:
    """`help()` of a value object names its fields, and its source documents each of them."""
    named = {field.name for field in dataclasses.fields(cls)}
    assert named == set(inspect.signature(cls).parameters)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    missing = [
        node.target.id
        for node, after in zip(tree.body, [*tree.body[1:], None])
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert missing == []


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_value_objects_are_frozen(cls: type) -> None:
    """No public value changes after it was made."""
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


STEP = dc.Geometry(q_heads=4, kv_heads=1, head_dim=128), dc.Batch([128])
WRONG: dict[str, Callable[[], object]] = {
    "plan of a model": lambda: dc.plan("vllm-triton", dc.load_model("llama3-8b"), STEP[1]),
    "plan of a rank": lambda: dc.plan("vllm-triton", dc.load_model("llama3-8b").shard(1), STEP[1]),
    "plan of a list": lambda: dc.plan("vllm-triton", STEP[0], [128]),
    "plan with a dtype as cache": lambda: dc.plan("vllm-triton", *STEP, kv="bf16"),
    "plan with a number as engine": lambda: dc.plan(3, *STEP),
    "plan with a number as GPU": lambda: dc.plan("vllm-triton", *STEP, gpu=5),
    "predict of a geometry": lambda: dc.predict(STEP[0]),
    "predict with a path as calibration": lambda: dc.predict(dc.plan("vllm-triton", *STEP), calibration="h200.json"),
    "predict with a number as GPU": lambda: dc.predict(dc.plan("vllm-triton", *STEP), 7),
    "token time of a rank": lambda: dc.token_time(dc.load_model("llama3-8b").shard(1), STEP[1]),
    "token time of a list": lambda: dc.token_time("llama3-8b", [128]),
    "token time with a number as engine": lambda: dc.token_time("llama3-8b", STEP[1], engine=3),
    "choose of a model": lambda: dc.choose(dc.load_model("llama3-8b"), STEP[1]),
    "choose with a number as batch": lambda: dc.choose(STEP[0], 5),
    "choose with a path as calibration": lambda: dc.choose(*STEP, calibration="h200.json"),
    "choose with one engine's name": lambda: dc.choose(*STEP, engines="vllm-triton"),
    "occupancy of a name": lambda: dc.occupancy("vllm-triton"),
    "occupancy with a number as GPU": lambda: dc.occupancy(dc.plan("vllm-triton", *STEP), 132),
    "traffic of a list": lambda: dc.traffic([1]),
    "segments of a batch": lambda: list(dc.segments(STEP[1])),
    "roofline of None": lambda: dc.roofline(None),
    "roofline with a list as GPU": lambda: dc.roofline(dc.plan("vllm-triton", *STEP), [1]),
    "paging of a batch": lambda: dc.paging(STEP[1]),
    "paging with a dtype as cache": lambda: dc.paging(dc.plan("vllm-triton", *STEP), "fp8"),
    "step of a list": lambda: dc.step("llama3-8b", [128]),
    "audit of a number": lambda: dc.audit(3),
    "report of a number": lambda: dc.read_report(3),
    "figure of a number": lambda: dc.figure(3),
    "table of a number": lambda: dc.table(3),
    "sweep of a dict": lambda: list(dc.sweep({})),
    "load_model of a number": lambda: dc.load_model(3),
    "load_gpu of a list": lambda: dc.load_gpu([1]),
    "load_calibration with a number as GPU": lambda: dc.load_calibration(gpu=5),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_type_is_refused_in_words(call: Callable[[], object]) -> None:
    """A public function that is given the wrong kind of object says what it wants; no AttributeError reaches a user."""
    with pytest.raises(dc.InputError, match=r" must be (an? |one of |the )?\w+"):
        call()


def test_a_gpu_is_taken_by_name_wherever_one_is_taken() -> None:
    """The analysis of a plan on another GPU accepts the GPU's name as planning does."""
    plan = dc.plan("vllm-triton", *STEP, gpu="h100-sxm")
    other = dc.load_gpu("a100")
    assert dc.occupancy(plan, "a100") == dc.occupancy(plan, other) != dc.occupancy(plan)
    assert dc.roofline(plan, "a100") == dc.roofline(plan, other) != dc.roofline(plan)


def test_a_table_shows_itself_in_a_notebook() -> None:
    """A table is an HTML table, with what it holds escaped, and a frame with one row each."""
    table = Table("grid", {}, [{"engine": "<b>mine</b>", "splits": 4}, {"engine": "other", "splits": None}])
    assert table._repr_html_() == (
        "<table><caption>grid</caption><tr><th>engine</th><th>splits</th></tr>"
        "<tr><td>&lt;b&gt;mine&lt;/b&gt;</td><td>4</td></tr><tr><td>other</td><td>-</td></tr></table>"
    )
    assert table.to_frame()["engine"].tolist() == ["<b>mine</b>", "other"]
