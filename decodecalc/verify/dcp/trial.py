"""One case of context parallelism: the whole step's tensors, and the launch of every rank of this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from decodecalc.keyshare import KeyShare
from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.dcp.group import RankGroup
from decodecalc.verify.dcp.local import local_inputs
from decodecalc.verify.run.device import Device
from decodecalc.verify.run.execution import Execution, execution_of
from decodecalc.verify.run.inputs import Inputs
from decodecalc.verify.run.trial import Trial
from decodecalc.verify.session.suites import Case

if TYPE_CHECKING:
    import torch

    from decodecalc.cost import Calibration


@dataclass
class DcpTrial:
    """One case: the whole step's tensors, and a trial of the launch for every rank of this process."""

    case: Case
    group: RankGroup
    device: Device
    calibration: Calibration | None
    seed: int

    @property
    def share(self) -> KeyShare:
        """How the keys are dealt."""
        found = self.case.scenario.geometry.share
        assert found is not None
        return found

    @cached_property
    def whole(self) -> Inputs:
        """The step on one GPU that has all keys, with the gathered heads. The same on every process."""
        from decodecalc.verify.run.inputs import make_inputs

        scenario = self.case.scenario
        alone = replace(scenario.geometry, share=None)
        return make_inputs(alone, scenario.batch, scenario.kv, self.device.torch_name, 1, self.seed)

    def plan_of(self, rank: int) -> LaunchPlan:
        """The rank's plan, by the case's engine: of its own keys."""
        case, geo = self.case, self.case.scenario.geometry
        assert case.plan is not None
        batch = case.scenario.batch.seen_by(geo, rank)
        options = case.policy.own_options(case.scenario.options, case.scenario.model_kv_heads)
        return case.policy.plan(geo, batch, case.scenario.kv, case.plan.gpu, options, case.version)

    @cached_property
    def trials(self) -> dict[int, Trial]:
        """A trial for every rank of this process. A rank that lacks keys of a request launches as rank 0 does."""
        geo = self.case.scenario.geometry
        first = self._run(self.plan_of(0))
        found = {}
        for rank in self.group.mine:
            inputs = local_inputs(self.whole, geo, self.share, rank)
            plan = self.plan_of(rank)
            run = self._run(plan)
            run = first if run.unsupported else run
            found[rank] = Trial(self.case, plan, run, inputs, self.device, False, self.calibration)
        return found

    def _run(self, plan: LaunchPlan) -> Execution:
        return execution_of(plan, self.calibration)

    @cached_property
    def states(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Outputs [tokens, heads, D] and log-sum-exps [tokens, heads] of the ranks of this process."""
        import torch

        outs, lses = [], []
        for trial in self.trials.values():
            lse = torch.full(
                trial.inputs.out_shape[:2], float("nan"), dtype=torch.float32, device=trial.inputs.q.device
            )
            outs.append(trial.launch(workspace=trial.workspace(trial.run.launch), out=trial.output(), lse=lse))
            lses.append(lse)
        return outs, lses

    @cached_property
    def alone(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp of one GPU with all keys: the kernel under the same engine's rule."""
        import torch

        case = self.case
        assert case.plan is not None
        plan = case.policy.plan(self.whole.geometry, self.whole.batch, self.whole.kv, case.plan.gpu, {}, case.version)
        trial = Trial(case, plan, self._run(plan), self.whole, self.device, False, self.calibration)
        lse = torch.full(self.whole.out_shape[:2], float("nan"), dtype=torch.float32, device=self.whole.q.device)
        return trial.launch(workspace=trial.workspace(trial.run.launch), out=trial.output(), lse=lse), lse

    @cached_property
    def reference(self) -> torch.Tensor:
        """Float64 over all keys [tokens, heads, D]."""
        from decodecalc_kernels import decode_attention_reference

        found, _ = decode_attention_reference(self.whole.q, *self.whole.cache(), **self.whole.arguments())
        return found
