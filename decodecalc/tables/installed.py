"""Rows and columns of `engines --installed`."""

from __future__ import annotations

from typing import Any

from decodecalc.drift import Outcome, Verdict, inspect_environment, inspect_path
from decodecalc.drift.compare import DIFFERS
from decodecalc.tables.table import Column, Table
from decodecalc.units import counted, listed

SERVED_MODELS = ("llama3-8b", "deepseek-v3")  # grouped heads, and a latent
MAX_VALUE = 160  # characters of an expected or found value in a note


def installed_table(path: str | None, gpu: str | None = None) -> tuple[Table, int]:
    """One row per check in json and csv, one per policy for people; the exit code is 1 when a check does not hold.

    gpu: the GPU for which the servers of this environment are asked; the live one when None.
    """
    verdicts = inspect_environment() if path is None else inspect_path(path)
    rows = [_row(v, o) for v in verdicts for o in v.outcomes] or [_row(v, None) for v in verdicts]
    notes = [line for v in verdicts for line in _notes(v)]
    if path is None:
        notes = [*_servers(gpu), *notes]
    columns = [
        Column("package", "package", align="left"),
        Column("package_version", "installed version", align="left"),
        Column("engine", "policy", align="left"),
        Column("policy_version", "policy's version", align="left"),
        Column("status", "verdict", align="left"),
        Column("checks", "checks"),
        Column("differing", "differing checks"),
    ]
    where = path or "this interpreter's packages"
    heading = [f"The engines of {where} are compared with our policies by reading their sources; nothing is imported"]
    differing = listed(dict.fromkeys(v.engine for v in verdicts if v.differences))
    answer = f"No engine is installed in {where}."
    if differing:
        answer = f"What is installed differs from our policies of {differing}."
    elif verdicts:
        answer = (
            f"No difference was found between what is installed and our policies of {counted(len(verdicts), 'engine')}."
        )
    inputs = {"path": path}
    shown = [_summary(v) for v in verdicts]
    table = Table("engines", inputs, rows, columns, heading, notes, shown=shown, answer=answer)
    return table, 1 if any(v.differences for v in verdicts) else 0


def _servers(gpu: str | None) -> list[str]:
    """What the servers of this environment run, for a model with grouped heads and one with a latent."""
    from decodecalc.errors import DecodecalcError
    from decodecalc.models import load_model
    from decodecalc.request import resolve_gpu
    from decodecalc.servers.installed import environment_lines, installed_version
    from decodecalc.servers.policies import MARKED

    if not any(installed_version(server) for server in MARKED):
        return []
    try:
        device = resolve_gpu(gpu or "auto")
    except DecodecalcError as error:
        return [f"what the servers run here is not known: {error}"]
    return environment_lines([load_model(name) for name in SERVED_MODELS], device)


def _summary(v: Verdict) -> dict[str, Any]:
    return {
        "package": v.package,
        "package_version": v.package_version,
        "engine": v.engine,
        "policy_version": v.policy_version,
        "status": v.status,
        "checks": len(v.outcomes),
        "differing": len(v.differences),
    }


def _row(v: Verdict, o: Outcome | None) -> dict[str, Any]:
    return {
        "package": v.package,
        "package_version": v.package_version,
        "where": v.where,
        "engine": v.engine,
        "policy_version": v.policy_version,
        "version_known": v.version_known,
        "verdict": v.status,
        "check": o and o.what,
        "status": o and o.status,
        "file": o and o.file,
        "line": o and (o.line or None),
        "expected": o and _json(o.expected),
        "found": o and _json(o.found),
        "note": o and (o.note or None),
    }


def _json(value: Any) -> Any:
    return [_json(item) for item in value] if isinstance(value, tuple) else value


def _notes(v: Verdict) -> list[str]:
    name = f"{v.engine}@{v.policy_version}"
    installed = f"{v.package} {v.package_version or 'of no stated version'}"
    lines = []
    if not v.version_known:
        lines.append(f"{installed}: no policy version is known to cover it; {name} would be used")
    lines += [f"{v.package}: {_difference(o)}" for o in v.outcomes if o.status == DIFFERS]
    if v.differences and v.also:
        lines.append(f"{v.package}: every check holds for {', '.join(f'{v.engine}@{other}' for other in v.also)}")
    missing = {o.file for o in v.outcomes if o.status == "no source"}
    if missing:
        lines.append(
            f"{installed}: {', '.join(sorted(missing))} is not in the package, which holds compiled code only. {name} "
            f"was chosen by "
            f"the version number; --path takes a source checkout or archive"
        )
    elif not v.outcomes:
        lines.append(f"{installed}: {name} has no checks, so it was chosen by the version number")
    return lines


def _difference(o: Outcome) -> str:
    if o.found is None and o.note:
        return f"{o.place}: {o.what}: {o.note} (expected {_short(o.expected)})"
    where = f" ({o.note})" if o.note else ""
    return f"{o.place}: {o.what}{where}: expected {_short(o.expected)}, found {_short(o.found)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"
