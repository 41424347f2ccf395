"""What the shell offers behind an option: names of models, GPUs, engines and terms. click asks these functions.

Of a comma list the last word is completed. The functions read names and nothing else, so that the shell answers at
once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_ONE_WORD = re.compile(r"[\w.@-]+")  # what no shell takes for something else


def _of(names: Callable[[], Iterable[str]], files: bool = False) -> Completer:
    """A completer for a list of names. files: a path would do as well, where no name begins like this."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        lead, wanted = before + comma, last.lower()
        known = sorted(set(names()))
        found = [name for name in known if name.lower().startswith(wanted)]
        found = found or [name for name in known if wanted and wanted in name.lower()]
        if not found and files:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(lead + name) for name in found]

    return complete


def _models() -> Iterable[str]:
    from decodecalc.models.zoo import zoo_names

    return zoo_names()


def _gpus() -> Iterable[str]:
    from decodecalc.gpus import gpu_names

    return (*gpu_names(), "auto")


def _engines() -> Iterable[str]:
    from decodecalc.engines.registry import ALL, SERVED_HERE, engine_names

    return (*engine_names(), ALL, SERVED_HERE)


def _servers() -> Iterable[str]:
    from decodecalc.servers.registry import SERVERS

    return SERVERS


def _terms() -> Iterable[str]:
    from decodecalc.tables.glossary import terms

    names = (term.name.replace(" ", "-") for term in terms())
    return (name for name in names if _ONE_WORD.fullmatch(name))


def _dtypes() -> Iterable[str]:
    from decodecalc.kvcache import DTYPE_BYTES

    return DTYPE_BYTES


def complete_opts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`--opt NAME=`: the options of the engines that the line names, of all engines where it names none."""
    from click.shell_completion import CompletionItem

    from decodecalc.engines.registry import engine_names, load_policy, split_version

    given = str(ctx.params.get("engine") or "").split(",")
    chosen = [name for name, _ in map(split_version, given) if name in engine_names()] or list(engine_names())
    options = sorted({option for name in chosen for option in load_policy(name).option_names()})
    return [CompletionItem(f"{option}=") for option in options if option.startswith(incomplete)]


complete_models = _of(_models, files=True)
complete_gpus = _of(_gpus, files=True)
complete_engines = _of(_engines)
complete_servers = _of(_servers)
complete_terms = _of(_terms)
complete_dtypes = _of(_dtypes)
