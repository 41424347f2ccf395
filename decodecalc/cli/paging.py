"""`decodecalc paging`: block tables and page sizes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit


@click.command("paging", epilog="Example:  decodecalc paging --model llama3-8b --page-size 16 --allocator-page-size 32")
@scenario_options
@click.option(
    "--allocator-page-size",
    type=int,
    default=None,
    help="Keys of a page as the server allocates it. [default: the kernel's page size]",
)
@click.option(
    "--page-ids", default=None, help="Page ids of the allocator to translate into the kernel's, for example 0,1,2."
)
@output_options
def command(
    format_: str, output: str | None, allocator_page_size: int | None, page_ids: str | None, **values: Any
) -> None:
    """Show the block table, the page ids that a tile loads, and how allocator pages map to kernel pages.

    When the engine refuses the page size at start-up, the command exits with code 2 and names the multiple it needs.
    """
    from decodecalc.tables.paging import paging_table
    from decodecalc.tables.several import requests_table

    table, _ = requests_table(values, lambda request: paging_table(request, allocator_page_size, page_ids))
    emit(table, format_, output)
