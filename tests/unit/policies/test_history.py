"""The batch limit's past: bounded, whole where changes are few, and with its extremes where they are many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import Decision, LimitRecord
from llm_traffic_scheduler.policies.history import LimitHistory, Swings, swing

WINDOW = 10.0  # so a stretch is one second


def history_of(*changes: tuple[float, int]) -> LimitHistory:
    history = LimitHistory()
    for at, limit in changes:
        history.add(at, Decision(limit, 0.5, "latency"), WINDOW)
        history.check()
    return history


def limits(history: LimitHistory) -> list[tuple[float, int]]:
    return [(record.time, record.limit) for record in history.records()]


def test_a_change_is_kept_with_its_time_its_pressure_and_its_reason() -> None:
    history = history_of((3.0, 4))

    assert history.records() == (LimitRecord(3.0, 4, 0.5, "latency"),)


def test_three_changes_within_a_tenth_of_the_window_are_all_kept() -> None:
    changes = [(0.0, 4), (0.1, 5), (0.9, 4), (1.0, 3), (1.5, 2), (1.9, 6)]

    assert limits(history_of(*changes)) == changes


def test_of_more_than_three_the_lowest_the_highest_and_the_latest_are_kept() -> None:
    changes = [(0.0, 4), (0.1, 5), (0.2, 1), (0.3, 3), (0.4, 6), (0.5, 2), (0.6, 4)]

    assert limits(history_of(*changes)) == [(0.2, 1), (0.4, 6), (0.6, 4)]


def test_a_busy_second_pushes_no_other_out() -> None:
    quiet = [(0.0, 6), (2.0, 1)]
    busy = [(5.0 + step / 1000, 1 + step % 6) for step in range(900)]

    assert limits(history_of(*quiet, *busy))[:2] == quiet


def test_no_more_than_256_changes_are_kept_and_the_oldest_go_first() -> None:
    history = history_of(*[(2.0 * step, step % 7) for step in range(1000)])

    assert len(history.records()) == 256
    assert (history.records()[0].time, history.records()[-1].time) == (2.0 * 744, 2.0 * 999)


def test_a_busy_law_is_remembered_for_eight_windows() -> None:
    history = history_of(*[(step / 100, step * 7 % 6) for step in range(20_000)])

    assert history.records()[-1].time - history.records()[0].time > 8 * WINDOW


def test_a_clock_that_goes_back_is_taken_to_stand_still() -> None:
    assert limits(history_of((5.0, 4), (4.999, 3))) == [(5.0, 4), (5.0, 3)]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.2, 0.7, 1.5]), st.integers(1, 8)), min_size=1, max_size=120))
def test_the_latest_and_both_extremes_of_what_happened_are_never_lost(steps: list[tuple[float, int]]) -> None:
    now, changes = 0.0, []
    for pause, limit in steps:
        now += pause
        changes.append((now, limit))

    kept = limits(history_of(*changes))

    assert kept[-1] == changes[-1]
    assert set(kept) <= set(changes)
    for extreme in (min, max):
        assert extreme(limit for _, limit in kept) == extreme(limit for _, limit in changes)


@pytest.mark.parametrize(
    "batch_max, batch_min, by", [(6, 6, 0), (2, 1, 1), (3, 1, 2), (6, 1, 2), (13, 1, 3), (64, 4, 15)]
)
def test_a_limit_has_swung_when_it_went_a_quarter_of_its_range_and_two_calls_if_it_has_them(
    batch_max: int, batch_min: int, by: int
) -> None:
    assert swing(batch_max, batch_min) == by


@pytest.mark.parametrize(
    "path, turns",
    [
        ([6], 0),
        ([6, 1], 0),  # it went one way
        ([6, 1, 6], 1),
        ([6, 1, 6, 1, 6], 3),
        ([1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1], 1),
        ([3, 4, 3, 4, 3, 4, 3, 4], 0),  # at the edge between two limits
        ([3, 5, 4, 6, 5, 6, 3], 1),
        ([6, 4, 5, 3, 4, 2, 3, 1], 0),
    ],
)
def test_a_turn_is_a_way_back_of_at_least_a_swing(path: list[int], turns: int) -> None:
    swings = Swings(2)

    for limit in path:
        swings.add(limit)

    assert (swings.turns, swings.lowest, swings.highest) == (turns, min(path), max(path))


def test_a_limit_without_any_range_never_turns() -> None:
    swings = Swings(0)

    for limit in (3, 3, 3):
        swings.add(limit)

    assert swings.turns == 0
