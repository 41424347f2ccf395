"""Conversions at the edge of the package."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import junk_text

from decodecalc.errors import InputError
from decodecalc.units import human_bytes, human_rate, human_seconds, parse_count, parse_counts, parse_shard


@pytest.mark.parametrize(
    ("text", "value"), [("2560", 2560), ("2k", 2048), ("128K", 131072), ("1m", 1048576), ("1.5k", 1536), (" 7 ", 7)]
)
def test_counts_take_binary_suffixes(text: str, value: int) -> None:
    """k is 1024, as context lengths are written in the field."""
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1e3", "2x", "0.3", "k", "NaN", "9" * 30, "1.1k"])
def test_what_is_not_a_whole_number_is_refused(text: str) -> None:
    """Each refusal names what was wrong."""
    with pytest.raises(InputError, match="whole number"):
        parse_count(text, "--context")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,4,16", [1, 4, 16]),
        ("1:256:x2", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ("1:64:21", [1, 22, 43, 64]),
        ("2k,32k", [2048, 32768]),
        ("3:5", [3, 4, 5]),
        ("1:4:*2", [1, 2, 4]),
    ],
)
def test_ranges_expand(text: str, values: list[int]) -> None:
    """Comma lists, strides and factors, ends included."""
    assert parse_counts(text) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5:1", "ends before"),
        ("1:9:x1", "factor of at least 2"),
        ("0:9:x2", "start of at least 1"),
        ("1:9:0", "step of at least 1"),
        ("1:10000000:1", "more than 100000"),
        ("1:2:3:4", "not a range"),
        ("1:9:", "whole number"),
    ],
)
def test_bad_ranges_say_what_is_wrong(text: str, message: str) -> None:
    """Empty ranges, ranges without progress and ranges past the limit."""
    with pytest.raises(InputError, match=message):
        parse_counts(text)


@given(junk_text)
def test_junk_is_refused_or_parsed_but_never_crashes(text: str) -> None:
    """The parser's only exception is InputError."""
    with contextlib.suppress(InputError):
        assert all(isinstance(v, int) for v in parse_counts(text))


@given(st.integers(1, 10**6), st.integers(1, 50), st.integers(0, 20))
def test_strided_ranges_stay_inside_and_keep_the_stride(start: int, step: int, count: int) -> None:
    """start:stop:step is Python's range with its end included."""
    assert parse_counts(f"{start}:{start + step * count}:{step}") == [start + step * i for i in range(count + 1)]


def test_people_read_three_digits_and_decimal_units() -> None:
    """GB is 1e9: 335544320 B are 336 MB, not 320."""
    assert human_bytes(335544320) == "336 MB"
    assert human_bytes(640) == "640 B"
    assert human_rate(3.35e12) == "3.35 TB/s"
    assert human_seconds(12.4e-6) == "12.4 µs"
    assert human_seconds(0.0042) == "4.2 ms"
    assert human_seconds(5e-10) == "0.5 ns"


@pytest.mark.parametrize("text", ["1/" + "9" * 5000, "9" * 5000 + "/1", "١/٣", "²/³"])
def test_a_shard_is_two_short_decimal_numbers(text: str) -> None:
    """Numbers of thousands of digits and digits of other scripts are bad input and no other exception."""
    with pytest.raises(InputError, match="--shard"):
        parse_shard(text)
