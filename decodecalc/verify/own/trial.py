"""One step under an engine's own kernel: what was prepared, what was seen, what was timed; each made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decodecalc.engines.registry import load_policy
from decodecalc.errors import DecodecalcError
from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.own.observe import SeenKernel, kernel_events, planned_part, seen_kernels
from decodecalc.verify.own.peers import peer_folder, use_folder
from decodecalc.verify.own.runner import PEERS, FoundEngine, KernelRunner, OwnStep, Prepared
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.inputs import Inputs
from decodecalc.verify.run.timing import BUDGET_S, Timed, time_layers

if TYPE_CHECKING:
    import torch

    from decodecalc.cost import Calibration, Prediction


@dataclass
class OwnTrial:
    """What the claims look at. cold: whether the layers of `inputs` overflow the L2. trace: the profiler's record of
    the kernels, once they were watched. budget_s: about how long replays of one launch are timed."""

    case_id: str
    plan: LaunchPlan
    runner: KernelRunner
    found: FoundEngine
    inputs: Inputs
    device: Device
    cold: bool
    calibration: Calibration | None = None
    trace: dict[str, Any] | None = None
    budget_s: float = BUDGET_S

    def output(self) -> torch.Tensor:
        """A poisoned output, in the queries' type."""
        import torch

        shape = self.inputs.out_shape
        return torch.full(shape, float("nan"), dtype=self.inputs.q.dtype, device=self.device.torch_name)

    @cached_property
    def out(self) -> torch.Tensor:
        """Where the engine writes."""
        return self.output()

    @cached_property
    def prepared(self) -> Prepared:
        """The engine's step, made ready."""
        folder = peer_folder()
        if self.found.where == PEERS and folder is not None:
            use_folder(folder)
        step = OwnStep(
            geometry=self.plan.geometry,
            batch=self.plan.batch,
            kv=self.plan.kv,
            options=self.plan.options,
            settled=self.plan.detail,
            inputs=self.inputs,
            out=self.out,
        )
        return self.runner.prepare(step)

    def launch(self, layer: int = 0) -> None:
        """The step's first part and one layer."""
        if self.prepared.once is not None:
            self.prepared.once()
        self.prepared.layer(layer)

    @cached_property
    def seen(self) -> tuple[SeenKernel, ...]:
        """Every kernel of the step's first part and one layer."""
        if not self.device.is_cuda:
            return ()
        self.launch()  # compiled before it is watched
        self.device.synchronize()
        self.trace = kernel_events(self.launch)
        return seen_kernels(self.trace["traceEvents"])

    @property
    def kernels(self) -> list[SeenKernel]:
        """Those of them that a plan speaks of."""
        return planned_part(self.seen)

    @cached_property
    def time(self) -> Timed:
        """Cold-L2 time per layer."""
        self.launch()
        return self.time_of(self.prepared.layer)

    def time_of(self, per_layer: Callable[[int], Any]) -> Timed:
        """Seconds per layer of a launch over this trial's layers."""
        return time_layers(per_layer, self.inputs.layers, self.cold, self.budget_s)

    @cached_property
    def prediction(self) -> Prediction:
        """The time model's answer for this plan on the engine's own kernel."""
        from decodecalc.cost import predict

        return predict(self.plan, calibration=self.calibration, l2="cold" if self.cold else "warm")

    def under(self, options: Mapping[str, Any]) -> OwnTrial | None:
        """The same step under other settings of the engine; None where the engine or its runner refuses them."""
        plan = self.plan
        try:
            chosen = load_policy(plan.engine).plan(
                plan.geometry, plan.batch, plan.kv, plan.gpu, {**plan.options.to_dict(), **options}, plan.version
            )
        except DecodecalcError:
            return None
        return OwnTrial(
            case_id=f"{self.case_id}/{options}",
            plan=chosen,
            runner=self.runner,
            found=self.found,
            inputs=self.inputs,
            device=self.device,
            cold=self.cold,
            calibration=self.calibration,
            budget_s=self.budget_s,
        )
