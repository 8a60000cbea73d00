"""What total a target allows: learnt from latencies and the totals they were had under."""

from __future__ import annotations

import math

from llm_traffic_scheduler.policies.objective import WARM_UP, Objective

TARGET = 8.0
FAR = 1e9  # by then the total has arrived where it goes


def make_objective(target: float = TARGET, *, timed: bool = True, batch_min: int = 1, batch_max: int = 40) -> Objective:
    """An objective whose batch calls are at what the total allows, from second 0 on."""
    objective = Objective(target, timed=timed)
    objective.advance(0.0, batch_max, batch_min, batch_max)
    return objective


def serve(objective: Objective, latency: float, *, start: float = 0.0, times: int = 1) -> float:
    """One call after the other, each of this latency; returns when the last has ended."""
    now = start
    for call in range(times):
        objective.arrive(now, call)
        now += latency
        objective.served(now, call, latency, latency)
        objective.check()
    return now


def goal(objective: Objective) -> float:
    return objective.total(FAR)


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
