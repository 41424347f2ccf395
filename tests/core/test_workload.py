"""Workload files: steps and their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodecalc import Batch, InputError
from decodecalc.workload import EXAMPLE, read_workload


def test_the_example_is_read(tmp_path: Path) -> None:
    """Equal and unequal steps, with a weight of 1 where none is given."""
    path = tmp_path / "w.json"
    path.write_text(EXAMPLE)
    assert read_workload(path) == [(Batch.uniform(8, 4096), 3.0), (Batch([512, 9000]), 1.0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "at least one step"),
        ("[3]", "must be an object"),
        ('[{"batch": 0, "context": 5}]', "batch must be a whole number"),
        ('[{"batch": 2}]', "context is missing"),
        ('[{"seq_lens": [5], "batch": 1}]', "cannot be combined with batch or context"),
        ('[{"batch": 1, "context": 5, "weight": 0}]', "above 0"),
        ('[{"batch": 1, "context": 5, "wieght": 2}]', "unknown field"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, says: str) -> None:
    """Each fault has a message of its own."""
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_workload(path)
