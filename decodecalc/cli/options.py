"""Options that commands share. What their words resolve to is `decodecalc.request`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from decodecalc.cli.complete import (
    complete_dtypes,
    complete_engines,
    complete_gpus,
    complete_models,
    complete_opts,
    complete_servers,
)
from decodecalc.cli.output import SORT, VERBOSE
from decodecalc.keyshare import EXCHANGES
from decodecalc.request import DEFAULT_GPU
from decodecalc.units import parse_counts

MOST_GIB = 1 << 20  # memory that an option may ask for
F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # older releases of click have no type argument
    _ParamType = click.ParamType


class CountList(_ParamType):
    """Whole numbers: one as it is, a list or a range as a tuple."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int, or a tuple of several."""
        if not isinstance(value, str):
            return value
        option = param.opts[0] if param is not None else "value"
        found = [_whole(part) for part in value.split(",")] if ":" not in value else None
        if found is None or None in found:
            found = list(parse_counts(value, option, 1000))
        return found[0] if len(found) == 1 else tuple(found)


def _whole(text: str) -> int | None:
    """A number that may be negative, which its option refuses in its own words; None for anything else."""
    try:
        return int(text)
    except ValueError:
        return None


def _keep(where: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that leaves an option's value for `emit`."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.meta[where] = value

    return keep


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def wrap(function: F) -> F:
        for decorate in reversed(options):
            function = decorate(function)
        return function

    return wrap


_DCP_OPTIONS = (
    click.option(
        "--dcp-interleave",
        type=int,
        help="With --dcp: how many neighbouring keys lie on one rank before the next rank's begin. [default: 1]",
    ),
    click.option(
        "--dcp-exchange",
        type=click.Choice(EXCHANGES),
        help="With --dcp: merge the ranks' outputs by an all-gather and a reduce-scatter, or by an all-to-all. "
        "[default: ag_rs]",
    ),
)
dcp_options = _stack(*_DCP_OPTIONS)
layer_options = _stack(
    click.option(
        "--model",
        "-m",
        shell_complete=complete_models,
        help="A zoo name, a config.json or its folder, - for stdin, or a cached Hugging Face repository; or a list.",
    ),
    click.option("--q-heads", type=int, help="Describe a layer instead of --model: its query heads, before sharding."),
    click.option("--kv-heads", type=int, help="KV heads, with --q-heads. [default: the number of query heads]"),
    click.option("--head-dim", type=int, help="Elements of a key, with --q-heads. [default: 128]"),
    click.option("--head-dim-v", type=int, help="Elements of a value, with --q-heads. [default: the same as of a key]"),
    click.option("--window", type=int, help="Sliding window in keys, including the query token's own key."),
    click.option(
        "--mla", is_flag=True, help="Multi-head latent attention: one cached vector per token is both key and value."
    ),
    click.option(
        "--tp", type=CountList(), default=1, show_default=True, help="The tensor-parallel degree, or a list: 1,2,8."
    ),
    click.option(
        "--dcp",
        type=int,
        default=1,
        show_default=True,
        help="Ranks, among those of --tp, that divide the keys of every request (decode context parallelism).",
    ),
    *_DCP_OPTIONS,
    click.option("--as-dense", is_flag=True, help="Plan sparse layers as if they read every key."),
)
cache_options = _stack(
    click.option(
        "--kv-dtype",
        default=None,
        shell_complete=complete_dtypes,
        help="Element type of the KV cache, or a list: bf16, fp16, fp8, int8, int4, nvfp4, … [default: what the "
        "checkpoint declares, else bf16]",
    ),
    click.option("--query-dtype", default=None, help="Element type of the queries. [default: bf16]"),
    click.option(
        "--page-size",
        type=CountList(),
        default=None,
        help="Keys that a page of the KV cache holds; 1 means an index for every key. "
        "[default: 16, or what the engine needs]",
    ),
)
gpu_option = click.option(
    "--gpu",
    "-g",
    default=None,
    shell_complete=complete_gpus,
    help=f"A GPU's name, a JSON or TOML file, or `auto` for the one here; or a list. [default: {DEFAULT_GPU}]",
)
batch_options = _stack(
    click.option(
        "--batch",
        "-b",
        default=None,
        help="Requests in the batch: a list 1,4,16, or a range 1:64:1 or 1:256:x2. [default: 1]",
    ),
    click.option("--context", "-c", default=None, help="Keys per request: 2560, or a list 2k,32k. [default: 2560]"),
    click.option(
        "--seq-lens", default=None, help="One batch of unequal requests, 128,8192, instead of --batch and --context."
    ),
    click.option(
        "--q-len",
        default="1",
        show_default=True,
        help="Query tokens per request; more than 1 means speculative decoding.",
    ),
)
prefix_option = click.option(
    "--shared-prefix",
    default=None,
    metavar="KEYS",
    help="The first keys that all requests share, attended once for all of them: 4096, or 4k.",
)
engine_options = _stack(
    click.option(
        "--engine",
        "-e",
        default=None,
        shell_complete=complete_engines,
        help="Engines by our name or by a server's name for them, each as NAME or NAME@VERSION. all stands for every "
        "engine, served for those that servers run here, by themselves or when told to.",
    ),
    click.option(
        "--server",
        default=None,
        shell_complete=complete_servers,
        help="Plan the engine that this server (NAME or NAME@RELEASE) chooses by itself, and list it first.",
    ),
    click.option("--eager", is_flag=True, help="Plan launches without CUDA graphs. [default: with CUDA graphs]"),
    click.option(
        "--opt",
        "opts",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=complete_opts,
        help="Set an option of an engine. It can be given several times.",
    ),
    click.option(
        "--batch-invariant", is_flag=True, help="Turn on each engine's batch-invariant or deterministic mode."
    ),
)
html_option = click.option(
    "--html", "html", type=click.Path(dir_okay=False), help="Also write the result as one self-contained HTML page."
)
output_options = _stack(
    click.option(
        "--format",
        "-f",
        "format_",
        type=click.Choice(["table", "csv", "json", "markdown"]),
        default="table",
        show_default=True,
        help="The form of the output.",
    ),
    click.option(
        "--output",
        "-o",
        "output",
        type=click.Path(dir_okay=False),
        help="Write to this file instead of standard output.",
    ),
    click.option(
        "--sort",
        metavar="COLUMN",
        expose_value=False,
        callback=_keep(SORT),
        help="Sort the rows by this column, the least first; -COLUMN sorts the greatest first.",
    ),
    click.option(
        "--verbose",
        "-v",
        is_flag=True,
        expose_value=False,
        callback=_keep(VERBOSE),
        help="Show every note below the table.",
    ),
)
scenario_options = _stack(layer_options, gpu_option, engine_options, batch_options, cache_options)
