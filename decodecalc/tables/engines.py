"""Rows and columns of `engines`."""

from __future__ import annotations

from dataclasses import MISSING, fields

from decodecalc.engines import engine_names, load_policy, split_version
from decodecalc.launch.policy import Policy
from decodecalc.tables.table import Column, Table


def _newest(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} older" if len(names) > 1 else "")


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
        Column("engine", "engine", align="left", rank=0),
        Column("title", "what it is", align="left"),
        Column("versions", "newest version", _newest, align="left", rank=2),
        Column("word_for_split", "name for a split", align="left", rank=2),
        Column("split_flag", "split flag", align="left", below=True),
    ]
    flags = sum(row["split_flag"] is not None for row in rows)
    answer = f"{len(rows)} engines are known; {flags} of them let the user set a split count."
    notes = ["`decodecalc engines NAME` shows an engine's rule, versions, sources and options."]
    return Table("engines", {}, rows, columns, notes=notes, answer=answer)


def _text(text: str) -> str:
    return " ".join(text.split())


def _versions(policy: Policy) -> list[str]:
    """One entry per version: the releases it holds for, and what it changed."""
    lines = []
    for v in policy.versions:
        covers = f" ({v.covers[0]} to {v.covers[1]})" if v.covers and v.covers[0] != v.covers[1] else ""
        lines.append(_text(f"version {v.name}{covers}" + (f": {v.note}" if v.note else "")))
    return lines


def _sources(policy: Policy) -> list[str]:
    """Where each version was read, versions that were read in the same place together."""
    groups: dict[str, list[str]] = {}
    for v in policy.versions:
        groups.setdefault(v.source.replace(v.name, "VERSION"), []).append(v.name)
    lines = []
    for source, names in groups.items():
        text = source.replace("VERSION", names[0] if len(names) == 1 else "of that release")
        lines.append(_text(f"read from{f' ({names[0]})' if len(groups) > 1 else ''}: {text}"))
    return lines


def _takes(policy: Policy, version: str | None) -> list[str]:
    """What the version takes with its default options, one entry per combination."""
    name = policy.version(version).name
    return [
        f"version {name} takes, with its default options:",
        *(f"  - {_text(str(one))}" for one in policy.takes(version)),
    ]


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
    heading = ["", _text(policy.rule), "", *_versions(policy), "", *_takes(policy, version), "", *_sources(policy)]
    columns = [
        Column("option", "option", align="left", rank=0),
        Column("kind", "kind of value", align="left", rank=2),
        Column("default", "default", align="left", rank=0),
        Column("engine_flag", "engine's flag", align="left", below=True),
        Column("help", "help", align="left"),
    ]
    inputs = {
        "engine": policy.name,
        "rule": policy.rule,
        "versions": [
            {
                "name": v.name,
                "covers": v.covers,
                "source": v.source,
                "note": v.note,
                "takes": [t.to_dict() for t in policy.takes(v.name)],
            }
            for v in policy.versions
        ],
    }
    notes = () if rows else (f"{policy.name} has no options",)
    newest = policy.version(version).name
    answer = f"{policy.name} is the policy of {policy.title}; its rule for version {newest} follows."
    return Table("engines", inputs, rows, columns, heading, notes, answer=answer)
