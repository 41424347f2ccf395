"""One case on one device: the plan, the launch that runs it, its tensors, and the observations, each measured once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.execution import Execution
from decodecalc.verify.run.inputs import Inputs
from decodecalc.verify.run.profile import ObservedKernel, profiled
from decodecalc.verify.run.timing import Timed, time_layers
from decodecalc.verify.session.suites import Case

if TYPE_CHECKING:
    import torch

    from decodecalc.cost import Calibration, Prediction
    from decodecalc.verify.run.counters import Counted
    from decodecalc_kernels import LaunchConfig
    from decodecalc_kernels.instrument import LaunchRecord


@dataclass(frozen=True)
class Times:
    """Measured seconds per layer: both kernels, stage 1 alone, merge alone (None when nothing is split)."""

    total: Timed
    stage1: Timed
    merge: Timed | None


@dataclass
class Trial:
    """What the claims read. `cold`: whether the layers of `inputs` exceed the L2. counted: the counters of ncu."""

    case: Case
    plan: LaunchPlan
    run: Execution
    inputs: Inputs
    device: Device
    cold: bool
    calibration: Calibration | None = None
    counted: Counted | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    # ---- launching

    def workspace(self, config: LaunchConfig, tokens: int | None = None) -> Any:
        """Poisoned scratch for a launch (also for an unsplit one, which must not touch it)."""
        from decodecalc_kernels import Workspace

        rows, q_heads, v_dim = self.inputs.out_shape
        rows = tokens or rows
        space = Workspace.allocate(
            rows,
            q_heads,
            v_dim,
            config.num_splits,
            self.device.torch_name,
            self.plan.batch.size * self.plan.batch.max_q_len,
        )
        space.poison()
        return space

    def output(self, tokens: int | None = None) -> torch.Tensor:
        """A poisoned output, in the queries' type."""
        import torch

        shape = (tokens or self.inputs.out_shape[0], *self.inputs.out_shape[1:])
        return torch.full(shape, float("nan"), dtype=self.inputs.q.dtype, device=self.device.torch_name)

    def values(self) -> torch.Tensor | None:
        """The per-request counts or sizes on the device."""
        import torch

        if self.run.split_values is None:
            return None
        return torch.tensor(self.run.split_values, dtype=torch.int32, device=self.device.torch_name)

    @cached_property
    def split_values(self) -> torch.Tensor | None:
        """`values()`, computed once."""
        return self.values()

    def launch(self, config: LaunchConfig | None = None, layer: int = 0, **more: Any) -> torch.Tensor:
        """Launches one decode step of one layer. `more` goes to the launcher (workspace, out, lse, run, split_values,
        …)."""
        from decodecalc_kernels import decode_attention

        inputs = self.inputs
        more.setdefault("split_values", self.split_values)
        more.setdefault("window", self.run.window)
        args = {**inputs.arguments(), **more}
        return decode_attention(inputs.q, *inputs.cache(layer), config=config or self.run.launch, **args)

    def split_list(self, config: LaunchConfig) -> torch.Tensor | None:
        """The list of live splits that all layers of a listed launch share; None for others."""
        if not config.listed:
            return None
        from decodecalc_kernels import list_splits

        args = {name: value for name, value in self.inputs.arguments().items() if name in ("q_len", "query_start")}
        return list_splits(config, self.inputs.seq_lens, split_values=self.split_values, window=self.run.window, **args)

    # ---- seeing

    @cached_property
    def record(self) -> LaunchRecord:
        """What every stage-1 block did, from the instrumented kernel."""
        return self._recorded[0]

    @property
    def recorded_kernel(self) -> ObservedKernel | None:
        """The instrumented stage-1 kernel of `record` as CUPTI saw it; None without CUDA."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[LaunchRecord, ObservedKernel | None]:
        from decodecalc_kernels import record_launch

        inputs, config = self.inputs, self.run.launch
        space, out = self.workspace(config), self.output()
        found: list[LaunchRecord] = []

        def call() -> None:
            _, record = record_launch(
                inputs.q, *inputs.cache(), config=config, workspace=space, out=out,
                split_values=self.split_values, window=self.run.window, **inputs.arguments(),
            )  # fmt: skip
            found.append(record)

        if not self.device.is_cuda:
            call()
            return found[0], None
        call()  # compiled, and the clocks are up
        seen = profiled(call)
        return found[-1], next((k for k in seen if k.role == "stage1"), None)

    @cached_property
    def kernels(self) -> tuple[ObservedKernel, ...]:
        """The kernels of one launch, as CUPTI saw them."""
        config = self.run.launch
        space, out = self.workspace(config), self.output()
        self.launch(workspace=space, out=out)  # compiled before it is watched
        return profiled(lambda: self.launch(workspace=space, out=out))

    @cached_property
    def times(self) -> Times:
        """Cold-L2 time per layer, by the protocol of `timing`."""
        config = self.run.timed or self.run.launch
        space, out, entries = self.workspace(config), self.output(), self.split_list(config)

        def timed(part: str) -> Timed:
            return self.time(
                lambda layer: self.launch(config, layer, workspace=space, out=out, split_list=entries, run=part)
            )

        total = timed("both")
        if config.direct or config.merge == "fused":
            return Times(total, total, None)
        return Times(total, timed("stage1"), timed("merge"))

    def time(self, per_layer: Callable[[int], Any]) -> Timed:
        """Seconds per layer of any launch over this trial's layers."""
        return time_layers(per_layer, self.inputs.layers, self.cold)

    @cached_property
    def prediction(self) -> Prediction:
        """The time model's answer for this plan on the bundled kernel."""
        from decodecalc.cost import predict

        return predict(self.plan, calibration=self.calibration, kernel="bundled", l2="cold" if self.cold else "warm")
