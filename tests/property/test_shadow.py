"""Policies beside the acting one, in any order of events and with any faults: it behaves as if it were alone.

Keeps the list under "Properties" in CONTROL.md for `Shadow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    Decision,
    Ended,
    LimitPolicy,
    PressurePolicy,
    Shadow,
    ShadowReport,
    Signals,
)

STEPS = st.integers(0, 2**12).map(lambda ticks: ticks / 1024)


class Odd:
    """A policy that does at each turn what the test drew: answers, sense or nonsense, or raises."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers
        self._turn = 0

    def _next(self) -> Any:
        self._turn += 1
        answer = self._answers[self._turn % len(self._answers)]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def advance(self, now: float, signals: Signals) -> None:
        self._next()

    def observe(self, now: float, event: object) -> None:
        self._next()

    def reset(self) -> None:
        self._next()

    def decide(self, now: float, signals: Signals) -> Any:
        return self._next()


answers = st.one_of(
    st.builds(Decision, st.integers(-5, 30), st.floats(), st.sampled_from(["a", "b"]), st.floats()),
    st.sampled_from([None, 3, "x", Decision(True), Decision(None)]),  # type: ignore[arg-type]
    st.sampled_from([ValueError(), MemoryError(), GeneratorExit(), StopIteration()]),
)
odd = st.lists(answers, min_size=1, max_size=6).map(Odd)

LAWS: list[Callable[[], LimitPolicy]] = [
    lambda: PressurePolicy(10.0, 2.0),
    lambda: PressurePolicy(10.0, smoothing=3.0),
    lambda: AdaptivePolicy(p95_target=2.0),
    AdaptivePolicy,
]

levels = st.builds(
    Signals,
    max_concurrency=st.just(12),
    batch_max=st.just(10),
    batch_min=st.integers(1, 3),
    interactive_running=st.integers(0, 5),
    batch_running=st.integers(0, 10),
    rps=st.floats(0, 20),
    p95=st.floats(0, 5),
    p95_finished=st.floats(0, 5),
)
events = st.lists(
    st.tuples(
        STEPS, st.one_of(levels, st.sampled_from([Arrived(1), Ended(1, 0.5), Arrived(2), Ended(2, 4.0), "reset"]))
    ),
    max_size=12,
)


def play(policy: Any, past: list[tuple[float, Any]]) -> list[Decision]:
    """Everything the policy decides on the way."""
    now, decided, present = 0.0, [], Signals(batch_max=10)
    for step, event in past:
        now += step
        if event == "reset":
            if hasattr(policy, "reset"):
                policy.reset()
        elif isinstance(event, Signals):
            present = event
            policy.advance(now, present)
        elif hasattr(policy, "observe"):
            policy.observe(now, event)
        decided.append(policy.decide(now, present))
    return decided


@pytest.mark.parametrize("make", LAWS)
@given(events, st.lists(odd, max_size=3))
def test_the_acting_policy_behaves_as_if_it_were_alone(
    make: Callable[[], LimitPolicy], past: list[tuple[float, Any]], others: list[Odd]
) -> None:
    assert play(Shadow(make(), *others), past) == play(make(), past)


@pytest.mark.parametrize("make", LAWS)
@given(st.lists(st.tuples(STEPS, st.one_of(levels, st.just(Arrived(1)), st.just(Ended(1, 3.0)))), max_size=12))
def test_what_is_recorded_of_another_is_what_it_decides_in_the_acting_place(
    make: Callable[[], LimitPolicy], past: list[tuple[float, Any]]
) -> None:
    shadow = Shadow(PressurePolicy(5.0), make())
    play(shadow, past)

    alone, now, expected = make(), 0.0, []
    for step, event in past:
        now += step
        if isinstance(event, Signals):
            alone.advance(now, event)
            limit = alone.decide(now, event).limit
            expected.append((now, min(event.batch_max, max(event.batch_min, limit))))
        elif hasattr(alone, "observe"):
            alone.observe(now, event)
    assert [(record.time, record.limits[1]) for record in shadow.history] == expected


@given(st.lists(st.tuples(STEPS, levels), max_size=12), odd, odd)
def test_the_record_stays_inside_the_bounds_and_the_report_is_its_average(
    past: list[tuple[float, Signals]], acting: Odd, other: Odd
) -> None:
    shadow, now = Shadow(acting, other), 0.0
    for step, present in past:
        now += step
        with suppress(Exception, GeneratorExit):  # the acting one's own
            shadow.advance(now, present)
        for limit in shadow.history[-1].limits:
            assert limit is None or present.batch_min <= limit <= present.batch_max

    assert len(shadow.history) == len(past)
    report, expected = shadow.report()[1], average(shadow)
    assert (report.seconds, report.mean_limit) == pytest.approx((expected.seconds, expected.mean_limit))
    assert (report.mean_difference, report.more, report.less) == pytest.approx(
        (expected.mean_difference, expected.more, expected.less), abs=1e-12
    )
    assert 0 <= report.more <= 1
    assert 0 <= report.less <= 1


def average(shadow: Shadow) -> ShadowReport:
    """The report on the other, from the whole history."""
    spans = [
        (later.time - earlier.time, earlier.limits[0], earlier.limits[1])
        for earlier, later in zip(shadow.history, shadow.history[1:], strict=False)
    ]
    both = [(dt, acting, other) for dt, acting, other in spans if acting is not None and other is not None]
    total = math.fsum(dt for dt, _, _ in both)
    if not total:
        return ShadowReport("", 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    return ShadowReport(
        policy="",
        seconds=total,
        mean_limit=math.fsum(dt * other for dt, _, other in both) / total,
        mean_difference=math.fsum(dt * (other - acting) for dt, acting, other in both) / total,
        more=math.fsum(dt for dt, acting, other in both if other > acting) / total,
        less=math.fsum(dt for dt, acting, other in both if other < acting) / total,
        faults=0,
    )
