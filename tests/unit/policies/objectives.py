"""Objectives for tests, and the constants of the law, which tuning may change.

`from tests.unit.policies.objectives import TARGET, goal, make_objective, serve`
"""

from __future__ import annotations

from llm_traffic_scheduler.policies.objective import _AGE_SHARE, _GAIN, _SHARE, _SPARE, Objective

__all__ = ["KEPT_TARGET", "MISSED_TARGET", "MOST", "ONE_YOUNG", "TARGET", "goal", "make_objective", "serve"]

TARGET = 8.0
FAR = 1e9  # by then the total has arrived where it goes
KEPT_TARGET, MISSED_TARGET = -_GAIN * _SHARE, _GAIN * (1 - _SHARE)  # what the trim takes from each
ONE_YOUNG = 1 + _AGE_SHARE  # slots for a call that weighs 1
MOST = (1 + _AGE_SHARE) * 40 + _SPARE  # of a total, where batch_max is 40 and few interactive calls are there


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
