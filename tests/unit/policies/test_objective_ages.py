"""What an objective holds back for unfinished calls by their ages, and when its answers change by themselves."""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler.policies.objective import (
    _AGE_SHARE,
    _HEAVIEST,
    _LATE,
    WARM_UP,
    Objective,
)
from tests.unit.policies.objectives import (
    KEPT_TARGET,
    MISSED_TARGET,
    ONE_YOUNG,
    TARGET,
    make_objective,
    serve,
)


@pytest.mark.parametrize("age, weight", [(0.5, 1.0), (1.4, 10 / 9), (4.6, 10 / 6), (6.4, 10.0 / 4), (7.9, 10.0 / 3)])
def test_a_call_weighs_one_over_the_share_of_calls_that_live_so_long(age: float, weight: float) -> None:
    objective = make_objective()
    for latency in range(1, 11):
        objective.arrive(0.0, latency)
        objective.served(0.0, latency, 0.0, float(latency))
    objective.arrive(100.0, 1)

    objective.advance(100.0 + age, 3, 1, 40)

    assert objective.held_back == pytest.approx(_AGE_SHARE * weight)


@pytest.mark.parametrize("quick, weight", [(1, _HEAVIEST), (18, min(19.0, _HEAVIEST)), (199, _HEAVIEST)])
def test_a_weight_has_a_bound(quick: int, weight: float) -> None:
    objective = make_objective()
    for call in range(quick + (quick > 1)):
        objective.arrive(0.0, call)
        objective.served(0.0, call, 0.0, 0.1 if call < quick else 5.0)
    objective.arrive(100.0, 1)

    objective.advance(102.0, 3, 1, 40)

    assert objective.held_back == pytest.approx(_AGE_SHARE * weight)


def test_before_anything_is_known_all_weigh_one() -> None:
    objective = make_objective()
    objective.arrive(0.0, 1)

    objective.advance(7.0, 3, 1, 40)

    assert objective.held_back == _AGE_SHARE


def test_one_hung_call_holds_back_ten_weights() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=20)
    objective.arrive(now, 1)

    objective.advance(now + 1000.0, 3, 1, 40)

    assert objective.held_back == _AGE_SHARE * _LATE
    assert not objective.stalled


@pytest.mark.parametrize("late, alive, stalled", [(2, 2, False), (3, 3, True), (3, 6, True), (3, 7, False)])
def test_three_late_calls_that_are_half_of_those_alive_are_a_stall(late: int, alive: int, stalled: bool) -> None:
    objective = make_objective()
    for call in range(late):
        objective.arrive(0.0, call)
    for call in range(late, alive):
        objective.arrive(TARGET, call)

    objective.advance(TARGET + 1, 3, 1, 40)

    assert objective.stalled is stalled


def test_a_stall_ends_with_the_calls_that_were_late() -> None:
    objective = make_objective()
    for call in range(3):
        objective.arrive(0.0, call)
    objective.advance(TARGET + 1, 3, 1, 40)
    assert objective.stalled

    objective.lost(TARGET + 2, 0, TARGET + 2)

    assert not objective.stalled


def test_a_pace_is_missed_when_it_is_told_and_age_says_nothing_of_it() -> None:
    objective = make_objective(0.05, timed=False)
    objective.arrive(0.0, 1)
    objective.arrive(0.0, 2)

    objective.advance(1000.0, 3, 1, 40)
    assert (objective.held_back, objective.stalled, objective._trim) == (2 * _AGE_SHARE, False, 0.0)
    objective.served(1000.0, 1, 1000.0, 0.06)
    assert objective._trim == pytest.approx(MISSED_TARGET)
    objective.served(1000.0, 2, 1000.0, 0.05)

    assert objective._trim == pytest.approx(MISSED_TARGET + KEPT_TARGET)
    assert objective.samples == 2


def test_a_pace_that_was_not_told_teaches_nothing() -> None:
    objective = make_objective(0.05, timed=False)
    serve(objective, 0.01, times=20)
    before = objective.samples, objective._trim
    objective.arrive(10.0, 1)

    objective.lost(1000.0, 1, 990.0)

    assert (objective.samples, objective._trim) == before
    assert objective.held_back == 0.0


@pytest.mark.parametrize("latency", [0.001, 0.5, 3.0, 500.0])
def test_the_next_step_is_when_the_floor_changes(latency: float) -> None:
    objective = make_objective()
    now = serve(objective, latency, times=WARM_UP)
    objective.advance(now, 3, 1, 40)

    assert_steps(objective, now, reserve=0.4)


def test_the_next_step_is_known_in_the_warm_up_too() -> None:
    rising, falling = make_objective(), make_objective()
    rising.arrive(10.0, 1)
    for call in range(5):
        falling.arrive(0.0, call)
    falling.advance(10.0, 3, 1, 40)
    for call in range(4):
        falling.lost(10.0, call, 10.0)

    assert rising.next_step(10.0, ONE_YOUNG, 1, 40) < math.inf
    assert falling.next_step(10.0, ONE_YOUNG, 1, 40) < math.inf
    assert_steps(rising, 10.0, reserve=ONE_YOUNG)
    assert_steps(falling, 10.0, reserve=ONE_YOUNG)


def assert_steps(objective: Objective, now: float, *, reserve: float, low: int = 1, high: int = 40) -> None:
    """Follow the total to its goal, from one step to the next; between two of them nothing changes."""

    def limit(at: float) -> int:
        return max(low, min(high, math.floor(objective.total(at) - reserve)))

    for _ in range(200):
        here, step = limit(now), objective.next_step(now, reserve, low, high)
        if step == math.inf:
            assert limit(now + 1e7) == here
            return
        assert step >= now - 1e-9
        assert limit(now + 0.999 * (step - now)) == here
        now = step + 1e-6
        assert abs(limit(now) - here) == 1
    raise AssertionError("steps without end")


def test_a_call_too_heavy_to_be_late_says_when_it_becomes_lighter() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=20)
    objective.arrive(now, 1)
    assert objective.lighter_at() == math.inf

    objective.advance(now + 2.0, 3, 1, 40)
    assert objective.held_back == _AGE_SHARE * _HEAVIEST
    assert objective.lighter_at() == now + TARGET
    objective.advance(now + TARGET + 0.001, 3, 1, 40)

    assert objective.held_back == _AGE_SHARE * _LATE
    assert objective.lighter_at() == math.inf


def test_what_others_take_makes_a_call_lighter_at_the_next_renewal() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=6)
    objective.arrive(now, 1)
    objective.arrive(now, 2)
    objective.advance(now + 1.5, 3, 1, 40)
    assert objective.held_back == _AGE_SHARE * 2 * _HEAVIEST

    objective.served(now + 1.6, 2, 1.6, 1.6)
    due = objective.lighter_at()
    assert now + 1.6 < due <= now + 1.6 + 0.25
    objective.advance(due, 3, 1, 40)

    assert objective.held_back == _AGE_SHARE * _HEAVIEST  # by now it is older than that one too
