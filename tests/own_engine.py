"""A made-up engine on the CPU: its library launches what the test tells it, and its profiler sees just that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decodecalc.launch.plan import LaunchPlan
from decodecalc.verify.own.runner import FoundEngine, Here, KernelRunner, OwnStep, Prepared
from decodecalc.verify.run.device import Device


class CpuAsGpu(Device):
    """A device that says it is a GPU, on the CPU's memory."""

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""

    def free_bytes(self) -> int | None:
        """Little, so that few layers are made."""
        return 1 << 24


@dataclass
class FakeEngine:
    """A library with the right output that launches `plan`'s kernels; `change` spoils what it does."""

    plan: LaunchPlan
    error: float = 0.0
    """Relative error of its output."""
    extra_splits: int = 0
    """Added to the last extent of the stage-1 grid."""
    threads: int | None = None
    """Threads of a block, instead of the plan's."""
    names: dict[str, str] = field(default_factory=dict)
    """Kernel names that replace the plan's."""
    seconds: dict[Any, float] = field(default_factory=dict)
    """Time of a layer by the value of its split setting; `None` for its own rule."""
    setting: str | None = None
    """Option that is its split setting."""
    launched: list[dict[str, Any]] = field(default_factory=list)

    def prepare(self, step: OwnStep) -> Prepared:
        """What a runner's `prepare` does."""
        from decodecalc_kernels import decode_attention_reference

        value = None if self.setting is None else (getattr(step.options, self.setting) or None)

        def layer(index: int) -> None:
            keys = step.inputs.cache(index)
            right, _ = decode_attention_reference(
                step.inputs.q, *keys, window=step.geometry.window, **step.inputs.arguments()
            )
            step.out.copy_(right * (1 + self.error))
            self.launched += self.events()

        layer.seconds = self.seconds.get(value, 1e-5)  # type: ignore[attr-defined]
        return Prepared(layer=layer)

    def events(self) -> list[dict[str, Any]]:
        """The profiler's events of one layer."""
        out = []
        for at, kernel in enumerate(self.plan.kernels):
            grid = [*kernel.grid, 1, 1][:3]
            if kernel.role == "stage1":
                grid[2] += self.extra_splits
            threads = self.threads or kernel.threads or 128
            args = {"grid": grid, "block": [threads, 1, 1], "device": 0, "stream": 7}
            name = self.names.get(kernel.name, kernel.name)
            out.append({"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": 1.0, "args": args})
        return out

    def here(self) -> Here:
        """The engine on this machine."""
        runner = KernelRunner(
            engine=self.plan.engine, calls="fake_decode", find=self.found, prepare=self.prepare,
        )  # fmt: skip
        return Here(runner=runner, found=self.found())

    def found(self) -> FoundEngine:
        """Its version is the plan's."""
        return FoundEngine(package="fake", version="1.0", policy_version=self.plan.version)
