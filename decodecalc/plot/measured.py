"""Measured points out of a verify report, for figures that draw them beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decodecalc.errors import InputError
from decodecalc.files import read_json

if TYPE_CHECKING:
    from decodecalc.batch import Batch
    from decodecalc.geometry import Geometry

MAX_FILE_BYTES = 256 << 20


def report_rows(path: str) -> list[dict[str, Any]]:
    """Rows of a verify report (JSON). InputError when the file is something else."""
    report = read_json(path, MAX_FILE_BYTES, f"report {path!r:.200}", "give a file that `decodecalc verify` wrote")
    try:
        if not str(report["schema"]).startswith("decodecalc/verify/"):
            raise InputError(f"{path} is not a verify report: its schema is {report['schema']!r:.60}")
        return [r for r in report["rows"] if isinstance(r, dict)]
    except InputError:
        raise
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not a verify report: {str(error)[:80]}") from None


def split_times(path: str, geo: Geometry, batch: Batch) -> list[tuple[int, float]]:
    """(splits, seconds) measured for this layer and batch, from the sweep over split counts."""
    found: set[tuple[int, float]] = set()
    for row in report_rows(path):
        same = (row.get("q_heads"), row.get("kv_heads"), row.get("head_dim")) == (
            geo.q_heads,
            geo.kv_heads,
            geo.head_dim,
        )
        if same and row.get("batch") == batch.size and row.get("context") == batch.max_seq_len:
            found.update((int(n), float(t)) for n, t in row.get("split_times_s") or ())
    return sorted(found)
