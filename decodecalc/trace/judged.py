"""One launch group with everything that the audit found about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decodecalc.analysis.occupancy import occupancy
from decodecalc.analysis.traffic import traffic
from decodecalc.launch.plan import LaunchPlan
from decodecalc.models import LayerGroup
from decodecalc.trace.against_model import AgainstModel, against_model
from decodecalc.trace.attribution import Attribution
from decodecalc.trace.candidates import GIVEN, UNKNOWN
from decodecalc.trace.compare import LaunchClaim
from decodecalc.trace.inference import Inferred
from decodecalc.trace.pairing import LaunchGroup

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
        return against_model(self.plan, self.layers)

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
