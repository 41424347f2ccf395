"""The servers of this environment, and what its packages make of their choice. Nothing is imported: only metadata is
read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from decodecalc.errors import DecodecalcError, UnknownNameError
from decodecalc.models import Model
from decodecalc.servers.layers import resolve_layers, settings_of_model
from decodecalc.servers.question import ABSENT, INSTALLED
from decodecalc.servers.registry import TITLES
from decodecalc.servers.resolution import Resolution

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu

Versions = Callable[[str], str | None]


def installed_version(package: str) -> str | None:
    """The version of a distribution of this environment; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def host_settings(server: str, version_of: Versions = installed_version) -> tuple[dict[str, Any], list[str]]:
    """Settings of a server that its host's packages decide, and what a user should know of them."""
    has_flashinfer = version_of("flashinfer-python") is not None
    if server == "sglang":
        return {"flashinfer_installed": has_flashinfer}, []
    notes = []
    if has_flashinfer and version_of("flashinfer-cubin") is None:
        notes.append("flashinfer-cubin is not installed: where its download host cannot be reached, native kernels run")
    return {
        "flashinfer": INSTALLED if has_flashinfer else ABSENT,
        "tokenspeed_installed": version_of("tokenspeed-mla") is not None,
        "b12x_installed": version_of("b12x") is not None,
        "aiter": any(version_of(name) is not None for name in ("aiter", "amd-aiter")),
    }, notes


def installed_answers(
    models: Sequence[Model], gpu: Gpu, version_of: Versions = installed_version
) -> tuple[list[tuple[str, Model, Resolution]], list[str]]:
    """What every server of this environment runs for each model on one GPU, and notes.

    A release that was not read is answered with the newest known, and a note says so.
    """
    found: list[tuple[str, Model, Resolution]] = []
    notes: list[str] = []
    for server in ("vllm", "sglang"):
        release = version_of(server)
        if release is None:
            continue
        settings, more = host_settings(server, version_of)
        notes += more
        asked: str | None = release.partition("+")[0]
        for model in models:
            own = {**settings_of_model(server, model), **settings}
            try:
                answers = resolve_layers(server, asked, model.shard(1), gpu, **own)
            except UnknownNameError:
                notes.append(f"{TITLES[server]} {release} was not read: the newest release known answers for it")
                asked = None
                answers = resolve_layers(server, None, model.shard(1), gpu, **own)
            except DecodecalcError as error:
                notes.append(f"{TITLES[server]} {release}: {error}")
                continue
            found += [(server, model, answer) for _, answer in answers]
    return found, list(dict.fromkeys(notes))


def environment_lines(models: Sequence[Model], gpu: Gpu, version_of: Versions = installed_version) -> list[str]:
    """The answers in sentences, one for each server and model."""
    answers, notes = installed_answers(models, gpu, version_of)
    lines = []
    for server, model, answer in answers:
        release = version_of(server)
        kernel = f" ({answer.kernel})" if answer.kernel else ""
        what = f"runs {answer.backend}{kernel}" if answer.refused is None else f"does not start: {answer.refused}"
        planned = f", planned as {answer.engine}" if answer.engine else ""
        lines.append(f"{TITLES[server]} {release} on {gpu.name}, {model.name}: {what}{planned}")
    return list(dict.fromkeys([*lines, *notes]))
