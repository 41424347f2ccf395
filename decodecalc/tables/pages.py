"""The page of a command's table: the answer, the figure, the table, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decodecalc._version import __version__
from decodecalc.tables.html import Figure, Origin, Section, page
from decodecalc.tables.table import Table
from decodecalc.units import human_rate

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu
    from decodecalc.models import Model


def table_page(
    table: Table,
    command: str,
    figures: Sequence[Figure] = (),
    *,
    about: Sequence[tuple[Model | None, Gpu | None]] = (),
) -> str:
    """The table as a page. command: what to type to make it again; about: the model and the GPU of every scenario."""
    heading = list(table.heading)
    title = f"decodecalc {table.command}: {heading[0]}" if heading else f"decodecalc {table.command}"
    shown = replace(table, heading=heading[1:])
    section = Section("", shown, figures=figures)
    origin = Origin(command, origin_of(table, about))
    return page(title, [section], answer=table.answer, origin=origin)


def origin_of(table: Table, about: Sequence[tuple[Model | None, Gpu | None]]) -> list[tuple[str, str]]:
    """Versions and sources behind a table: of this program, models, GPUs, the time model and every engine's rule."""
    pairs = list(dict.fromkeys(pair for model, gpu in about or [(None, None)] for pair in sources(model, gpu)))
    calibration = table.inputs.get("calibration")
    if calibration:
        pairs.append(("times", str(calibration)))
    rules = dict.fromkeys(
        (r["engine"], r["version"]) for r in table.shown_rows() if r.get("engine") and r.get("version")
    )
    return pairs + rule_sources(rules)


def rule_sources(rules: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Where the rules of these (engine, version) pairs were read."""
    from decodecalc.engines.registry import load_policy

    return [(f"{engine} {version}", load_policy(engine).version(version).source) for engine, version in rules]


def sources(model: Model | None, gpu: Gpu | None) -> list[tuple[str, str]]:
    """Where the facts about the model and the GPU come from, and which decodecalc read them."""
    pairs = [("decodecalc", __version__)]
    if model is not None:
        pairs.append((f"model {model.name}", model.source or "given by the user"))
    if gpu is not None:
        pairs.append((f"GPU {gpu.name}", _gpu(gpu)))
    return pairs


def _gpu(gpu: Gpu) -> str:
    from decodecalc.gpus import gpu_fields

    fields = {info.field: info for info in gpu_fields(gpu)}
    parts = []
    for name, say in (("sm_count", "{} SMs".format), ("hbm_bytes_per_s", _bandwidth)):
        if name in fields and fields[name].value is not None:
            parts.append(f"{say(fields[name].value)} ({fields[name].confidence})")
    return f"{gpu.label}: {', '.join(parts)}; `decodecalc gpus {gpu.name}` lists the sources"


def _bandwidth(bytes_per_s: float) -> str:
    return f"{human_rate(bytes_per_s)} of memory bandwidth"
