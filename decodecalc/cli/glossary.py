"""`decodecalc glossary`: what headings, words and codes mean."""

from __future__ import annotations

import click

from decodecalc.cli.complete import complete_terms
from decodecalc.cli.options import output_options
from decodecalc.cli.output import emit


@click.command("glossary", epilog="Example:  decodecalc glossary live blocks")
@click.argument("term", nargs=-1, shell_complete=complete_terms)
@output_options
def command(term: tuple[str, ...], format_: str, output: str | None) -> None:
    """Explain a heading of a table, a word of an answer, or the code of a gate or a refusal.

    Without TERM, all of them are listed.
    """
    from decodecalc.tables.glossary import glossary_table

    emit(glossary_table(" ".join(term) or None), format_, output)
