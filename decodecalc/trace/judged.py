"""One launch group with everything that the audit found about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.engines.registry import traits_of
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.trace.against_model import COLD, AgainstModel, against_model
from decodecalc.trace.attribution import Attribution
from decodecalc.trace.candidates import GIVEN, UNKNOWN
from decodecalc.trace.compare import LaunchClaim
from decodecalc.trace.inference import Inferred
from decodecalc.trace.pairing import LaunchGroup
from decodecalc.units import human_seconds

# The statuses of a group.
MATCH = "match"  # equals the plan of what the user says was run
CONSISTENT = "consistent"  # equals a plan whose heads or batch come from the launch itself
MISMATCH = "mismatch"
NO_GRID = "no grid"  # timed, but the trace has no launch arguments
NEEDS = "needs inputs"
REFUSED = "refused"  # the engine refuses what the user says was run
NOT_MODELLED = "not modelled"
NOT_ASKED = "not asked for"
PREFILL = "prefill"
VERIFIED = (MATCH, CONSISTENT)
LITTLE = 0.5  # a launch that covers a smaller share of the SMs leaves most of the GPU idle


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWarning:
    """Something that is known to cost time or to mislead, seen in one launch group."""

    code: str
    """A short name in snake case."""
    text: str
    """One sentence with the numbers."""


@dataclass(frozen=True)  # no slots: cached properties
class JudgedLaunch:
    """One launch group, judged."""

    group: LaunchGroup
    """The launches."""
    attribution: Attribution
    """What the launches were recognised as."""
    seen: Inferred
    """What the launches say by themselves."""
    status: str
    """One of the statuses above."""
    share: float | None
    """Share of the time of all kernels of the traces."""
    path_names: tuple[str, str] = ("unsplit", "split")
    """The engine's words for its paths."""
    sm_count: int | None = None
    """SMs of the GPU that it ran on."""
    l2: str = COLD
    """Whether the KV cache can have been in L2 when a launch began: `cold` or `warm`."""
    l2_why: str = ""
    """What says so."""
    engine: str | None = None
    """The engine that launched it."""
    version: str | None = None
    """The version of the engine's policy with which it was compared."""
    versions: tuple[str, ...] = ()
    """All versions whose plan agrees."""
    layer: LayerGroup | None = None
    """The layers that it belongs to."""
    layers: int | None = None
    """How many layers of this kind the model has."""
    plan: LaunchPlan | None = None
    """The plan of what should have run; None where there is none."""
    lengths: str = UNKNOWN
    """Where the KV lengths come from."""
    inferred: tuple[str, ...] = ()
    """What was taken from the launch itself."""
    setting: str = ""
    """Settings that the launch shows, in words."""
    claims: tuple[LaunchClaim, ...] = ()
    """Every statement of the plan that the launch confirms or refutes."""
    note: str = ""
    """What is missing, refused or assumed."""
    explanation: str = ""
    """Settings under which the differing launch would be right."""
    warnings: tuple[LaunchWarning, ...] = ()
    """What is known to cost time or to mislead."""

    @property
    def is_mismatch(self) -> bool:
        """Whether the launch differs from its plan."""
        return self.status == MISMATCH

    @property
    def observed_split(self) -> bool | None:
        """Whether the split path ran; None when the trace does not say."""
        return self.attribution.path_split

    @property
    def path(self) -> str | None:
        """The path that ran, in the engine's words."""
        if self.observed_split is None:
            return None
        return self.path_names[self.observed_split]

    @property
    def lengths_known(self) -> bool:
        """Whether all lengths are known and the plan is what ran; only then are live splits and blocks known."""
        return self.plan is not None and self.lengths == GIVEN and self.status != MISMATCH

    @property
    def context(self) -> int | None:
        """Keys of the longest request; None while the lengths are not known."""
        return self.plan.batch.max_seq_len if self.plan is not None and self.lengths_known else None

    @cached_property
    def against_model(self) -> AgainstModel:
        """What the time model says about this launch, where the lengths are known."""
        if self.plan is None or not self.lengths_known:
            return AgainstModel()
        return against_model(self.plan, self.layers, self.l2)

    @property
    def failed(self) -> tuple[LaunchClaim, ...]:
        """Claims that the trace refutes."""
        return tuple(c for c in self.claims if not c.holds)

    @property
    def live_blocks(self) -> int | None:
        """Blocks with keys to read; None while the lengths are not known."""
        return self.plan.live_blocks if self.plan is not None and self.lengths_known else None

    @property
    def sm_coverage(self) -> float | None:
        """Share of the SMs with a live block; None while the lengths are not known."""
        return occupancy(self.plan).sm_coverage if self.plan is not None and self.lengths_known else None

    @property
    def launched_coverage(self) -> float | None:
        """Share of the SMs that the observed grid could cover: an upper bound of `sm_coverage`."""
        blocks = self.group.stage1.blocks
        return None if blocks is None or not self.sm_count else min(blocks, self.sm_count) / self.sm_count

    @property
    def is_idle(self) -> bool:
        """Whether the launch left most of the GPU without work."""
        return self.sm_coverage is not None and self.sm_coverage < LITTLE

    @property
    def use(self) -> str:
        """How much of the GPU the launch used, in words; empty while that is not known."""
        if self.sm_coverage is None or not self.sm_count:
            return ""
        used, share = round(self.sm_coverage * self.sm_count), 100 * self.sm_coverage
        return f"{used} of {self.sm_count} SMs ({share:.0f} % of the GPU)"

    @property
    def compared(self) -> str | None:
        """The measured time beside the predicted one, in words; None where one of them is not known."""
        return self.against_model.compared(self.measured_s)

    @property
    def measured_s(self) -> float | None:
        """Median time of one launch as a prediction counts it: a scheduler that a server runs once for all layers of a
        step is left out, although a recording of one layer has it with every launch."""
        step_s, scheduler = self.group.step_s, self.group.scheduler_time
        if step_s is None or scheduler is None or self.plan is None:
            return step_s
        if not traits_of(self.plan.engine).schedules_once_a_step or scheduler.launches < self.group.launches:
            return step_s
        return step_s - (scheduler.median_s or 0.0)

    @property
    def to_set(self) -> str:
        """What to set on the server, and what that is predicted to bring; empty where nothing is.

        A setting counts only where its predicted time is well below the measured one: where the model is wrong about
        this launch, it gives no advice.
        """
        advice, measured = self.against_model.advice, self.measured_s
        if advice is None or advice.setting is None or advice.then_s is None or measured is None:
            return ""
        then_s = advice.then_s / (self.layers or 1)
        if then_s * (1 + (advice.needed or 0.0)) >= measured:
            return ""
        return (
            f"start {advice.server} with {advice.setting}; a layer's attention is then predicted to take "
            f"{human_seconds(then_s)}, and {human_seconds(measured)} were measured"
        )

    @property
    def kv_read_bytes(self) -> int | None:
        """Useful KV bytes of one launch; None while not even the sum of the lengths is known."""
        if self.plan is None or self.lengths == UNKNOWN or self.status == MISMATCH:
            return None
        return traffic(self.plan).kv_read_bytes

    @property
    def achieved_bytes_per_s(self) -> float | None:
        """Useful KV bytes over the median time of stage 1."""
        median, read = self.group.stage1_time.median_s, self.kv_read_bytes
        return read / median if read and median else None
