"""Rows and columns of `engines --runnable`."""

from __future__ import annotations

from decodecalc.engines.registry import engine_names, load_policy
from decodecalc.tables.table import Column, Table
from decodecalc.units import counted
from decodecalc.verify.own.runner import Here, all_runners, look


def runnable_table(engine: str | None = None) -> Table:
    """One row per runner: what was found, or why nothing was. engine: only this one's."""
    if engine is not None:
        load_policy(engine)  # a name that does not exist is an error
    rows = [_row(look(runner)) for runner in all_runners() if engine in (None, runner.engine)]
    columns = [
        Column("engine", "engine", align="left", rank=0),
        Column("runnable", "can run here", lambda yes: "yes" if yes else "no", align="left", rank=0),
        Column("package", "package", align="left"),
        Column("version", "package version", align="left"),
        Column("policy_version", "policy's version", align="left"),
        Column("where", "found at", align="left", rank=2),
        Column("calls", "function that is called", align="left", rank=2),
        Column("reason", "why it cannot run", align="left", rank=0),
    ]
    notes = ["`decodecalc verify --kernel own` runs these kernels. It needs a CUDA GPU."]
    able = sum(bool(row["runnable"]) for row in rows)
    answer = f"{able or 'None'} of the {counted(len(rows), 'engine')} that `verify` can call can run here."
    if engine is None:
        without = [name for name in engine_names() if name not in {row["engine"] for row in rows}]
        notes.append(f"`verify` cannot call the own kernels of {', '.join(without)}.")
    elif not rows:
        answer = f"`verify` cannot call the own kernel of {engine}."
    return Table("engines", {"runnable": True}, rows, columns, notes=notes, answer=answer)


def _row(here: Here) -> dict[str, object]:
    found = here.found
    reason = here.reason
    if found is not None and found.policy_version is None:
        reason = f"no version of our policy belongs to {found.package} {found.version}"
    return {
        "engine": here.runner.engine,
        "runnable": found is not None and found.policy_version is not None,
        "package": found.package if found else None,
        "version": found.version if found else None,
        "policy_version": found.policy_version if found else None,
        "where": found.where if found else None,
        "calls": here.runner.calls,
        "reason": reason,
    }
