"""The report of a run: its JSON form, the journal that survives an interruption, and the joining of shards.

JSON: {"schema": "decodecalc/verify/1", "inputs": {...}, "proves": [...], "summary": {...}, "comparison": {...} | null,
"rows": [...]}, with one row per line. The journal holds one finished case per line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from decodecalc.errors import InputError, check_type
from decodecalc.files import encoded, open_alone, parse_json, read_bounded, read_json, write_whole
from decodecalc.safetext import json_safe
from decodecalc.units import counted
from decodecalc.values import ShownRows
from decodecalc.verify.claims.claim import ERROR, FAIL, OFF
from decodecalc.verify.report.rows import NEEDED, complete, row_fault, shown
from decodecalc.verify.report.summary import Comparison, Summary, summarise

SCHEMA = "decodecalc/verify/1"
SEEN = ("case", "claim", "claim_name", "quantity", "predicted", "observed", "unit", "verdict", "reason")
"""Keys of the rows that a notebook shows; a frame has all."""
# The bundled kernel cuts as the plan says, whether or not the engine cuts that way: it cannot tell a rule that was
# misread.
PROVES = {
    "bundled": "This run launched the bundled kernel by decodecalc's reading of each engine's rule. It proves what "
    "such a launch does, and not that a server follows the rule. Only a run of the engines' own kernels (`decodecalc "
    "verify --kernel own`) proves the rule.",
    "own": "This run launched the engines' own kernels, and held decodecalc's reading of each rule against what the "
    "installed versions do.",
}
MAX_FILE_BYTES = 256 << 20
MAX_SHARDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Report(ShownRows):
    """The report of a run."""

    inputs: Mapping[str, Any]
    """What was asked, on what device, with which clocks."""
    rows: Sequence[Mapping[str, Any]]
    """One row for each case and claim."""
    summary: Summary
    """Counts and errors of the rows."""
    comparison: Comparison | None = None
    """The differences from an earlier run; None without one."""

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each case and claim, those that failed first, then those that are off."""
        order = (FAIL, ERROR, OFF)
        rows = [dict(row) for row in self.rows]
        return sorted(rows, key=lambda r: order.index(r["verdict"]) if r["verdict"] in order else len(order))

    def seen(self) -> tuple[str, Sequence[str]]:
        """The verdict, and what a notebook shows of the rows."""
        return self.verdict, SEEN

    def __str__(self) -> str:
        """The verdict."""
        return self.verdict

    @property
    def passed(self) -> bool:
        """Whether everything that must hold holds, and nothing got worse."""
        return self.summary.passed and not (self.comparison and self.comparison.regressions)

    @property
    def proves(self) -> list[str]:
        """What the run shows of an engine's rule: a sentence for each kind of kernels that ran."""
        parts = self.inputs.get("merged_from")
        asked = parts if isinstance(parts, list) and parts else [self.inputs]
        own = {isinstance(part, Mapping) and part.get("kernel") == "own" for part in asked}
        return [PROVES["own" if which else "bundled"] for which in sorted(own)]

    @property
    def verdict(self) -> str:
        """One sentence."""
        s = self.summary
        checks = f"{counted(s.cases, 'case')} of {counted(s.scenarios, 'scenario')}, {counted(s.rows, 'check')}"
        parts = [f"{checks}: {s.held}" if s.passed else f"{checks}: {s.why}"]
        if self.comparison:
            c = self.comparison
            parts.append(
                f"against the earlier run: {len(c.regressions)} regressions, {c.slower} slower, {c.faster} faster"
            )
        return "; ".join(parts)

    def to_json(self) -> str:
        """The file format."""
        head = {
            "schema": SCHEMA,
            "inputs": clean(dict(self.inputs)),
            "proves": self.proves,
            "summary": clean(self.summary.to_dict()),
            "comparison": clean(self.comparison.to_dict()) if self.comparison else None,
        }
        lines = ",\n".join(_dump(clean(dict(row))) for row in self.rows)
        return json_safe(json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "rows": [\n{lines}\n]\n}}\n')


def make_report(inputs: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], interrupted: bool = False) -> Report:
    """A report of these rows."""
    return Report(inputs, rows, summarise(rows, interrupted))


def clean(value: Any) -> Any:
    """The value in JSON's terms: tuples become lists, numbers that are not finite become words, and floats keep seven
    digits, which is more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    return value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def read_report(path: str) -> Report:
    """Reads a report file. Raises InputError, which says what is wrong with it."""
    check_type("path", path, str, "the name of a file that `decodecalc verify` wrote")
    where = f"report {path!r:.200}"
    data = read_json(path, MAX_FILE_BYTES, where, "give a file that `decodecalc verify` wrote")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where}: schema {found!r:.60} is not {SCHEMA!r}; give a file that `decodecalc verify` wrote")
    rows, inputs = data.get("rows"), data.get("inputs")
    if not isinstance(rows, list) or not isinstance(inputs, dict):
        raise InputError(f"{where}: damaged: inputs and rows with {', '.join(NEEDED)} are needed")
    for number, row in enumerate(rows):
        fault = row_fault(row)
        if fault:
            raise InputError(f"{where}: damaged: row {number}: {fault}")
    shard = inputs.get("shard")
    if shard is not None and _shard(shard) is None:
        raise InputError(f"{where}: damaged: shard {shard!r:.40} is not I/N with I from 1 to N, up to {MAX_SHARDS}")
    return make_report(shown(inputs), [complete(shown(row)) for row in rows], bool(inputs.get("interrupted")))


def _shard(text: Any) -> tuple[int, int] | None:
    """The two numbers of I/N; None where the text is not that."""
    first, slash, last = str(text)[:32].partition("/")
    if not (slash and first.isascii() and last.isascii() and first.isdecimal() and last.isdecimal()):
        return None
    i, n = int(first), int(last)
    return (i, n) if 1 <= i <= n <= MAX_SHARDS else None


def merge_reports(reports: Sequence[Report]) -> Report:
    """Joins several reports into one: shards of one run, or of one suite on several machines.

    A check that several contain is taken from the last one. Missing shards are named, and the report then fails.
    """
    if not reports:
        raise InputError("there are no reports to merge")
    rows: dict[tuple[str, int], Mapping[str, Any]] = {}
    for report in reports:
        rows.update({(row["case"], row["claim"]): row for row in report.rows})
    first = dict(reports[0].inputs)
    parts = [dict(report.inputs) for report in reports]
    shards = [str(p["shard"]) for p in parts if p.get("shard")]
    missing = missing_shards(shards)
    inputs = {**first, "shard": None, "merged_from": parts} if len(parts) > 1 else first
    interrupted = any(report.inputs.get("interrupted") for report in reports)
    merged = make_report(inputs, list(rows.values()), interrupted)
    if missing:
        why = "; ".join(w for w in (merged.summary.why, f"shards missing: {', '.join(missing)}") if w)
        merged = replace(merged, summary=replace(merged.summary, passed=False, why=why))
    return merged


def missing_shards(shards: Sequence[str]) -> list[str]:
    """The shards I/N that are missing.

    >>> missing_shards(["1/3", "3/3"])
    ['2/3']
    """
    pairs = {pair for pair in map(_shard, shards) if pair is not None}
    counts = {n for _, n in pairs}
    return [f"{i}/{n}" for n in sorted(counts) for i in range(1, n + 1) if (i, n) not in pairs]


class Journal:
    """Finished cases on disk, one per line, so that an interrupted run can continue.

    key: what makes two runs the same; a journal of another run is refused.
    """

    def __init__(self, path: str, key: str) -> None:
        self.path, self._key = path, key
        self._held: IO[bytes] | None = None

    def read(self) -> list[list[dict[str, Any]]]:
        """Rows of the finished cases; empty when there is no journal. A last line that was cut off is dropped."""
        try:
            if not Path(self.path).exists():
                return []
            raw = read_bounded(self.path, MAX_FILE_BYTES, f"journal {self.path}", rewritten=True)
        except OSError as failed:
            raise InputError(f"cannot read {self.path}: {failed.strerror or failed}") from None
        found: list[Any] = []
        for line in raw.splitlines():
            try:
                found.append(parse_json(line, self.path))
            except InputError:
                break
        if not found or found[0] != {"schema": SCHEMA, "key": self._key}:
            raise InputError(f"{self.path} is of another run: remove it, or give another --report")
        return [rows for rows in found[1:] if isinstance(rows, list) and not any(map(row_fault, rows))]

    def start(self, finished: Sequence[Sequence[Mapping[str, Any]]] = ()) -> None:
        """Begin the file anew, with these cases in it. InputError where another run has it: rows would mix."""
        self._hold()
        write_whole(self.path, _dump({"schema": SCHEMA, "key": self._key}) + "\n")
        self._hold()  # the new file; the old one is let go
        for rows in finished:
            self.add(rows)

    def _hold(self) -> None:
        otherwise = f"another run is writing {self.path}: wait for it, or give another --report"
        file = open_alone(self.path, "ab", otherwise)
        if self._held is not None:
            self._held.close()
        self._held = file

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One finished case, on disk when this returns."""
        try:
            with open(self.path, "ab") as file:
                file.write(encoded(_dump(clean([dict(row) for row in rows])) + "\n"))
        except OSError as failed:
            raise InputError(f"cannot write {self.path}: {failed.strerror or failed}") from None

    def remove(self) -> None:
        """Removes the journal, because the report now holds everything."""
        Path(self.path).unlink(missing_ok=True)
        if self._held is not None:
            self._held.close()
            self._held = None
