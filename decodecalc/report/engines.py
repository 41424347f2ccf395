"""Rows and columns of `engines`."""

from __future__ import annotations

from dataclasses import MISSING, fields

from decodecalc.engines import engine_names, load_policy, split_version
from decodecalc.report.table import Column, Table


def engines_table() -> Table:
    """One row per policy."""
    rows = []
    for name in engine_names():
        policy = load_policy(name)
        newest = policy.versions[0]
        rows.append(
            {
                "engine": name,
                "title": policy.title,
                "versions": [v.name for v in policy.versions],
                "word_for_split": policy.word_for_split,
                "split_flag": policy.split_flag,
                "options": [f.name for f in fields(policy.options_type)],
                "source": newest.source,
            }
        )
    columns = [
        Column("engine", "engine", align="left"),
        Column("versions", "versions", ", ".join, align="left"),
        Column("word_for_split", "its word", align="left"),
        Column("split_flag", "its split flag", align="left"),
        Column("title", "what it is", align="left"),
    ]
    return Table("engines", {}, rows, columns, notes=["`decodecalc engines NAME` shows the rule, sources and options"])


def engine_table(spec: str) -> Table:
    """One row per option; the rule and the versions are in the heading."""
    name, version = split_version(spec)
    policy = load_policy(name)
    policy.version(version)
    rows = []
    for f in fields(policy.options_type):
        default = f.default if f.default is not MISSING else None
        rows.append(
            {
                "option": f.name,
                "kind": f.metadata.get("kind"),
                "default": list(default) if isinstance(default, tuple) else default,
                "engine_flag": f.metadata.get("flag"),
                "choices": list(f.metadata.get("choices", ())),
                "help": f.metadata.get("help"),
            }
        )
    heading = [f"{policy.name}: {policy.title}", "", *policy.rule.strip().splitlines(), ""]
    for v in policy.versions:
        covers = f" (covers {v.covers[0]} to {v.covers[1]})" if v.covers else ""
        heading.append(f"version {v.name}{covers}: {v.source}" + (f"; {v.note}" if v.note else ""))
    columns = [
        Column("option", "option", align="left"),
        Column("kind", "kind", align="left"),
        Column("default", "default", align="left"),
        Column("engine_flag", "engine's flag", align="left"),
        Column("help", "help", align="left"),
    ]
    inputs = {
        "engine": policy.name,
        "rule": policy.rule,
        "versions": [{"name": v.name, "covers": v.covers, "source": v.source, "note": v.note} for v in policy.versions],
    }
    return Table("engines", inputs, rows, columns, heading)
