"""What the adaptive law keeps of single calls, against the dullest possible twins with exact ages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llm_traffic_scheduler.policies.objective import Objective
from llm_traffic_scheduler.policies.unfinished import Unfinished
from tests.unit.policies.naive_objective import NaiveObjective

LATE_WEIGHT = 10.0


class ObjectiveMachine(RuleBasedStateMachine):
    """On whole seconds a thirty-second of the target is one second, so that both see the very same ages."""

    target, timed = 32.0, True

    def __init__(self) -> None:
        super().__init__()
        self.objective = Objective(self.target, timed=self.timed)
        self.twin = NaiveObjective(self.target, self.timed)
        self.now = -1000.0
        self.number = 0
        self.arrived: dict[int, float] = {}
        self.both("advance", 4, 2, 40)

    def both(self, what: str, *arguments: Any) -> None:
        getattr(self.objective, what)(self.now, *arguments)
        getattr(self.twin, what)(self.now, *arguments)

    @rule(seconds=st.one_of(st.integers(0, 3), st.integers(0, 40), st.just(5000)))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(batch_running=st.integers(0, 60), batch_min=st.integers(1, 4), batch_max=st.sampled_from([4, 40, 90]))
    def batch_changes(self, batch_running: int, batch_min: int, batch_max: int) -> None:
        self.both("advance", batch_running, batch_min, batch_max)

    @rule(number=st.integers(1, 5))
    def calls_arrive(self, number: int) -> None:
        for _ in range(number):
            self.number += 1
            self.arrived[self.number] = self.now
            self.both("arrive", self.number)

    @precondition(lambda self: self.arrived)
    @rule(data=st.data(), what=st.sampled_from(["served", "served", "served", "served twice", "lost"]))
    def a_call_ends(self, data: st.DataObject, what: str) -> None:
        call = data.draw(st.sampled_from(list(self.arrived)))
        elapsed = self.now - self.arrived.pop(call)
        if what == "lost":
            self.both("lost", call, elapsed)
            return
        latency = elapsed if self.timed else data.draw(st.sampled_from([0.5, 8.0, 33.0]))
        for _ in range(1 + (what == "served twice")):
            self.both("served", call, elapsed, latency)

    @rule(number=st.integers(1, 12), seconds=st.integers(0, 40))
    def calls_come_and_go(self, number: int, seconds: int) -> None:
        """Enough of them, and something is known."""
        for _ in range(number):
            self.both("arrive", 0)
            self.now += seconds
            self.both("served", 0, float(seconds), float(seconds))

    @rule(elapsed=st.integers(0, 100))
    def a_stranger_ends(self, elapsed: int) -> None:
        self.both("served", -1, float(elapsed), float(elapsed))
        self.both("lost", -2, float(elapsed))

    @invariant()
    def what_is_held_back_is_the_same(self) -> None:
        self.objective.check()
        assert len(self.objective.unfinished) == len(self.twin.calls)
        assert self.objective.unfinished.reserve == pytest.approx(self.twin.reserve)
        assert self.objective.unfinished.late == self.twin.late

    @invariant()
    def the_trim_and_the_total_are_the_same(self) -> None:
        assert self.objective.samples == len(self.twin.samples)
        assert self.objective._trim == pytest.approx(self.twin.trim)
        for later in (0.5, 100.0):
            at = max(self.now, self.twin.at) + later
            assert self.objective.total(at) == pytest.approx(self.twin.total(at), rel=1e-6)


class PaceMachine(ObjectiveMachine):
    """The same where the age of a call says nothing."""

    timed = False


TestObjectiveMachine = ObjectiveMachine.TestCase
TestPaceMachine = PaceMachine.TestCase
TestObjectiveMachine.settings = TestPaceMachine.settings = settings(stateful_step_count=30)


def squared(age: float) -> float:
    return 1.0 + age * age


def stepped(age: float) -> float:
    return 1.0 if age < 3 else 20.0


@given(
    st.sampled_from([0.01, 1.0, 8.0, 1000.0]),
    st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 9)), min_size=1, max_size=80),
    st.sampled_from([squared, stepped]),
)
def test_the_reserve_is_that_of_exact_ages_within_a_thirty_second_of_the_target(
    target: float, program: list[tuple[float, int]], weight: Callable[[float], float]
) -> None:
    unfinished = Unfinished(target, LATE_WEIGHT)
    alive: dict[int, float] = {}
    now = 0.0
    for number, (share, leaver) in enumerate(program):
        now += share * target
        unfinished.overdue(now)
        unfinished.arrive(now, number, 0.0)
        alive[number] = now
        if leaver in alive:
            unfinished.leave(leaver)
            del alive[leaver]
        unfinished.check()
    now += 1.0  # no renewal has been so far: this one comes
    unfinished.overdue(now)
    unfinished.renew(now, weight)

    ages = [now - arrived for arrived in alive.values()]
    width = target / 32 * 1.001
    low, high = (
        sum(LATE_WEIGHT if age > target else weight(max(0.0, age + off)) for age in ages) for off in (-width, width)
    )
    assert low - 1e-6 <= unfinished.reserve <= high + 1e-6
    assert unfinished.late == sum(age > target for age in ages)
    unfinished.check()


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=60))
def test_what_becomes_lighter_by_itself_does_so_when_it_was_said(
    program: list[tuple[float, bool]],
) -> None:
    unfinished = Unfinished(8.0, LATE_WEIGHT)
    now, number = 0.0, 0
    for wait, arrives in program:
        now += wait
        unfinished.overdue(now)
        unfinished.renew(now, stepped)
        if arrives or not number:
            number += 1
            unfinished.arrive(now, number, 0.0)
    due, reserve = unfinished.lighter_at(), unfinished.reserve

    for _ in range(400):
        now += 0.05
        unfinished.overdue(now)
        unfinished.renew(now, stepped)
        assert unfinished.reserve >= reserve - 1e-9 or now >= due
        if now >= due or unfinished.reserve > reserve:
            due = unfinished.lighter_at()
        reserve = unfinished.reserve
