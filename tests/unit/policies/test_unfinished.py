"""Calls that wait to be served: what each of them reserves, by its age."""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler.policies.unfinished import Unfinished

TARGET, LATE_WEIGHT = 8.0, 10.0


def make_unfinished(target: float = TARGET) -> Unfinished:
    return Unfinished(target, LATE_WEIGHT)


def by_age(age: float) -> float:
    return 1.0 + age


def test_a_call_weighs_one_as_it_arrives() -> None:
    unfinished = make_unfinished()

    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(0.0, 2, 0.0)

    assert (len(unfinished), unfinished.reserve, unfinished.late) == (2, 2.0, 0)
    unfinished.check()


def test_a_call_that_leaves_takes_its_weight_along() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(4.0, 2, 0.0)
    unfinished.renew(6.0, by_age)

    unfinished.leave(1)

    assert unfinished.reserve == pytest.approx(by_age(2.0), abs=TARGET / 32)
    unfinished.check()


def test_who_leaves_gets_back_the_mark_it_arrived_with() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(3.0, 1, 42.0)

    waiting = unfinished.leave(1)

    assert waiting is not None
    assert (waiting.arrived, waiting.mark, waiting.late) == (3.0, 42.0, False)


def test_a_call_that_nobody_knows_leaves_nothing_behind() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)

    assert unfinished.leave(2) is None

    assert (len(unfinished), unfinished.reserve) == (1, 1.0)


def test_a_call_leaves_once() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(0.0, 2, 0.0)

    assert unfinished.leave(1) is not None
    assert unfinished.leave(1) is None

    assert unfinished.reserve == 1.0
    unfinished.check()


def test_the_weight_is_that_of_the_age_to_a_thirty_second_of_the_target() -> None:
    unfinished = make_unfinished()
    arrivals = [0.0, 0.1, 0.3, 1.0, 2.5, 2.6, 5.0]
    for call, arrival in enumerate(arrivals):
        unfinished.arrive(arrival, call, 0.0)

    unfinished.renew(6.0, by_age)

    exact = sum(by_age(6.0 - arrival) for arrival in arrivals)
    assert unfinished.reserve == pytest.approx(exact, abs=len(arrivals) * TARGET / 32)


def test_a_call_is_late_once_it_is_older_than_the_target_and_not_before() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(1.0, 1, 0.0)

    assert unfinished.overdue(1.0 + TARGET) == 0
    assert unfinished.overdue(math.nextafter(1.0 + TARGET, math.inf)) == 1
    assert (unfinished.late, unfinished.reserve) == (1, LATE_WEIGHT)


def test_a_call_becomes_late_once() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)

    assert [unfinished.overdue(now) for now in (9.0, 10.0, 100.0)] == [1, 0, 0]


def test_a_call_that_left_in_time_is_never_late() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(0.0, 2, 0.0)
    unfinished.leave(1)

    assert unfinished.overdue(9.0) == 1
    unfinished.check()


def test_the_late_weight_replaces_what_the_call_weighed_by_its_age() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(7.0, 2, 0.0)
    unfinished.renew(7.5, lambda age: 20.0 if age > 5 else 1.0)
    assert unfinished.reserve == 21.0

    unfinished.overdue(9.0)

    assert unfinished.reserve == LATE_WEIGHT + 1.0
    unfinished.check()


def test_a_late_call_is_not_weighed_by_its_age_any_more() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.overdue(9.0)

    unfinished.renew(100.0, by_age)

    assert unfinished.reserve == LATE_WEIGHT


def test_a_late_call_that_leaves_takes_the_late_weight_along() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.arrive(7.0, 2, 0.0)
    unfinished.overdue(9.0)

    waiting = unfinished.leave(1)

    assert waiting is not None
    assert waiting.late
    assert (unfinished.late, unfinished.reserve) == (0, 1.0)
    unfinished.check()


def test_weights_are_renewed_at_most_four_times_a_second() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    asked: list[float] = []

    def weight(age: float) -> float:
        asked.append(age)
        return 1.0

    for tick in range(1, 1001):
        unfinished.renew(tick / 100, weight)

    assert 30 <= len(asked) <= 40


def test_with_nobody_there_nothing_is_weighed() -> None:
    unfinished = make_unfinished()

    unfinished.renew(5.0, lambda age: pytest.fail("there is nobody to weigh"))

    assert unfinished.reserve == 0.0


def test_rounding_leaves_no_reserve_behind_when_the_last_one_leaves() -> None:
    unfinished = make_unfinished()
    for call in range(10):
        unfinished.arrive(call / 10, call, 0.0)
    unfinished.renew(2.0, lambda age: age / 3)

    for call in range(10):
        unfinished.leave(call)

    assert unfinished.reserve == 0.0
    unfinished.check()


def test_who_arrives_after_everybody_has_left_weighs_one_again() -> None:
    unfinished = make_unfinished()
    unfinished.arrive(0.0, 1, 0.0)
    unfinished.renew(0.1, lambda age: 5.0)
    unfinished.leave(1)

    unfinished.arrive(0.2, 2, 0.0)

    assert unfinished.reserve == 1.0


def test_weights_are_renewed_wherever_the_clock_starts() -> None:
    reserves = []
    for start in (-1e6, 0.0, 1e6):
        unfinished = make_unfinished()
        unfinished.arrive(start, 1, 0.0)
        unfinished.renew(start + 0.125, lambda age: 5.0)
        reserves.append(unfinished.reserve)

    assert reserves == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("target", [TARGET, math.inf])
def test_calls_that_have_left_are_forgotten_though_an_older_one_stays(target: float) -> None:
    unfinished = make_unfinished(target)
    unfinished.arrive(0.0, 0, 0.0)

    for call in range(1, 1000):
        unfinished.arrive(call / 1000, call, 0.0)
        unfinished.leave(call)

    assert len(unfinished) == 1
    unfinished.check()  # and nothing else is kept


@pytest.mark.parametrize("target", [0.001, 0.1, 10.0])
def test_however_short_the_target_ages_stand_in_few_buckets(target: float) -> None:
    unfinished = make_unfinished(target)
    for call in range(2000):
        now = call * target / 50
        unfinished.overdue(now)
        unfinished.arrive(now, call, 0.0)
        if call >= 40:
            unfinished.leave(call - 40)

        unfinished.check()
