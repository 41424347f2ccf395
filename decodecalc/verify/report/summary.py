"""Flat rows of results, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from decodecalc.analysis.traffic import traffic
from decodecalc.verify.claims.claim import BAD, BY_NUMBER, ERROR, FAIL, OFF, PASS, SKIP, Finding
from decodecalc.verify.report.bars import INSIDE_BAR, LARGE_KV_BYTES, MEAN_BAR, P90_BAR
from decodecalc.verify.run.runner import Result
from decodecalc.verify.run.timing import percentile
from decodecalc.verify.session.suites import Case

Row = Mapping[str, Any]


def rows_of(result: Result) -> list[dict[str, Any]]:
    """One flat row per claim; `quantities` holds every number of it."""
    base = _case_fields(result.case, result.rule)
    return [{**base, **_finding_fields(finding)} for finding in result.findings]


def _case_fields(case: Case, rule: str) -> dict[str, Any]:
    scenario, plan = case.scenario, case.plan
    geo, batch = scenario.geometry, scenario.batch
    return {
        "case": case.id,
        "scenario": scenario.id,
        "model": scenario.label,
        "layer_group": scenario.layer_group.name,
        "kind": geo.kind,
        "q_heads": geo.q_heads,
        "kv_heads": geo.kv_heads,
        "head_dim": geo.head_dim,
        "window": geo.window,
        "batch": batch.size,
        "context": batch.max_seq_len,
        "keys_total": batch.total_keys,
        "q_len": batch.max_q_len,
        "kv_dtype": scenario.kv.dtype,
        "page_size": scenario.kv.page_size,
        "engine": case.policy.name,
        "version": case.version,
        "path": plan.path if plan else None,
        "splits_launched": plan.splits.launched if plan else None,
        "kv_read_bytes": traffic(plan).kv_read_bytes if plan else None,
        "rule": rule,
    }


def _finding_fields(finding: Finding) -> dict[str, Any]:
    first = finding.first
    return {
        "claim": finding.claim,
        "claim_name": BY_NUMBER[finding.claim].name,
        "quantity": first.name if first else None,
        "predicted": first.predicted if first else None,
        "observed": first.observed if first else None,
        "difference": first.difference if first else None,
        "relative_difference": first.ratio if first else None,
        "unit": first.unit if first else None,
        "verdict": finding.verdict,
        "how": finding.how,
        "reason": finding.reason,
        "spread": finding.spread,
        **finding.facts,
        "quantities": [q.to_dict() for q in finding.quantities],
    }


@dataclass(frozen=True)
class ClaimSummary:
    """How often a claim held. checked counts the rows that are neither skipped nor notes."""

    claim: int
    name: str
    text: str
    exact: bool
    checked: int
    passed: int
    failed: int
    off: int
    errors: int
    skipped: int


@dataclass(frozen=True)
class TimeSummary:
    """Relative errors of predicted times over a set of rows. mape: the mean; p90: the 90th percentile; worst: the
    largest.

    roofline_mape, bytes_mape: the mean errors of the two baselines on the same rows.
    """

    name: str
    rows: int
    mape: float
    p90: float
    worst: float
    roofline_mape: float | None
    bytes_mape: float | None


@dataclass(frozen=True)
class Summary:
    """The summary of the rows. passed: no row failed or raised an error, and the time bars hold where there are enough
    rows."""

    cases: int
    scenarios: int
    rows: int
    claims: tuple[ClaimSummary, ...]
    times: tuple[TimeSummary, ...]
    regret_within_bar: float | None
    passed: bool
    why: str

    @property
    def held(self) -> str:
        """What a run that passed may say of itself: not that all hold, where some are off or were skipped."""
        off, skipped = sum(c.off for c in self.claims), sum(c.skipped for c in self.claims)
        if not off and not skipped:
            return "all hold"
        passed = sum(c.passed for c in self.claims)
        parts = [f"{passed} hold"] + ([f"{off} are off"] if off else []) + ([f"{skipped} skipped"] if skipped else [])
        return "nothing failed: " + ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


ENOUGH_SCENARIOS = 3  # with S_opt off in all of that many, the choice of S does not hold
ENOUGH_ROWS = 10  # the mean of fewer rows says little, so the tolerance of each row decides


def summarise(rows: Sequence[Row], interrupted: bool = False) -> Summary:
    """Counts the rows by claim, measures the errors of the times, and decides whether the suite passed."""
    claims = tuple(_claim_summary(number, rows) for number in sorted({r["claim"] for r in rows}))
    times = _time_summaries(rows)
    bad = [c for c in claims if c.failed or c.errors]
    why = [f"claim {c.claim} ({c.name}): {c.failed} failed, {c.errors} raised an error" for c in bad]
    overall = next((t for t in times if t.name == "all"), None)
    own = [r for r in rows if r["claim"] == 10 and r.get("inside_interval") is not None]
    if own:
        why += _own_times(own)
    elif overall is not None:
        if overall.rows < ENOUGH_ROWS:
            off = sum(r["verdict"] == OFF for r in rows if r["claim"] == 10)
            why += [f"claim 10 (time): {off} of {overall.rows} beyond tolerance"] if off else []
        elif overall.mape > MEAN_BAR or overall.p90 > P90_BAR:
            why.append(
                f"claim 10 (time): mean error {overall.mape:.1%} (bar {MEAN_BAR:.0%}), 90th percentile "
                f"{overall.p90:.1%} (bar {P90_BAR:.0%})"
            )
    best = [r for r in rows if r["claim"] == 11 and r["verdict"] in (PASS, OFF)]
    scenarios = {r["scenario"]: r["verdict"] == PASS for r in best}
    if interrupted:
        why.append("interrupted")
    if not rows:
        why.append("nothing was checked")
    elif not any(r["verdict"] == PASS for r in rows) and not why:
        skipped = sum(r["verdict"] == SKIP for r in rows)
        why.append(f"nothing was proved: no check passed, {skipped} of {len(rows)} were skipped")
    if scenarios and not any(scenarios.values()) and len(scenarios) >= ENOUGH_SCENARIOS:
        why.append(f"claim 11 (best-split): S_opt was beyond its bar in all {len(scenarios)} scenarios")
    return Summary(
        cases=len({r["case"] for r in rows}),
        scenarios=len({r["scenario"] for r in rows}),
        rows=len(rows),
        claims=claims,
        times=times,
        regret_within_bar=sum(scenarios.values()) / len(scenarios) if scenarios else None,
        passed=not why,
        why="; ".join(why),
    )


def _own_times(timed: Sequence[Row]) -> list[str]:
    """What is wrong with the times of engines' own kernels: too many lie outside their predicted intervals. Rows on
    kernels that the calibration never measured, where another one stands in, are counted apart."""
    inside = [bool(r["inside_interval"]) for r in timed]
    share = sum(inside) / len(inside)
    if share >= INSIDE_BAR or (len(inside) < ENOUGH_ROWS and inside.count(False) <= 1):
        return []
    why = f"claim 10 (time): {share:.0%} of {len(inside)} times inside their intervals (bar {INSIDE_BAR:.0%})"
    parts = []
    for stands_in, words in ((False, "on measured kernels"), (True, "where another kernel stands in")):
        some = [bool(r["inside_interval"]) for r in timed if bool(r.get("stands_in")) == stands_in]
        parts += [f"{sum(some)} of {len(some)} {words}"] if some else []
    return [f"{why}: {', '.join(parts)}"]


def _claim_summary(number: int, rows: Sequence[Row]) -> ClaimSummary:
    claim = BY_NUMBER[number]
    verdicts = [r["verdict"] for r in rows if r["claim"] == number]
    count = {v: verdicts.count(v) for v in (PASS, FAIL, OFF, ERROR, SKIP)}
    checked = count[PASS] + count[FAIL] + count[OFF] + count[ERROR]
    return ClaimSummary(
        number,
        claim.name,
        claim.text,
        claim.exact,
        checked,
        count[PASS],
        count[FAIL],
        count[OFF],
        count[ERROR],
        count[SKIP],
    )


def _time_summaries(rows: Sequence[Row]) -> tuple[TimeSummary, ...]:
    timed = [r for r in rows if r["claim"] == 10 and r["verdict"] in (PASS, OFF, FAIL) and r["observed"]]
    groups: list[tuple[str, list[Row]]] = [("all", timed)]
    groups += [(name, [r for r in timed if r["engine"] == name]) for name in dict.fromkeys(r["engine"] for r in timed)]
    groups.append(
        (
            f"KV of {LARGE_KV_BYTES / 1e6:.0f} MB and more",
            [r for r in timed if (r["kv_read_bytes"] or 0) >= LARGE_KV_BYTES],
        )
    )
    return tuple(_time_summary(name, group) for name, group in groups if _errors(group, "total"))


def _errors(rows: Sequence[Row], quantity: str) -> list[float]:
    """Relative errors of one predicted quantity, of the rows that have it."""
    return [
        abs(q["observed"] - q["predicted"]) / q["observed"]
        for row in rows
        for q in row["quantities"]
        if q["name"] == quantity and q["predicted"] is not None and q["observed"]
    ]


def _time_summary(name: str, rows: Sequence[Row]) -> TimeSummary:
    def errors(quantity: str) -> list[float]:
        return _errors(rows, quantity)

    def mean(values: Iterable[float]) -> float | None:
        values = list(values)
        return sum(values) / len(values) if values else None

    own = errors("total")
    return TimeSummary(
        name,
        len(own),
        mean(own) or 0.0,
        percentile(own, 0.9),
        max(own),
        mean(errors("baseline: roofline")),
        mean(errors("baseline: overhead + bytes / bandwidth")),
    )


@dataclass(frozen=True)
class Regression:
    """A row that got worse since an earlier run."""

    case: str
    claim: int
    what: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Compares rows of two runs with equal case and claim. faster: rows whose time fell by more than both spreads."""

    compared: int
    regressions: tuple[Regression, ...]
    faster: int
    slower: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


LEAST_SPREAD = 0.01  # clocks and placement move identical runs by about this much


def compare(now: Sequence[Row], before: Sequence[Row], whole: bool = True) -> Comparison:
    """Regressions: a claim that held and does not (or is skipped, off or gone now), a time that rose by more than both
    runs' spreads together. whole: `now` is no shard, so that a case it lacks is gone."""
    earlier = {(r["case"], r["claim"]): r for r in before}
    found: list[Regression] = []
    compared = faster = slower = 0
    made = {(r["case"], r["claim"]) for r in now}
    claims = {r["claim"] for r in now}
    found += [
        Regression(case, claim, f"was {PASS}, and is not in this run any more")
        for (case, claim), old in earlier.items()
        if whole and old["verdict"] == PASS and claim in claims and (case, claim) not in made
    ]
    for row in now:
        old = earlier.get((row["case"], row["claim"]))
        if old is None:
            continue
        compared += 1
        worse = row["verdict"] in BAD and old["verdict"] not in BAD
        if worse or (old["verdict"] == PASS and row["verdict"] in (SKIP, OFF)):
            found.append(
                Regression(
                    row["case"], row["claim"], f"was {old['verdict']}, now {row['verdict']}: {row.get('reason', '')}"
                )
            )
        if row["claim"] == 10 and row.get("observed") and old.get("observed"):
            noise = max(LEAST_SPREAD, row.get("spread") or 0.0) + max(LEAST_SPREAD, old.get("spread") or 0.0)
            change = row["observed"] / old["observed"] - 1
            faster += change < -noise
            if change > noise:
                slower += 1
                found.append(
                    Regression(
                        row["case"],
                        10,
                        f"{old['observed'] * 1e6:.2f} µs, now {row['observed'] * 1e6:.2f} µs (+{change:.1%}, spreads "
                        f"together {noise:.1%})",
                    )
                )
    return Comparison(compared, tuple(found), faster, slower)
