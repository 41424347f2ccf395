"""Claims, quantities and verdicts as plain values."""

from __future__ import annotations

import pytest

from decodecalc.errors import InputError
from decodecalc.verify.claims.claim import CLAIMS, FAIL, PASS, Quantity, claim_numbers, error, exact


def test_there_are_thirteen_claims_numbered_in_order():
    assert [c.number for c in CLAIMS] == list(range(1, 14))


@pytest.mark.parametrize(
    ("text", "numbers"), [(None, tuple(range(1, 14))), ("4", (4,)), ("1,3-5", (1, 3, 4, 5)), ("time,keys", (4, 10))]
)
def test_claims_are_named_by_number_range_or_word(text, numbers):
    assert claim_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "14", "3-", "tme", "5-3", "1;2"])
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="--claims"):
        claim_numbers(text)


def test_a_difference_exists_between_numbers_only():
    assert Quantity("n", 3, 5).difference == 2
    assert Quantity("n", 4.0, 5.0).ratio == pytest.approx(0.2)
    assert Quantity("n", None, 5).difference is None
    assert Quantity("grid", [1, 2], [1, 3]).difference is None
    assert Quantity("flag", True, False).difference is None


def test_an_exact_finding_fails_on_the_first_quantity_that_differs_and_names_it():
    good = exact(3, [Quantity("a", 1, 1), Quantity("b", None, 7)], "seen")
    assert good.verdict == PASS
    bad = exact(3, [Quantity("a", 1, 1), Quantity("b", 2, 3)], "seen")
    assert bad.verdict == FAIL
    assert "b: predicted 2, observed 3" in bad.reason
    assert bad.first.name == "b"


def test_a_broken_check_keeps_the_kind_and_first_line_of_its_error():
    assert error(1, ValueError("no\nsecond line")).reason == "ValueError: no"
    assert error(1, KeyError()).reason == "KeyError"
