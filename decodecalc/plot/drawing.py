"""From a user's words to a drawn figure: requests, the rows of each, and the canvas that they are drawn on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import SERVED
from decodecalc.errors import InputError
from decodecalc.plot.canvas import Look, canvas
from decodecalc.plot.figures import FIGURES, load_figure
from decodecalc.plot.series import Row, scenario
from decodecalc.request import UNSAID as SCENARIO_UNSAID
from decodecalc.request import Request, resolve
from decodecalc.units import parse_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure and what is behind it."""

    fig: Figure
    rows: list[Row]
    requests: list[Request]
    said: list[str]
    """Sentences: the defaults that were used, warnings, and everything that was asked for and is not drawn."""


def draw_words(figure: str, words: Mapping[str, Any]) -> Drawn:
    """The figure that these options of `decodecalc plot` ask for. InputError where they cannot all be drawn."""
    if figure not in FIGURES:
        raise InputError(f"there is no figure {figure!r:.60}; there are {', '.join(FIGURES)}")
    module = load_figure(figure)
    words = {**UNSAID, **{name: _text(name, value) for name, value in words.items()}}
    unknown = set(words) - set(UNSAID)
    if unknown:
        raise InputError(f"plot has no option {', '.join(sorted(unknown))}; it takes {', '.join(sorted(UNSAID))}")
    axes = getattr(module, "AGAINST", ())
    against = words.pop("against")
    if against is not None and against not in axes:
        raise InputError(f"--against must be one of {', '.join(axes)} for {figure}, not {against!r}" if axes else
                         f"--against is for figures of lines; {figure} has no x axis to choose")  # fmt: skip
    measured = words.pop("measured")
    if measured is not None and not getattr(module, "TAKES_MEASURED", False):
        raise InputError(f"--measured is drawn by latency and roofline, not by {figure}")
    options: dict[str, Any] = {"against": against or (axes[0] if axes else None), "measured": measured}
    look = Look(*(words.pop(name) for name in Look._fields))
    requests = list(_requests(words, module))
    said: list[str] = []
    rows: list[Row] = []
    for request in requests:
        who = {"model": request.layers.label, "tp": request.layers.tp, "gpu": request.scenarios.gpu.name}
        rows += [{**who, **row} for row in module.rows(request, said, **options)]
        said += request.heading[1:]
    said = list(dict.fromkeys(said))
    if not rows:
        raise InputError("; ".join([f"there is nothing to draw in {figure}", *said[:3]]))
    kv = requests[0].scenarios.kv
    with canvas(look) as made:
        made.question = FIGURES[figure]
        module.draw(made, rows, **options)
        made.scenario = f"{scenario(rows)}, KV {kv.dtype}, page {kv.page_size}{made.scenario}"
    return Drawn(made.fig, rows, requests, said)


def _requests(words: dict[str, Any], module: Any) -> Iterator[Request]:
    """One for each model, GPU and tensor-parallel degree."""
    engines = getattr(module, "DEFAULT_ENGINES", ",".join(SERVED))
    gpus: list[str | None] = [*_listed(words["gpu"])] or [*getattr(module, "DEFAULT_GPUS", [None])]
    models: list[str | None] = [*_listed(words["model"])] or [None]
    if words["tps"] is not None and words["tp"] != 1:
        raise InputError("give either --tp or --tps, not both")
    degrees = (
        parse_counts(words["tps"], "--tps") if words["tps"] is not None else parse_counts(str(words["tp"]), "--tp")
    )
    for model, gpu, tp in itertools.product(models, gpus, degrees):
        yield resolve({**words, "model": model, "gpu": gpu, "tp": tp}, default_engine=engines)


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _text(name: str, value: Any) -> Any:
    """A list as the comma list that the command line takes, and a number as its text where the option is text."""
    if isinstance(value, Sequence) and not isinstance(value, str) and name != "opts":
        return ",".join(map(str, value))
    return str(value) if name in ("batch", "context", "seq_lens", "q_len", "tps") and value is not None else value


# Every option and its value when nothing is said: those of a scenario, and those of a figure.
UNSAID: dict[str, Any] = {
    **SCENARIO_UNSAID,
    **dict.fromkeys(("tps", "against", "measured")),
    **Look()._asdict(),
}
