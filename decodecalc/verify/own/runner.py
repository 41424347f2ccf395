"""What an engine folder says about running its own kernel: the interface between `engines/<folder>/run.py` and verify.

A folder that has a `run.py` fills `RUNNERS`, a tuple of `KernelRunner`. It is the only file of an engine that imports
torch, and it does so inside its functions: `decodecalc engines --runnable` lists runners on machines without torch.

A runner is given the tensors of a step and the settings of the engine, and never the plan: how the installed engine
then cuts the keys is an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from decodecalc.batch import Batch
from decodecalc.engines.registry import folder_modules
from decodecalc.errors import DecodecalcError
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache

if TYPE_CHECKING:
    import torch

    from decodecalc.verify.run.inputs import Inputs

INSTALLED, PEERS = "installed", "peer folder"


class UnavailableError(DecodecalcError):
    """The engine cannot be run on this machine; the message says why."""


class CannotRunError(DecodecalcError):
    """The engine is here, but its runner cannot make this step; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEngine:
    """An engine that can be run on this machine."""

    package: str
    """The distribution that holds the kernel."""
    version: str
    """Its version."""
    policy_version: str | None
    """The version of our policy that it follows; None where our policy knows no such version."""
    where: str = INSTALLED
    """`installed` or `peer folder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """One decode step as a server hands it to the kernel, for every layer of `inputs`."""

    geometry: Geometry
    """The layer on one rank."""
    batch: Batch
    """Lengths and query tokens."""
    kv: KvCache
    """Element type and page size of the cache."""
    options: Any
    """The engine's settings, an object of its policy's options."""
    settled: Any
    """What a server settles before the step and our policy computes (a threshold between two paths, for example): the
    plan's `detail`. A runner takes from it only what the engine's kernel and its launcher do not decide."""
    inputs: Inputs
    """The tensors."""
    out: torch.Tensor
    """[query tokens, q_heads, v_dim], poisoned."""

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return float(self.geometry.head_dim**-0.5)

    @property
    def device(self) -> Any:
        """Where the tensors are."""
        return self.out.device

    def query_starts(self) -> torch.Tensor:
        """[requests + 1] int32: where each request's query tokens begin."""
        import torch

        ends = torch.tensor(self.batch.q_lens, dtype=torch.int64).cumsum(0)
        return torch.tensor([0, *ends.tolist()], dtype=torch.int32, device=self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A step made ready: what is launched once, and what every layer launches."""

    layer: Callable[[int], Any]
    """Launches the attention of one layer and writes the step's `out`."""
    once: Callable[[], Any] | None = None
    """Launches what the engine launches once a step, before its layers; None where there is nothing."""
    queries: torch.Tensor | None = None
    """The queries as the kernel reads them, where it does not read those of the inputs (FP8), in bf16."""
    window: int | None = None
    """Keys that a query sees, where the engine hands its kernel another window than the layer's."""
    note: str = ""
    """What the reader of a report should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trying:
    """A decode step on which an engine's own kernel is checked (`decodecalc verify --kernel own`)."""

    model: str
    """A model of the zoo."""
    tp: int = 1
    """Its tensor-parallel degree."""
    batch: int = 1
    """Requests."""
    context: int = 4096
    """Keys of each."""
    ragged: tuple[int, ...] = ()
    """Keys of each, where they differ; batch and context then say nothing."""
    dtype: str = "bf16"
    """Element type of the cache."""
    page: int = 16
    """Keys of a page."""
    q_len: int = 1
    """Query tokens of each request."""
    group: str | None = None
    """The model's layer group; its first when None."""
    options: tuple[tuple[str, Any], ...] = ()
    """Settings of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRunner:
    """One engine's own kernel."""

    engine: str
    """The engine's name in the registry."""
    calls: str
    """What is called, for people."""
    find: Callable[[], FoundEngine]
    """The installed engine. `UnavailableError` says why there is none; neither the engine nor torch is imported."""
    prepare: Callable[[OwnStep], Prepared]
    """The step made ready. `CannotRunError` says why it cannot be."""
    steps: tuple[Trying, ...] = ()
    """The steps that `verify --kernel own` checks it on: its paths, and what it serves beside plain GQA."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """‖out - reference‖ / ‖reference‖ allowed, by the element type of the cache, where the kernel rounds more than the
    bundled one (weights rounded to FP8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """One runner on this machine: `found`, or the reason why it is not there."""

    runner: KernelRunner
    """The runner."""
    found: FoundEngine | None
    """What was found; None when nothing was."""
    reason: str = ""
    """Why nothing was."""


def all_runners() -> tuple[KernelRunner, ...]:
    """The runners of every engine folder that has a `run.py`, in the listing's order."""
    return tuple(runner for module in folder_modules("run") for runner in module.RUNNERS)


def look(runner: KernelRunner) -> Here:
    """Whether this runner's engine is on this machine."""
    try:
        return Here(runner=runner, found=runner.find())
    except UnavailableError as why:
        return Here(runner=runner, found=None, reason=str(why))


def runners_here() -> dict[str, Here]:
    """Every runner by its engine's name, looked for on this machine."""
    return {runner.engine: look(runner) for runner in all_runners()}
