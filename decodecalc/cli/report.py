"""`decodecalc report`: reports of `verify`, joined and written again."""

from __future__ import annotations

from dataclasses import replace

import click

from decodecalc.cli.verify import FORMATS, check_outputs, write_report
from decodecalc.errors import InputError


@click.group("report", epilog="Example:  decodecalc report merge shard1.json shard2.json --report verify-h200")
def command() -> None:
    """Join and compare verification reports."""


@command.command("merge", epilog="Example:  decodecalc report merge verify-1.json verify-2.json --report verify")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--report", "base", metavar="BASE", help="Write the report as BASE.json, BASE.md, BASE.html and BASE.*.svg."
)
@click.option(
    "--against",
    metavar="FILE",
    help="The JSON report of an earlier run; show what got worse by more than both runs' spread.",
)
@click.option(
    "--format",
    "-f",
    "format_",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="The form of the output.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file instead of standard output.")
def merge(files: tuple[str, ...], base: str | None, against: str | None, format_: str, output: str | None) -> int:
    """Join the JSON files of shards into one report, or write one file's Markdown and HTML page again.

    A check that several files hold is taken from the last of them. The report names missing shards and then fails.
    """
    from decodecalc.verify.report.files import merge_reports, read_report
    from decodecalc.verify.report.summary import compare

    merged = merge_reports([read_report(path) for path in files])
    if against:
        merged = replace(
            merged, comparison=compare(merged.rows, read_report(against).rows, not merged.inputs.get("shard"))
        )
    check_outputs(base, output)
    try:
        write_report(merged, base, format_, output)
    except (AttributeError, KeyError, TypeError) as error:  # a field that no run of ours writes like this
        raise InputError(f"a report holds a field of another kind than verify writes: {str(error)[:100]}") from None
    return 0 if merged.passed else 1
