"""Nsight Compute's CSV, and whose kernel is whose."""

from __future__ import annotations

from decodecalc.verify.run.counters import DRAM_READ, L2_READ_SECTORS, L2_WRITE_SECTORS, assign, parse

TEXT = f"""==PROF== Connected to process 12
some output of the child
"ID","Kernel Name","Grid Size","{DRAM_READ}","{L2_READ_SECTORS}","{L2_WRITE_SECTORS}"
"","","","byte","sector","sector"
"0","stage1_kernel","(8, 1, 16)","16,800,000","530,000","2,080"
"1","merge_kernel","(32, 1, 1)","74,000","2,100","64"
"2","stage1_kernel(float*)","(8, 16, 1)","1000","30","4"
==PROF== Disconnected
"""


def test_rows_are_read_with_separators_units_and_noise_around_them():
    rows = parse(TEXT)
    assert [r["name"] for r in rows] == ["stage1_kernel", "merge_kernel", "stage1_kernel"]
    assert rows[0][DRAM_READ] == 16_800_000


def test_a_merge_belongs_to_the_stage_1_before_it():
    found = assign(parse(TEXT), [("a", None, None), ("b", None, None)])
    assert found["a"].stage1_dram_read_bytes == 16_800_000
    assert found["a"].merge_l2_read_bytes == 2100 * 32
    assert found["b"].merge_l2_read_bytes is None
    assert found["b"].stage1_l2_write_bytes == 4 * 32


def test_a_run_that_broke_off_leaves_the_later_cases_without_counters():
    assert list(assign(parse(TEXT), [("a", None, None), ("b", None, None), ("c", None, None)])) == ["a", "b"]
    assert parse("==ERROR== no permission") == []
