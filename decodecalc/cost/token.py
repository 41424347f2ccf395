"""A token's time: the attention of all layers of a model in one decode step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.cost.calibration import Calibration
from decodecalc.cost.prediction import OWN, Prediction, predict
from decodecalc.engines.registry import DEFAULT_ENGINE, load_policy, split_version
from decodecalc.errors import check_type
from decodecalc.kvcache import KvCache
from decodecalc.models import LayerGroup, Model, load_model
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.gpus import Gpu


def sum_known(times: Iterable[tuple[int, float | None]]) -> float | None:
    """`sum_layers`; None where the time of any layer group is not known."""
    given = list(times)
    known = [(layers, seconds) for layers, seconds in given if seconds is not None]
    return sum_layers(known) if len(known) == len(given) else None


def sum_layers(times: Iterable[tuple[int, float]]) -> float:
    """Seconds of all layers together, from (layers, seconds of one layer) of every layer group.

    >>> sum_layers([(10, 2.0), (2, 0.5)])
    21.0
    """
    return sum(layers * seconds for layers, seconds in times)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTime(Shown):
    """Predicted time of the attention of all layers of one rank, for one decode step."""

    layers: tuple[tuple[int, Prediction], ...]
    """How many layers there are of each layer group, and what one of them takes."""

    @property
    def total_s(self) -> float | None:
        """Predicted time of all layers; None where a layer's kernel was not calibrated."""
        return sum_known([(n, p.total_s) for n, p in self.layers])

    @property
    def floor_s(self) -> float:
        """What no kernel undercuts: launches, and bytes at the sustained rate."""
        return sum_layers((n, p.floor_s) for n, p in self.layers)

    @property
    def least_s(self) -> float:
        """The lower end of the interval; the floor where the kernel was not calibrated."""
        return self.floor_s if self.low_s is None else self.low_s

    @property
    def low_s(self) -> float | None:
        """Lower end of the 90 % interval: the layers' errors go together, so that their ends add up."""
        return sum_known([(n, p.low_s) for n, p in self.layers])

    @property
    def high_s(self) -> float | None:
        """Upper end of the 90 % interval."""
        return sum_known([(n, p.high_s) for n, p in self.layers])

    @property
    def roofline_s(self) -> float | None:
        """Bytes and arithmetic of all layers at the data sheet's rates; None where those are not known."""
        return sum_known([(n, p.roofline_s) for n, p in self.layers])

    def __str__(self) -> str:
        """One line for people."""
        if self.total_s is None or self.low_s is None or self.high_s is None:
            notes = dict.fromkeys(note for _, p in self.layers if p.total_s is None for note in p.notes)
            return f"at least {human_seconds(self.floor_s)} a token: {', '.join(notes)}"
        total, low, high = (human_seconds(t) for t in (self.total_s, self.low_s, self.high_s))
        return f"{total} a token ({low} to {high}) over {sum(n for n, _ in self.layers)} layers"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the layer groups nested."""
        return {
            "total_s": self.total_s,
            "floor_s": self.floor_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "roofline_s": self.roofline_s,
            "layer_groups": [{"layers": n, **p.to_dict()} for n, p in self.layers],
        }


def token_time(
    model: Model | str,
    batch: Batch,
    *,
    engine: str = DEFAULT_ENGINE,
    tp: int = 1,
    kv: KvCache | None = None,
    gpu: Gpu | str = "h100-sxm",
    calibration: Calibration | None = None,
    kernel: str = OWN,
    stand_in: bool = False,
    l2: str = "cold",
    launch: str = "graph",
    options: Mapping[str, Any] | None = None,
) -> TokenTime:
    """How long the attention of one decode step takes on one rank of `tp`, over all layers of `model`.

    model takes a name too, engine is `name` or `name@version`, kv defaults to bf16 with pages of 16 keys; kernel,
    stand_in, l2 and launch are `predict`'s, options the engine's own. Raises UnknownNameError for names that do not
    exist, ShardingError for a degree that does not divide the model, GateError where the engine refuses a layer.
    """
    from decodecalc.gpus import load_gpu

    check_type("batch", batch, Batch, "for example decodecalc.Batch([128, 8192])")
    check_type("engine", engine, str, "its name; decodecalc.engine_names() lists them")
    rank = (model if isinstance(model, Model) else load_model(model)).shard(tp)
    name, version = split_version(engine)
    policy, device, cache = load_policy(name), load_gpu(gpu), kv or KvCache()
    given = {**policy.own_options({}, rank.model_kv_heads), **(options or {})}

    def one(group: LayerGroup) -> Prediction:
        plan = policy.plan(group.geometry, group.seen_batch(batch), cache, device, given, version)
        return predict(plan, device, calibration, kernel=kernel, stand_in=stand_in, l2=l2, launch=launch)

    return TokenTime(layers=tuple((group.layers, one(group)) for group in rank.layer_groups))
