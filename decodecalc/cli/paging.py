"""`decodecalc paging`: block tables and page sizes."""

from __future__ import annotations

from typing import Any

import click

from decodecalc.cli.options import output_options, scenario_options
from decodecalc.cli.output import emit
from decodecalc.request import resolve


@click.command("paging", epilog="Example:  decodecalc paging --model llama3-8b --page-size 16 --allocator-page-size 32")
@scenario_options
@click.option(
    "--allocator-page-size", type=int, default=None, help="Keys of an allocator page (default: the kernel's)."
)
@click.option("--page-ids", default=None, help="Allocator page ids to expand to kernel pages, for example 0,1,2.")
@output_options
def command(
    format_: str, output: str | None, allocator_page_size: int | None, page_ids: str | None, **values: Any
) -> None:
    """Block-table width and bytes, page ids per tile, straddling tiles, allocator against kernel pages.

    A page size that an engine refuses ends with exit code 2 and the multiple it needs: a start-up error there too.
    """
    from decodecalc.tables.paging import paging_table

    emit(paging_table(resolve(values), allocator_page_size, page_ids), format_, output)
