"""What the two guides teach works: their own text makes an engine and a model type, which the whole project takes."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import lawful
import pytest

import decodecalc as dc
from decodecalc.cost.prediction import predict
from decodecalc.drift.package import packages
from decodecalc.engines.registry import Entry, also, load_policy
from decodecalc.errors import GateError, InputError, UnknownNameError
from decodecalc.trace.load import knowledge

ROOT = Path(__file__).parents[2]
GPU = "h100-sxm"
LLAMA = dc.Geometry(32, 8, 128)


def load(path: Path) -> ModuleType:
    """A Python file as a module that nobody else sees."""
    spec = importlib.util.spec_from_file_location(f"guide_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Guide(NamedTuple):
    """A guide whose files lie in `folder` and whose lines are in the package."""

    folder: Path
    blocks: list[Any]


@contextlib.contextmanager
def followed(docs_module: Any, name: str, folder: Path) -> Iterator[Guide]:
    """The guide's files written and its lines added, as a reader would."""
    doc = docs_module("blocks")
    blocks = doc.blocks(ROOT / "docs" / "howto" / f"{name}.md")
    with ExitStack() as added:
        for block in blocks:
            if (block.file or block.add) and not block.is_missing:
                doc.place(block, folder, added)
        yield Guide(folder, blocks)


@pytest.fixture(scope="module")
def engine(docs_module: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guide]:
    """The toy engine of the guide on engines, registered."""
    with followed(docs_module, "add-engine", tmp_path_factory.mktemp("engine")) as guide:
        places = load(guide.folder / "tests" / "engines" / "thousand" / "laws.py")
        lawful.laws().update(places.LAWS)
        yield guide
        del lawful.laws()["thousand"]


@pytest.fixture
def model(docs_module: Any, tmp_path: Path) -> Iterator[Guide]:
    """The model type of the guide on model types, known."""
    with followed(docs_module, "add-model-type", tmp_path) as guide:
        yield guide


def command(*argv: str) -> list[dict[str, Any]]:
    """Rows of a command that has to succeed."""
    from decodecalc.cli.main import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*argv, "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(out.getvalue())["rows"]
    return rows


def test_the_toy_engine_is_planned(engine: Guide) -> None:
    """One split for every 1024 keys, tiles of 64, and the merge only where something is split."""
    plan = dc.plan("thousand", LLAMA, dc.Batch([2560, 900]), gpu=GPU)
    assert plan.splits.live == (3, 1)
    assert (plan.stage1.grid, plan.stage1.tile_keys) == ((2, 8, 3), 64)
    assert plan.merge is not None
    assert dc.plan("thousand", LLAMA, dc.Batch([900]), gpu=GPU).merge is None
    assert dc.plan("thousand@1", LLAMA, dc.Batch([2560]), gpu=GPU, split_keys=100).splits.live == (26,)
    with pytest.raises(GateError, match="MLA"):
        dc.plan("thousand", dc.Geometry(16, 1, 576, 512, mla=True), dc.Batch([64]), gpu=GPU)


def test_the_toy_engine_is_in_the_commands(engine: Guide) -> None:
    """grid, predict and choose take it like any other, `all` includes it."""
    asked = ("--model", "llama3-8b", "--context", "8k", "--gpu", "h200")
    (row,) = command("grid", *asked, "--engine", "thousand")
    assert (row["grid"], row["splits_live"]) == ([1, 8, 8], 8)
    (timed,) = command("predict", *asked, "--engine", "thousand", "--kernel", "bundled")
    assert timed["total_s"] > 0
    assert any(r["engine"] == "thousand" for r in command("grid", *asked, "--engine", "all"))
    assert any(r.get("engine") == "thousand" for r in command("choose", *asked, "--engine", "thousand"))


def test_the_toy_engine_is_predicted(engine: Guide) -> None:
    """A step of twice the requests takes no less time, and each no less than the roofline."""
    few, many = (
        predict(dc.plan("thousand", LLAMA, dc.Batch.uniform(b, 8192), gpu="h200"), kernel="bundled") for b in (8, 16)
    )
    assert few.roofline_s is not None
    assert few.roofline_s <= few.total_s <= many.total_s


def test_a_made_trace_of_the_toy_engine_is_a_match(engine: Guide, tmp_path: Path) -> None:
    """Its own launch passes the audit; a grid with one split more does not."""
    from decodecalc.cli.main import run

    plan = dc.plan("thousand", LLAMA, dc.Batch([2560, 900]), gpu=GPU)
    assert knowledge().recognise("thousand_kernel") is not None
    codes = []
    for more in (0, 1):
        events = [
            {
                "ph": "X", "cat": "kernel", "name": k.name, "ts": 100 * i, "dur": 20,
                "args": {"device": 0, "stream": 7, "grid": [*k.grid[:2], *(e + more for e in k.grid[2:]), 1, 1][:3],
                         "block": [k.threads, 1, 1]},
            }
            for i, k in enumerate(plan.kernels)
        ]  # fmt: skip
        path = tmp_path / f"{more}.json"
        path.write_text(json.dumps({"traceEvents": events}))
        with contextlib.redirect_stdout(io.StringIO()):
            codes.append(run(["audit", str(path), "--model", "llama3-8b", "--seq-lens", "2560,900", "--gpu", GPU]))
    assert codes == [0, 1]


LAWS = load(ROOT / "tests" / "engines" / "test_every_policy.py")
TAKES = load(ROOT / "tests" / "engines" / "test_takes.py")
OF_A_VERSION = [
    (f"{module.__name__}.{name}", law)
    for module in (LAWS, TAKES)
    for name, law in vars(module).items()
    if name.startswith("test_") and {"name", "version"} <= set(inspect.signature(law).parameters)
]


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("law", [law for _, law in OF_A_VERSION], ids=[name for name, _ in OF_A_VERSION])
def test_the_toy_engine_obeys_the_laws_of_every_policy(engine: Guide, law: Any, version: str) -> None:
    """The properties that each version of each registered engine is held to."""
    law(name="thousand", version=version)


def test_the_laws_are_many() -> None:
    """The search above finds them."""
    assert len(OF_A_VERSION) >= 10


def test_the_laws_catch_a_wrong_toy_engine(engine: Guide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live split behind the last key is found. Every request shows it, so that the examples cannot miss it."""
    policy = load_policy("thousand")
    launches = type(policy).launches

    def one_more(self: Any, *given: Any) -> Any:
        found = launches(self, *given)
        return replace(found, requested=found.requested + 1, launched=found.launched + 1, live=found.live + 1)

    monkeypatch.setattr(type(policy), "launches", one_more)
    with pytest.raises(AssertionError):
        LAWS.test_live_splits_tile_the_visible_keys_once(name="thousand", version="2")


def test_the_guides_recording_is_matched_by_its_adapter(engine: Guide) -> None:
    """The adapter of the page holds the recording of the page against the policy of the page."""
    adapter = load(engine.folder / "tests" / "golden" / "test_thousand.py")
    recorded = json.loads((engine.folder / "tests" / "data" / "golden" / "thousand.public.json").read_text())

    def check(out: dict[str, Any], ours: dict[str, Any], left_out: dict[str, str]) -> None:
        assert ours == {key: value for key, value in out.items() if key not in left_out}

    for case in recorded["cases"]:
        adapter.test_plans_what_it_launches({**case, "version": recorded["version"]}, check)


def test_the_guides_sources_and_runner_are_found_by_being_there(engine: Guide) -> None:
    """The package that the policy follows is listed, and so is the runner, which says that it is not installed."""
    assert "thousand" in [package.name for package in packages()]
    if importlib.util.find_spec("decodecalc.verify.own") is not None:
        from decodecalc.verify.own.runner import runners_here

        assert runners_here()["thousand"].found is None


def test_an_engine_is_listed_only_as_long_as_the_context_lasts(tmp_path: Path) -> None:
    """Afterwards its name is unknown again, and no second engine can take a name."""
    folder = tmp_path / "engines" / "passing"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "policy.py").write_text("from decodecalc.engines.textbook.flash_decoding import POLICY\n")
    with also(Entry("passing", "engines.passing.policy"), folder.parent):
        assert load_policy("passing").name == "flash-decoding"
    with pytest.raises(UnknownNameError):
        load_policy("passing")
    with pytest.raises(InputError, match="already"), also(Entry("flash-decoding", "engines.passing.policy")):
        pass


def test_the_new_model_type_is_read(model: Guide) -> None:
    """Layers and heads are what the guide says, and what it expects in the form of tests/data/configs."""
    facts = load(ROOT / "tests" / "models" / "test_configs.py")
    config = json.loads((model.folder / "ring-7b" / "config.json").read_text())
    facts.test_facts(config, json.loads((model.folder / "expected.json").read_text()))
    found = dc.load_model(config)
    assert [(g.name, g.layers, g.geometry.window) for g in found.layer_groups] == [
        ("sliding", 6, 1024),
        ("full", 2, None),
    ]
    assert found.warnings == ()


def test_the_new_model_type_is_planned_and_predicted(model: Guide) -> None:
    """A folder with its configuration is a model of every command."""
    asked = ("--model", str(model.folder / "ring-7b"), "--context", "8k", "--engine", "flash-decoding")
    assert [r["layer_group"] for r in command("grid", *asked)] == ["sliding", "full"]
    assert dc.token_time(dc.load_model(model.folder / "ring-7b"), dc.Batch([8192]), gpu="h200").total_s > 0


def test_the_model_type_is_unknown_without_the_guides_lines(tmp_path: Path, docs_module: Any) -> None:
    """The lines of the page are what makes the difference: they are gone when the page ends."""
    with followed(docs_module, "add-model-type", tmp_path):
        dc.load_model(tmp_path / "ring-7b")
    with pytest.raises(dc.ModelConfigError, match="ring_attention"):
        dc.load_model(tmp_path / "ring-7b")
