"""The thirteen claims that `verify` checks on the machine, and what one check of one of them found.

A finding compares numbers of two origins. `predicted` comes from a policy's LaunchPlan and its analyses. `observed`
comes from the profiler, from what the blocks of the kernel recorded, from poisoned buffers, from counters or from a
clock. No observed number is derived from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodecalc.errors import InputError
from decodecalc.files import MAX_DIGITS

PASS, FAIL, OFF, NOTE, SKIP, ERROR = "pass", "fail", "off", "note", "skip", "error"
# off: a measured quantity is beyond its tolerance; the suite as a whole decides whether that is a failure. note:
# nothing was predicted, so nothing can fail. skip: the claim cannot be checked here, for the stated reason. error: the
# check itself raised an error.
VERDICTS = (PASS, FAIL, OFF, NOTE, SKIP, ERROR)
BAD = (FAIL, ERROR)


@dataclass(frozen=True)
class Claim:
    """One statement of the analysis. exact: it must hold with equality. cuda: it has no meaning without a real GPU."""

    number: int
    name: str
    text: str
    exact: bool = False
    cuda: bool = False


CLAIMS = (
    Claim(1, "correct", "the output equals the float64 reference"),
    Claim(2, "grid", "launched grid and threads, kernel by kernel", exact=True, cuda=True),
    Claim(3, "live", "live blocks and early exits", exact=True),
    Claim(4, "keys", "key range of every split", exact=True),
    Claim(5, "coverage", "SMs that work, live blocks per SM", exact=True, cuda=True),
    Claim(6, "residency", "blocks that an SM holds at a time", exact=True, cuda=True),
    Claim(7, "partials", "partial-state rows written and read", exact=True),
    Claim(8, "kv-bytes", "KV bytes against DRAM counters", cuda=True),
    Claim(9, "intensity", "operational intensity and share of the roof", cuda=True),
    Claim(10, "time", "stage 1, merge and total", cuda=True),
    Claim(11, "best-split", "best S by sweep against S_opt and S*", cuda=True),
    Claim(12, "replay", "one capture replayed for other lengths: same bits, same geometry", exact=True),
    Claim(13, "bits", "reproducibility across batch mates and split counts"),
)
BY_NUMBER = {claim.number: claim for claim in CLAIMS}


def claim_numbers(text: str | None) -> tuple[int, ...]:
    """`1,3-5,time` as claim numbers; all of them for None."""
    if text is None:
        return tuple(BY_NUMBER)
    names = {claim.name: claim.number for claim in CLAIMS}
    found: list[int] = []
    for part in (p.strip().lower() for p in text.split(",")):
        low, dash, high = part.partition("-")
        if part in names:
            found.append(names[part])
        elif _is_number(low) and (_is_number(high) or not dash):
            found += range(int(low), min(int(high or low), len(CLAIMS) + 1) + 1)
        else:
            raise InputError(f"--claims {part[:30]!r}: give numbers 1 to {len(CLAIMS)} or names: {', '.join(names)}")
    if not found or not set(found) <= set(BY_NUMBER):
        raise InputError(f"--claims {text[:30]!r}: claims are numbered 1 to {len(CLAIMS)}")
    return tuple(sorted(set(found)))


def claims_among(text: str | None, checked: tuple[int, ...], reason: str) -> tuple[int, ...]:
    """Those of the `checked` claims that are asked for, all of them for None. InputError for another; reason: what
    only these can be checked of, with `{}` for the number of the first that cannot."""
    if text is None:
        return checked
    asked = claim_numbers(text)
    wrong = [number for number in asked if number not in checked]
    if wrong:
        raise InputError(f"--claims {text[:30]!r}: claims {', '.join(map(str, checked))} {reason.format(wrong[0])}")
    return asked


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


@dataclass(frozen=True)
class Quantity:
    """One number (or list, or word) of a claim, predicted and observed. predicted is None without a prediction."""

    name: str
    predicted: Any
    observed: Any
    unit: str = ""

    @property
    def difference(self) -> float | None:
        """observed - predicted, where both are numbers; otherwise None."""
        numbers = (self.predicted, self.observed)
        if all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers):
            return self.observed - self.predicted
        return None

    @property
    def ratio(self) -> float | None:
        """The relative error of the prediction: (observed - predicted) / observed."""
        gap = self.difference
        return None if gap is None or not self.observed else gap / self.observed

    @property
    def agrees(self) -> bool:
        """Whether both are equal, or nothing was predicted."""
        return self.predicted is None or self.predicted == self.observed

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "predicted": self.predicted, "observed": self.observed, "unit": self.unit}


@dataclass(frozen=True)
class Finding:
    """What one check of one claim found.

    spread: the relative spread of the observed quantity; None where it is exact. facts: more columns of the claim's
    rows, for tools that read reports.
    """

    claim: int
    verdict: str
    quantities: tuple[Quantity, ...] = ()
    how: str = ""
    reason: str = ""
    spread: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Quantity | None:
        """The claim's main quantity: the first that differs, else the first."""
        wrong = [q for q in self.quantities if not q.agrees]
        chosen = wrong if self.verdict == FAIL and wrong else self.quantities
        return chosen[0] if chosen else None


def exact(claim: int, quantities: Iterable[Quantity], how: str, reason: str = "") -> Finding:
    """A finding that passes when every quantity agrees; the first that does not is named in `reason`."""
    found = tuple(quantities)
    wrong = [q for q in found if not q.agrees]
    if wrong:
        named = "; ".join(f"{q.name}: predicted {q.predicted}, observed {q.observed}" for q in wrong[:3])
        return Finding(claim, FAIL, found, how, named)
    return Finding(claim, PASS, found, how, reason)


def skip(claim: int, reason: str) -> Finding:
    """The finding of a claim that cannot be checked here."""
    return Finding(claim, SKIP, reason=reason)


def error(claim: int, exception: BaseException) -> Finding:
    """The finding of a check that raised an error: its row says how, and the other checks go on."""
    lines = str(exception).strip().splitlines()
    text = lines[0][:300] if lines else ""
    return Finding(claim, ERROR, reason=f"{type(exception).__name__}: {text}" if text else type(exception).__name__)
