"""A whole decode step: its attention, and a lower bound (floor) of the time of everything else.

The floor counts what the rest of every step has to do: the weights are read once, the new keys are written, the
recurrent states are read and written, and the ranks exchange their activations twice a layer. Launches, activations,
normalisation, routing, sampling and the host are not counted, so that a real step takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decodecalc.cost.calibration import Calibration
from decodecalc.engines.registry import DEFAULT_ENGINE
from decodecalc.errors import InputError
from decodecalc.kvcache import KvCache
from decodecalc.models import Model
from decodecalc.units import human_seconds
from decodecalc.values import Shown

if TYPE_CHECKING:
    from decodecalc.batch import Batch
    from decodecalc.cost.token import TokenTime
    from decodecalc.gpus import Gpu

ACTIVATION_BYTES = 2  # activations that ranks exchange are 16 bits wide
COLLECTIVES_PER_LAYER = 2  # one behind the attention, one behind the feed-forward block
# Seconds of an exchange of a few kilobytes between the GPUs of one node. No calibration here measures it: the value is
# an assumption, below what one-shot all-reduce kernels over NVLink take.
COLLECTIVE_LATENCY_S = 3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFloor(Shown):
    """The least that everything but attention takes in one decode step of one rank."""

    weight_bytes: float
    """Weights that are read, routed experts as far as the batch visits them."""
    state_bytes: float
    """Recurrent states that are read and written."""
    kv_write_bytes: float
    """New keys and values."""
    collectives: int
    """Exchanges between the ranks."""
    collective_bytes: float
    """Bytes that one rank sends in all of them."""
    bytes_per_s: float
    """The sustained rate of the memory."""
    exchange_bytes_per_s: float | None
    """The rate of the interconnect in one direction; None without one, or on one rank."""

    @property
    def weights_s(self) -> float:
        """Seconds to read the weights."""
        return self.weight_bytes / self.bytes_per_s

    @property
    def states_s(self) -> float:
        """Seconds to read and write the states."""
        return self.state_bytes / self.bytes_per_s

    @property
    def kv_write_s(self) -> float:
        """Seconds to write the new keys."""
        return self.kv_write_bytes / self.bytes_per_s

    @property
    def exchange_s(self) -> float:
        """Seconds of the exchanges."""
        moved = self.collective_bytes / self.exchange_bytes_per_s if self.exchange_bytes_per_s else 0.0
        return self.collectives * COLLECTIVE_LATENCY_S + moved

    @property
    def total_s(self) -> float:
        """The floor."""
        return self.weights_s + self.states_s + self.kv_write_s + self.exchange_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the seconds included."""
        from dataclasses import asdict

        seconds = {
            name: getattr(self, name) for name in ("weights_s", "states_s", "kv_write_s", "exchange_s", "total_s")
        }
        return {**asdict(self), **seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Shown):
    """Attention beside the floor of the rest."""

    attention: TokenTime
    """All attention layers of one step."""
    floor: StepFloor
    """The rest, at least."""

    @property
    def least_s(self) -> float:
        """The least that a step takes: attention at its lower end, and the floor."""
        return self.attention.least_s + self.floor.total_s

    @property
    def most_share(self) -> float | None:
        """The largest share of a step that attention can have: at its upper end, beside the floor alone. None where the
        kernel was not calibrated, so that nothing bounds its time from above."""
        high = self.attention.high_s
        return None if high is None else high / (high + self.floor.total_s)

    def share(self, slack: float) -> float:
        """Attention's share where the rest takes `slack` times its floor, attention at its lower end."""
        return self.attention.least_s / (self.attention.least_s + slack * self.floor.total_s)

    def __str__(self) -> str:
        """One line for people."""
        total = self.attention.total_s
        taken = f"at least {human_seconds(self.attention.floor_s)}" if total is None else human_seconds(total)
        return f"attention {taken} beside a floor of {human_seconds(self.floor.total_s)} for the rest of the step"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested."""
        return {"attention": self.attention.to_dict(), "floor": self.floor.to_dict(), "least_s": self.least_s}


def step(
    model: Model | str,
    batch: Batch,
    *,
    engine: str = DEFAULT_ENGINE,
    tp: int = 1,
    kv: KvCache | None = None,
    gpu: Gpu | str = "h100-sxm",
    calibration: Calibration | None = None,
    expert_ranks: int | None = None,
    stored: str | None = None,
) -> Step:
    """Attention of one decode step on one rank of `tp`, beside the floor of the rest.

    engine, kv, gpu and calibration as in `token_time`; expert_ranks and stored as in `step_floor`. Raises what these
    two raise.
    """
    from decodecalc.cost.token import token_time
    from decodecalc.gpus import load_gpu
    from decodecalc.models import load_model

    whole, device = model if isinstance(model, Model) else load_model(model), load_gpu(gpu)
    attention = token_time(whole, batch, engine=engine, tp=tp, kv=kv, gpu=device, calibration=calibration)
    floor = step_floor(
        whole, batch=batch.size, gpu=device, calibration=calibration, kv=kv, tp=tp, q_len=batch.max_q_len,
        expert_ranks=expert_ranks, stored=stored,
    )  # fmt: skip
    return Step(attention=attention, floor=floor)


# The rest of a step in servers takes between its floor and this many times as long; the share is given as a range.
REST_SLACK = 2.0


def step_floor(
    model: Model,
    *,
    batch: int,
    gpu: Gpu,
    calibration: Calibration | None = None,
    kv: KvCache | None = None,
    tp: int = 1,
    pp: int = 1,
    q_len: int = 1,
    expert_ranks: int | None = None,
    stored: str | None = None,
    replicas: int = 1,
) -> StepFloor:
    """The floor of one step of `batch` sequences with `q_len` query tokens each.

    stored: how linear layers are stored, where that is not the checkpoint's way. replicas: attention replicas whose
    tokens the experts of this rank serve too. InputError where the model's weights or the memory's rate are not known.
    """
    from decodecalc.analysis.memory import cache_size
    from decodecalc.cost.load import load_calibration

    if model.weights is None:
        raise InputError(
            f"the weights of {model.name} are not known: its configuration does not state their shapes "
            "(hidden_size, intermediate_size, vocab_size, …)"
        )
    known = calibration or load_calibration(gpu=gpu)
    tokens = batch * q_len
    weights = model.weights.rank_bytes(
        tp=tp, expert_ranks=expert_ranks, stored=stored, tokens=tokens * max(replicas, 1)
    )
    cache = cache_size(model, kv or KvCache(), tp=tp, pp=pp)
    hidden = model.hidden_size or 0
    collectives = COLLECTIVES_PER_LAYER * model.total_layers // pp if tp > 1 else 0
    return StepFloor(
        weight_bytes=weights / pp,
        state_bytes=2 * batch * cache.state_bytes / pp,
        kv_write_bytes=tokens * cache.token_bytes,
        collectives=collectives,
        collective_bytes=collectives * tokens * hidden * ACTIVATION_BYTES * 2 * (tp - 1) / tp,
        bytes_per_s=sustained_bytes_per_s(known, gpu),
        exchange_bytes_per_s=gpu.interconnect_bytes_per_s_per_direction if tp > 1 else None,
    )


def sustained_bytes_per_s(calibration: Calibration, gpu: Gpu) -> float:
    """The rate at which the memory streams to all SMs: the calibration's, else the data sheet's."""
    found = calibration.parameters.get("hbm_sustained_bytes_per_s")
    return float(found.number) if found is not None else gpu.need("hbm_bytes_per_s")
