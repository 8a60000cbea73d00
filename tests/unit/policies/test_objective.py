"""What total a target allows: learnt from latencies and the totals they were had under."""

from __future__ import annotations

import math
import random

import pytest

from llm_traffic_scheduler.policies.objective import (
    _AGE_SHARE,
    _EXPONENT,
    _FALL,
    _KEPT,
    _RISE,
    _SPARE,
    _START,
    _SURE_AFTER,
    _TRIM,
    WARM_UP,
    Objective,
)
from tests.unit.policies.naive_objective import NaiveObjective
from tests.unit.policies.objectives import (
    KEPT_TARGET,
    MISSED_TARGET,
    MOST,
    ONE_YOUNG,
    TARGET,
    goal,
    make_objective,
    serve,
)


def test_hours_without_events_do_not_break_a_total_that_rises() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=100)

    later = now + 1e7
    risen = objective.total(later)
    objective.advance(later, 0, 1, 40)

    assert risen == objective.total(later) == goal(objective)


def test_another_loop_finds_the_total_where_it_was() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=WARM_UP)
    total = objective.total(now)
    assert total < goal(objective)

    objective.forget_calls()
    objective.advance(-500.0, 0, 1, 40)

    assert objective.total(-500.0) == total
    assert total < objective.total(-499.0) < total + 1


def test_between_two_loops_the_total_stands_still() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=WARM_UP)
    total = objective.total(now)

    objective.forget_calls()

    assert objective.total(now + 1000) == total
    assert objective.next_step(now + 1000, 1.0, 1, 40) == math.inf


def test_while_nothing_is_known_the_total_averages_what_three_batch_calls_come_to() -> None:
    objective = make_objective()

    objective.arrive(10.0, 1)  # ten seconds of 3, then as long of 3, 1 for the call and 0.75 for its age

    assert objective.learning
    assert objective.total(10.0) == _START
    assert objective.total(17.0) == pytest.approx(_START + 7 / 17 * ONE_YOUNG)
    objective.advance(20.0, 3, 1, 40)
    assert objective.total(20.0) == pytest.approx(_START + 10 / 20 * ONE_YOUNG)


def test_the_first_call_of_all_runs_beside_three_batch_calls_at_once() -> None:
    objective = Objective(TARGET)
    objective.advance(0.0, 0, 1, 40)
    objective.arrive(0.0, 1)

    assert objective.total(0.0) - 1 - objective.held_back == _START
    assert objective.total(5.0) - 1 - objective.held_back == _START


def test_ten_calls_are_enough_to_solve_for_the_total() -> None:
    objective = make_objective()

    now = serve(objective, 1.0, times=WARM_UP - 1)
    assert objective.learning
    serve(objective, 1.0, start=now)

    assert not objective.learning
    assert goal(objective) != objective.total(now)


def test_the_goal_is_the_closed_form_of_what_was_had_and_missed() -> None:
    objective, twin = make_objective(), NaiveObjective(TARGET)
    twin.advance(0.0, 40, 1, 40)
    rng = random.Random(3)
    now = 0.0

    for call in range(700):
        latency = rng.lognormvariate(0.8, 0.7)
        for each in (objective, twin):
            each.arrive(now, call)
            each.served(now + latency, call, latency, latency)
            each.advance(now + latency, 1 + call % 40, 1, 40)
        now += latency + rng.random()

        if call >= WARM_UP and call % 100 == 0:
            assert goal(objective) == pytest.approx(twin.goal)
            assert objective.total(now + 1) == pytest.approx(twin.total(now + 1))


def test_a_p95_at_its_target_leaves_the_total_where_it_is() -> None:
    objective = make_objective()
    now = serve(objective, TARGET, times=WARM_UP)

    # All ten ran under about what the total is now, and ten kept targets move the trim by half a per cent.
    assert goal(objective) == pytest.approx(objective.total(now), rel=0.02)


def test_the_goal_stays_between_the_floor_and_what_could_ever_be_used() -> None:
    slow, quick = make_objective(batch_min=4), make_objective(batch_min=4)

    serve(slow, 1000 * TARGET, times=30)
    serve(quick, TARGET / 1000, times=30)

    assert goal(slow) == 4
    assert goal(quick) == MOST


def test_new_bounds_move_the_goal_at_once() -> None:
    objective = make_objective()
    now = serve(objective, TARGET / 1000, times=30)

    objective.advance(now, 2, 1, 8)

    assert goal(objective) == (1 + _AGE_SHARE) * 8 + _SPARE


def test_many_interactive_calls_at_once_do_not_keep_batch_from_what_their_target_allows() -> None:
    objective = make_objective()
    for call in range(200):
        objective.arrive(0.0, call)
    for call in range(100):
        objective.served(TARGET / 1000, call, TARGET / 1000, TARGET / 1000)

    beside_the_others = goal(objective) - objective._held

    assert beside_the_others >= 40


def test_the_room_for_many_interactive_calls_is_forgotten_when_they_have_gone() -> None:
    objective = make_objective()
    for call in range(200):
        objective.arrive(0.0, call)
    for call in range(200):
        objective.served(TARGET / 1000, call, TARGET / 1000, TARGET / 1000)
    assert goal(objective) > MOST

    serve(objective, TARGET / 1000, start=1.0, times=300)

    assert goal(objective) == MOST


def test_a_call_that_kept_its_target_is_counted_as_it_is_served() -> None:
    objective = make_objective()

    serve(objective, TARGET)

    assert objective._trim == pytest.approx(KEPT_TARGET)


def test_a_call_is_a_miss_at_the_moment_its_age_passes_the_target() -> None:
    objective = make_objective()
    objective.arrive(0.0, 1)

    objective.advance(TARGET, 3, 1, 40)
    assert objective._trim == 0.0
    objective.advance(TARGET + 0.001, 3, 1, 40)

    assert objective._trim == pytest.approx(MISSED_TARGET)


@pytest.mark.parametrize("end", ["served", "lost"])
def test_a_call_that_missed_is_not_counted_again_when_it_ends(end: str) -> None:
    objective = make_objective()
    objective.arrive(0.0, 1)
    objective.advance(TARGET + 1, 3, 1, 40)
    trim = objective._trim

    if end == "served":
        objective.served(TARGET + 2, 1, TARGET + 2, TARGET + 2)
    else:
        objective.lost(TARGET + 2, 1, TARGET + 2)
    objective.advance(TARGET + 20, 3, 1, 40)

    assert objective._trim == trim


def test_a_call_that_ends_late_is_one_miss_though_nobody_looked_before() -> None:
    objective = make_objective()

    serve(objective, TARGET + 1)

    assert objective._trim == pytest.approx(MISSED_TARGET)


def test_a_call_that_is_lost_in_time_has_neither_kept_nor_missed_its_target() -> None:
    objective = make_objective()
    objective.arrive(0.0, 1)

    objective.lost(1.0, 1, 1.0)

    assert objective._trim == 0.0


def test_the_trim_has_bounds() -> None:
    missed, kept = make_objective(), make_objective()

    serve(missed, TARGET + 1, times=1 + math.ceil(_TRIM[1] / MISSED_TARGET))
    serve(kept, 1.0, times=1 + math.ceil(_TRIM[0] / KEPT_TARGET))

    assert (missed._trim, kept._trim) == (_TRIM[1], _TRIM[0])


@pytest.mark.parametrize("samples", [WARM_UP, _SURE_AFTER // 2, _SURE_AFTER, 2 * _SURE_AFTER])
def test_the_total_rises_the_quicker_the_more_is_known(samples: int) -> None:
    objective = make_objective()
    now = serve(objective, TARGET / 1000, times=samples)
    total = objective.total(now)

    per_second = _RISE[0] + _RISE[1] * min(1, samples / _SURE_AFTER)
    assert objective.total(now + 0.001) - total == pytest.approx(total * per_second * 0.001, rel=1e-3)


def test_the_total_falls_by_ten_twelfths_a_second() -> None:
    objective = make_objective()
    now = serve(objective, TARGET / 10, times=60)
    objective.advance(now + 30, 40, 1, 40)
    now = serve(objective, 0.01, start=now + 30, times=20)
    for call in range(20):  # all at once, and so slow that the goal is the floor
        objective.arrive(now, call)
    for call in range(20):
        objective.served(now, call, 0.0, 1000 * TARGET)
    total = objective.total(now)

    assert goal(objective) == 1
    assert total - objective.total(now + 0.001) == pytest.approx(total * _FALL * 0.001, rel=1e-3)


def test_a_call_is_scaled_by_the_mean_total_of_its_own_life() -> None:
    objective = make_objective(20.0, timed=False)
    objective.arrive(10.0, 1)  # under the first total, as it was for ten seconds
    objective.advance(15.0, 40, 1, 40)  # and from here on under the average, with five of that and the call
    objective.served(20.0, 1, 10.0, 10.0)

    for call in range(WARM_UP - 1):
        objective.arrive(20.0, call)
        objective.served(20.0, call, 0.0, 0.01)

    mean = (_START + _START + 5 / 15 * ONE_YOUNG) / 2
    assert goal(objective) == pytest.approx(
        mean * (20.0 / 10.0) ** (1 / _EXPONENT) * math.exp(-KEPT_TARGET * WARM_UP / _EXPONENT)
    )


@pytest.mark.parametrize("batch_running", [0, 1, 2])
def test_where_batch_does_not_use_the_total_a_latency_tells_of_what_ran(batch_running: int) -> None:
    objective = make_objective(4.0, timed=False)
    now = serve(objective, 0.01, times=100)
    objective.advance(now + 100, batch_running, 1, 40)
    assert objective.total(now + 100) == MOST

    serve(objective, 1.0, start=now + 100, times=max(_KEPT, 1 + math.ceil(_TRIM[0] / KEPT_TARGET)))

    used = batch_running + ONE_YOUNG
    expected = used * (4.0 / 1.0) ** (1 / _EXPONENT) * math.exp(-_TRIM[0] / _EXPONENT)
    assert goal(objective) == pytest.approx(expected)


def test_a_call_that_failed_sooner_than_others_succeed_teaches_nothing() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=20)
    before = objective.samples, goal(objective)

    for call in range(1000):
        objective.arrive(now, call)
        objective.lost(now + 0.001, call, 0.001)
        now += 0.001

    assert (objective.samples, goal(objective)) == before


def test_a_call_that_failed_after_the_p95_is_a_lower_bound() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=20)
    before = goal(objective)

    for call in range(2):
        objective.arrive(now, call)
        now += 5.0
        objective.lost(now, call, 5.0)

    assert objective.samples == 22
    assert goal(objective) < before / 2


def test_where_nothing_ever_succeeds_nothing_is_learnt() -> None:
    objective = make_objective()
    for call in range(50):
        objective.arrive(2.0 * call, call)
        objective.lost(2.0 * call + 1, call, 1.0)

    assert objective.learning
    assert objective.samples == 0


def test_only_the_last_latencies_count() -> None:
    objective = make_objective()
    now = serve(objective, 50 * TARGET, times=100)
    assert goal(objective) == 1

    now = serve(objective, 0.01, start=now, times=_KEPT - 31)
    assert goal(objective) == 1  # 31 slow ones are more than five in a hundred
    serve(objective, 0.01, start=now)

    assert goal(objective) > 1


def test_a_call_nobody_knows_and_a_second_end_change_nothing() -> None:
    objective = make_objective()
    now = serve(objective, 1.0, times=20)
    before = objective.samples, objective._trim, goal(objective)

    objective.served(now, 999, 0.5, 0.5)
    objective.lost(now, 999, 50.0)
    objective.served(now, 19, 0.5, 0.5)

    assert (objective.samples, objective._trim, goal(objective)) == before
    objective.check()
