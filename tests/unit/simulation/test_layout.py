"""Text for a terminal: nothing is wider than 100 columns, and a series of limits is a line of bars."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.simulation.layout import (
    bars,
    change,
    few_calls,
    paragraph,
    plain,
    rounded,
    table_line,
    title,
)


def test_a_paragraph_hangs_from_its_first_words() -> None:
    lines = paragraph("word " * 60, "* ")

    assert max(map(len, lines)) <= 100
    assert [line[:2] for line in lines] == ["* ", "  ", "  ", "  "]


def test_a_line_of_a_table_has_its_name_to_the_left() -> None:
    assert table_line(("name", "1", "22"), (8, 4, 4)) == "name       1  22"


def test_cells_that_fill_their_columns_keep_a_blank_between() -> None:
    assert table_line(("long name", "656.2 x", "1,161.1 x"), (8, 7, 7)) == "long name 656.2 x 1,161.1 x"


def test_bars_show_the_mean_of_each_stretch_between_the_bounds() -> None:
    limits = [(0.5 * step, 1 if step < 48 else 8) for step in range(96)]

    assert bars(limits, 1, 8) == f"batch limit 1 to 8  {'▁' * 24}{'█' * 24}  48 s, lowest 1, mean 4.5"
    assert plain(bars(limits[:2], 1, 8)) == "batch limit 1 to 8  ..  0.5 s, lowest 1, mean 1.0"


def test_bars_survive_bounds_that_are_one() -> None:
    assert "▁▁" in bars([(1.0, 3), (2.0, 3)], 3, 3)


@pytest.mark.parametrize(
    "value, reference, text",
    [(11.0, 10.0, "10 % higher"), (9.0, 10.0, "10 % lower"), (10.01, 10.0, "the same"), (1.0, 0.0, "the same")],
)
def test_a_change_is_said_in_per_cent(value: float, reference: float, text: str) -> None:
    assert change(value, reference, "higher", "lower") == text


def test_below_twenty_calls_a_p95_is_the_slowest_and_that_is_said() -> None:
    assert few_calls(20) == []
    assert few_calls(19) == [
        "From only 19 interactive calls: below 20, P95 is the slowest of them, and a single call decides."
    ]
    assert few_calls(1)[0].startswith("From only 1 interactive call: ")


def test_a_title_is_underlined() -> None:
    assert title("So") == "\nSo\n=="


def test_fractions_are_rounded_and_whole_numbers_are_not() -> None:
    policy = "Law(a=20.907311361251573, b=1.0, c=12345, d=None, e=0.00123456, f=12345.678, g=1.5e-07)"

    assert rounded(policy) == "Law(a=20.9, b=1, c=12345, d=None, e=0.00123, f=12346, g=1.5e-07)"
