"""Reference pages written from the code: commands from click, engines from their policies, tables from the data."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

import click

NOTE = "*Written from the code at build time.*"


def commands() -> str:
    """Every command: what it says of itself, its options, its example."""
    from decodecalc.cli.main import COMMANDS, cli

    out = ["# Commands", "", NOTE, "", *_contract()]
    group = click.Context(cli, info_name="decodecalc")
    found = {}
    for name in COMMANDS:
        try:
            found[name] = cli.get_command(group, name)
        except ImportError:  # its module is not there
            continue
    scenario = _options_of(found["grid"])
    out += [
        "## Scenario options",
        "",
        "Most commands take these. Defaults that were used are printed, never silent.",
        "",
        *_option_table(scenario.values()),
    ]
    for name, command in found.items():
        if isinstance(command, click.Group):
            out += [f"## {name}", "", _prose(inspect.cleandoc(command.help or "")), ""]
            for sub, inner in command.commands.items():
                out += _command(f"{name} {sub}", inner, scenario, level=3)
        elif command is not None:
            out += _command(name, command, scenario)
    return "\n".join(out) + "\n"


def _options_of(command: Any) -> dict[str, click.Option]:
    return {p.opts[0]: p for p in command.params if isinstance(p, click.Option) and not p.hidden}


def _contract() -> list[str]:
    return [
        "`--format json` prints one object: `schema` (`decodecalc/<command>/1`), `inputs` (what was asked, defaults",
        "filled in) and `rows`, flat, with the unit in each name. Within a schema version keys are only ever added.",
        "`csv` has the same columns. Lists of numbers are joined by `x` there (`1x8x16`).",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done; for `verify` and `audit`: every check passed |",
        "| 1 | a check failed |",
        "| 2 | bad usage or input; one or two lines on standard error say what is valid |",
        "| 3 | the hardware or an optional dependency is missing |",
        "",
        "`--debug` anywhere on the line shows the traceback behind an error.",
        "",
    ]


def _command(name: str, command: click.Command, scenario: dict[str, click.Option], level: int = 2) -> list[str]:
    ctx = click.Context(command, info_name=f"decodecalc {name}")
    arguments = [p.make_metavar(ctx) for p in command.params if isinstance(p, click.Argument)]
    out = [f"{'#' * level} {name}", "", _prose(inspect.cleandoc(command.help or "")), ""]
    out += ["```text", " ".join(["decodecalc", name, *arguments, "[OPTIONS]"]), "```", ""]
    if command.epilog:
        out += [f"Example: `{' '.join(command.epilog.removeprefix('Example:').split())}`", ""]
    if name in _WITH_ROWS:
        keys = ", ".join(f"`{key}`" for key in _row_keys(name))
        out += [f"Row keys of `--format json` and `csv`: {keys}.", ""]
    options = _options_of(command)
    shared = [n for n, p in options.items() if n in scenario and p.help == scenario[n].help]
    own = [p for n, p in options.items() if n not in shared]
    if len(shared) == len(scenario):
        out += ["Takes the [scenario options](#scenario-options)" + (" and these:" if own else "."), ""]
    else:
        own = list(options.values())
    return [*out, *_option_table(own)]


_WITH_ROWS = ("grid", "segments", "merge", "roofline", "paging", "explain", "predict", "choose")


def _row_keys(name: str) -> list[str]:
    """Keys of the first row that a command prints."""
    import contextlib
    import io
    import json

    from decodecalc.cli.main import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([name, "--engine", "vllm-triton", "--format", "json"])
    if code:
        raise SystemExit(f"decodecalc {name} ended with {code}")
    return list(json.loads(out.getvalue())["rows"][0])


def _option_table(options: Iterable[click.Option]) -> list[str]:
    rows = [_option(p) for p in options]
    return ["| option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []


def _option(param: click.Option) -> str:
    names = ", ".join(f"`{n}`" for n in [*param.opts, *param.secondary_opts])
    if isinstance(param.type, click.Choice):
        names += " " + " \\| ".join(map(str, param.type.choices))
    default = param.to_info_dict()["default"] if param.show_default else None
    shown = "" if default is None or param.is_flag or param.multiple else f"`{default}`"
    return f"| {names} | {shown} | {_cell(param.help or '')} |"


def engines() -> str:
    """Every policy: rule, versions with sources, options."""
    from decodecalc.engines import engine_names, load_policy

    out = ["# Engines", "", NOTE, ""]
    out += [
        "`--engine NAME` takes the newest version, `--engine NAME@VERSION` another, several are joined by commas,",
        "`all` is every engine. Options are given as `--opt NAME=VALUE`, or as keywords of `decodecalc.plan`.",
        "",
        "| engine | what it is | its word for a split | how it is told a count |",
        "|---|---|---|---|",
    ]
    policies = [load_policy(name) for name in engine_names()]
    for p in policies:
        flag = f"`{p.split_flag}`" if p.split_flag else "-"
        out.append(f"| [{p.name}](#{p.name}) | {_cell(p.title)} | {p.word_for_split} | {_cell(flag)} |")
    for policy in policies:
        out += ["", f"## {policy.name}", "", f"**{policy.title}**", "", *_quoted(policy.rule)]
        out += ["", *_versions(policy), "", *_takes(policy), "", *_options(policy)]
    return "\n".join(out) + "\n"


def _quoted(rule: str) -> Iterator[str]:
    yield '!!! abstract "Rule"'
    for line in rule.strip().splitlines():
        yield "    " + _cell(line)


def _versions(policy: Any) -> Iterator[str]:
    yield "| version | covers | read from | what changed |"
    yield "|---|---|---|---|"
    for v in policy.versions:
        covers = f"{v.covers[0]} to {v.covers[1]}" if v.covers else "-"
        yield f"| `{v.name}` | {covers} | {_cell(v.source)} | {_cell(v.note)} |"


def _takes(policy: Any) -> Iterator[str]:
    yield f"What version `{policy.versions[0].name}` takes with its default options:"
    yield ""
    for one in policy.takes():
        yield f"- {_cell(str(one))}"


def _options(policy: Any) -> Iterator[str]:
    found = fields(policy.options_type)
    if not found:
        yield "No options."
        return
    yield "| option | kind | default | the engine's own flag | meaning |"
    yield "|---|---|---|---|---|"
    for f in found:
        meta = f.metadata
        default = "" if f.default in (MISSING, None) else f"`{f.default}`"
        flag = f"`{meta['flag']}`" if meta.get("flag") else ""
        kind = meta["kind"].rstrip("?") + (" or none" if meta["kind"].endswith("?") else "")
        help_ = meta["help"] + (f" ({', '.join(meta['choices'])})" if meta.get("choices") else "")
        yield f"| `{f.name}` | {kind} | {_cell(default)} | {_cell(flag)} | {_cell(help_)} |"


def gates() -> str:
    """Every machine word of a plan: codes of refusals and names of gates."""
    from decodecalc.engines.registry import all_codes

    codes = all_codes()
    out = ["# Gates and refusals", "", NOTE, ""]
    out += [
        "A plan carries gates: named conditions of the engine's rule with their outcome and the numbers behind it.",
        "What an engine does not take at all is refused with a `GateError`, whose `code` is one of the words below;",
        "the message says what is valid. Both are snake_case and keep their meaning, so that scripts may compare them.",
        "",
        "## Gates",
        "",
        "| gate | what holds where it passes |",
        "|---|---|",
        *(f"| `{code}` | {_cell(text)} |" for code, text in sorted(codes.gates.items())),
        "",
        "## Refusals",
        "",
        "| code | what is refused |",
        "|---|---|",
        *(f"| `{code}` | {_cell(text)} |" for code, text in sorted(codes.refusals.items())),
    ]
    return "\n".join(out) + "\n"


def gpus() -> str:
    """The GPU table as `decodecalc gpus` prints it."""
    from decodecalc.tables.gpus import gpus_table

    lead = (
        "One row per GPU; peaks are dense. `decodecalc gpus NAME` shows every field of one GPU with its source, how"
        " sure it is, and where sources disagree. Names ignore case and punctuation; aliases and the driver's own"
        " device names work too."
    )
    return f"# GPUs\n\n{NOTE}\n\n{lead}\n\n" + _table(gpus_table())


def models() -> str:
    """The zoo as `decodecalc models` prints it."""
    from decodecalc.tables.models import zoo_table

    lead = (
        "The zoo. Any Hugging Face `config.json` works as well: `--model path/to/config.json`, its folder, or `-` for"
        " standard input."
    )
    return f"# Models\n\n{NOTE}\n\n{lead}\n\n" + _table(zoo_table())


def glossary() -> str:
    """Every heading and word, as `decodecalc glossary` explains them."""
    from decodecalc.tables.glossary import HEADINGS, WORDS

    out = [
        "# Glossary",
        "",
        NOTE,
        "",
        "`decodecalc glossary TERM` shows one of them, and codes of gates and refusals.",
        "",
    ]
    for title, found in (("Words", WORDS), ("Headings of tables", HEADINGS)):
        out += [f"## {title}", "", "| term | meaning | where |", "|---|---|---|"]
        out += [f"| {_cell(t.name)} | {_cell(t.meaning)} | {' '.join(f'`{c}`' for c in t.commands)} |" for t in found]
        out.append("")
    return "\n".join(out)


def _table(table: Any) -> str:
    from decodecalc.tables.render import render

    return render(table, "markdown")


_GROUPS = {
    "What is planned": ("load_model", "zoo_names", "Model", "RankModel", "LayerGroup", "Geometry", "Gather", "Indexer",
                        "Batch", "KvCache"),
    "On what": ("load_gpu", "gpu_names", "detect_gpu", "Gpu"),
    "The launch": ("plan", "engine_names", "LaunchPlan", "KernelLaunch", "Splits", "Gate"),
    "What it means": ("occupancy", "Occupancy", "segments", "Segment", "traffic", "Traffic", "roofline", "Roofline",
                      "paging", "Paging"),
    "How long it takes": ("predict", "Prediction", "token_time", "TokenTime", "step", "Step", "StepFloor", "choose",
                          "Choice", "load_calibration", "Calibration"),
    "A command's answer": ("table", "Table", "audit", "Audit", "read_report", "Report", "figure",
                           "Drawn"),
    "Many at once": ("sweep", "Axes"),
    "Errors": ("DecodecalcError", "InputError", "UnknownNameError", "ShardingError", "ModelConfigError", "GateError",
               "MissingDependencyError"),
}  # fmt: skip
# Values that public functions return, which `decodecalc` itself does not export.
_RETURNED = {
    "On what": ("decodecalc.gpus.gpu.Peak",),
    "What it means": ("decodecalc.analysis.roofline.TileWork",),
    "How long it takes": ("decodecalc.cost.choice.CurvePoint", "decodecalc.cost.choice.Regret"),
    "Many at once": ("decodecalc.sweeps.columns.Chunk",),
}


def public_names() -> list[str]:
    """Names of `decodecalc.__all__` that exist, groups first, the rest after them."""
    import decodecalc

    known = [name for names in _GROUPS.values() for name in names]
    every = [name for name in decodecalc.__all__ if name != "__version__"]
    return [name for name in known if name in every] + [name for name in every if name not in known]


def api() -> str:
    """One mkdocstrings entry for every public name, and for the values that they return."""
    import decodecalc

    out = [
        "# Python API",
        "",
        "```python",
        "import decodecalc as dc",
        "```",
        "",
        "Names load on first use: importing decodecalc costs next to nothing and needs neither torch nor pandas.",
        "Value objects are frozen and have `.to_dict()`; most show themselves as a table in a notebook and have",
        "`.to_frame()`.",
        "",
    ]
    left = public_names()
    for title, names in [*_GROUPS.items(), ("More", tuple(n for n in left if n not in sum(_GROUPS.values(), ())))]:
        entries = [_home(getattr(decodecalc, name)) for name in names if name in left]
        entries += [entry for entry in _RETURNED.get(title, ()) if entry not in entries]
        if entries:
            out += [f"## {title}", "", *(line for entry in entries for line in (f"::: {entry}", ""))]
    return "\n".join(out) + "\n"


def _home(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _prose(text: str) -> str:
    return "\n\n".join(_cell(" ".join(part.split())) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    """Text that may stand in a table cell or a paragraph: no pipes, no angle brackets, no emphasis by accident."""
    parts = text.replace("|", "\\|").split("`")
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("$", "&#36;")
    return "`".join(parts)


PAGES = {
    "reference/commands.md": commands,
    "reference/engines.md": engines,
    "reference/gates.md": gates,
    "reference/gpus.md": gpus,
    "reference/models.md": models,
    "reference/glossary.md": glossary,
    "reference/api.md": api,
}
