"""Figures with no more digits than are justified, and error messages as whole sentences."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lib.formatting import justified, listed, seconds, sentence


@example(0.0009995, 0.0, 0.0)
@example(0.17, 0.4, 0.9)
@example(1.449e-3, 0.001, 20.0)
@given(st.floats(1e-9, 1e4), st.floats(0, 1), st.floats(0, 30))
def test_a_figure_has_two_digits_and_lies_within_its_quartiles(seconds, below, above):
    low, high = seconds * (1 - below), seconds * (1 + above)
    for at_most in (5, 3):
        number, unit = justified(seconds, low, high, at_most).split()
        shown = float(number) * {"ns": 1e-9, "μs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
        assert shown == pytest.approx(seconds, rel=0.0501), "two digits at least"
        if low < seconds < high:
            assert low * (1 - 1e-12) <= shown <= high * (1 + 1e-12)
        elif low == high:
            assert shown == pytest.approx(seconds, rel=0.501 * 10 ** (1 - at_most)), "as many digits as there may be"


def test_no_more_digits_than_the_quartiles_allow():
    assert justified(0.170, 0.130, 0.230) == "170 ms", "once 200 ms, beside another's 201"
    assert justified(2.4e-3, 1.5e-3, 3.9e-3) == "2.4 ms", "once 2 ms, above rows that add up to 2.4"
    assert justified(0.0123456, 0.0121, 0.0125) == "12.3 ms"
    assert justified(1.23456, 1.2, 1.3) == "1.2 s"
    assert justified(0.1702345, 0.17023, 0.17024) == "170.23 ms", "170 would lie below its quartiles"


@given(st.floats(1e-7, 1e4))
def test_a_duration_is_within_the_rounding_of_two_digits(value_s):
    number, unit = seconds(value_s).split("\u202f")
    assert float(number) * {"μs": 1e-6, "ms": 1e-3, "s": 1.0}[unit] == pytest.approx(value_s, rel=0.0501)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cache is full", "The cache is full."),
        ("It ends here.", "It ends here."),
        ("rows.csv has no rows", "rows.csv has no rows."),
        ("", "."),
    ],
)
def test_an_error_becomes_a_sentence(text, expected):
    assert sentence(ValueError(text)) == sentence(text) == expected


def test_a_list_is_joined_with_commas_and_and():
    assert [listed("abc"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
