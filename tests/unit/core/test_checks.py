"""Every impossible value is refused in words that name the argument, the rule and the value.

Keeps the part of API.md on `ConfigError`: NaN, infinities, bools and floats for counts included.
"""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.core.checks import count, number, seconds, text_or_none, timeout

NAN = math.nan
INFINITY = math.inf
TOO_BIG = pytest.param(10**400, id="an int that no float can hold")


@pytest.mark.parametrize("value", [0, 1, 7, 10**30])
def test_a_whole_number_is_a_count(value: int) -> None:
    assert count("n", value) == value


@pytest.mark.parametrize("value", [True, False, 1.0, NAN, INFINITY, "1", None])
def test_what_is_no_whole_number_is_no_count(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^n must be a whole number, got "):
        count("n", value)


def test_a_count_below_its_least_is_refused_with_the_numbers() -> None:
    assert count("n", 2, at_least=2) == 2

    with pytest.raises(ConfigError, match=r"^n must be at least 2, got 1$"):
        count("n", 1, at_least=2)
    with pytest.raises(ConfigError, match=r"^n must be at least 0, got -1$"):
        count("n", -1)


@pytest.mark.parametrize("value", [0, -3, 2.5, -0.0, 1e300])
def test_a_finite_number_of_either_type_is_a_number(value: float) -> None:
    assert number("priority", value) == value


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, True, False, TOO_BIG, "1", None, 1j])
def test_what_is_not_finite_or_no_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^priority must be a finite number, got "):
        number("priority", value)


@pytest.mark.parametrize("value", [1, 0.001, 1e9])
def test_a_duration_is_a_finite_number_above_zero(value: float) -> None:
    assert seconds("window", value) == value


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.0, NAN, INFINITY, -INFINITY, True, TOO_BIG, "10", None])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^window must be a finite number above 0, got "):
        seconds("window", value)


def test_no_timeout_and_an_infinite_one_are_the_same() -> None:
    assert timeout("queue_timeout", None) == timeout("queue_timeout", INFINITY) == INFINITY


@pytest.mark.parametrize("value", [0, -1.5, -INFINITY, 3])
def test_a_timeout_may_be_zero_or_negative(value: float) -> None:
    assert timeout("queue_timeout", value) == value


@pytest.mark.parametrize("value", [NAN, True, False, "1", TOO_BIG])
def test_what_is_no_number_of_seconds_is_no_timeout(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^queue_timeout must be a number of seconds or None, got "):
        timeout("queue_timeout", value)


@pytest.mark.parametrize("value", [0, -1, -INFINITY])
def test_a_timeout_that_must_be_above_zero_is(value: float) -> None:
    assert timeout("run_timeout", 0.1, above_zero=True) == 0.1
    assert timeout("run_timeout", None, above_zero=True) == INFINITY

    with pytest.raises(ConfigError, match=r"^run_timeout must be above 0 seconds, got "):
        timeout("run_timeout", value, above_zero=True)


def test_a_text_is_a_plain_string_whatever_its_class_says() -> None:
    class Odd(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise ZeroDivisionError

    text = text_or_none("label", Odd("night"))

    assert (type(text), text) == (str, "night")
    assert text_or_none("label", None) is None
    with pytest.raises(ConfigError, match=r"^label must be a string, got 5$"):
        text_or_none("label", 5)
