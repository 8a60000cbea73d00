"""Laws on trial beside the one that acts: they see the traffic, and nobody sees them.

Keeps what CONTROL.md says of `Shadow`, and promise 32 of SEMANTICS.md for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Decision,
    Event,
    ExternalPolicy,
    FixedPolicy,
    LimitPolicy,
    PressurePolicy,
    SchedulerMisuse,
    Shadow,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import run_virtual
from tests.behaviour.threads import in_thread, until
from tests.support import Recorder, make_scheduler, noop


def busy(policy: LimitPolicy) -> TrafficScheduler:
    return make_scheduler(max_concurrency=12, batch_max_concurrency=10, batch_min_concurrency=2, policy=policy)


async def traffic(scheduler: TrafficScheduler, seconds: int = 30) -> list[Event]:
    """Bursts of interactive calls among batch work; what the listeners were told, in order."""
    recorder = Recorder(scheduler)
    tasks: list[asyncio.Task[None]] = []
    for second in range(seconds):
        calls = 12 if second % 7 < 3 else 1
        tasks += [
            asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 0.3 + number / 10, label=f"{second}"))
            for number in range(calls)
        ]
        tasks += [
            asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 2.5, label=f"{second}")) for _ in range(4)
        ]
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    scheduler.check()
    return recorder.events


class Meddles:
    """A law that does to the scheduler what no law may do."""

    scheduler: TrafficScheduler

    def __init__(self) -> None:
        self.refusals: list[BaseException] = []

    def advance(self, now: float, signals: Signals) -> None:
        try:
            self.scheduler.configure(max_concurrency=50)
        except SchedulerMisuse as error:
            self.refusals.append(error)
            raise

    def decide(self, now: float, signals: Signals) -> Decision:
        raise ZeroDivisionError

    def observe(self, now: float, event: object) -> None:
        raise asyncio.CancelledError


LAWS: list[Callable[[], LimitPolicy]] = [
    lambda: PressurePolicy(5.0, 1.0),
    lambda: PressurePolicy(5.0, 1.0, smoothing=4.0),
    lambda: AdaptivePolicy(p95_target=1.0),
    AdaptivePolicy,
    lambda: FixedPolicy(3),
]


@pytest.mark.parametrize("make", LAWS)
def test_a_scheduler_behaves_as_with_the_acting_policy_alone(make: Callable[[], LimitPolicy]) -> None:
    meddler = Meddles()
    shadow = Shadow(make(), FixedPolicy(9), meddler, AdaptivePolicy(p95_target=0.5), PressurePolicy(1.0))
    alone, tried = busy(make()), busy(shadow)
    meddler.scheduler = tried

    expected, seen = run_virtual(traffic(alone)), run_virtual(traffic(tried))

    assert seen == expected
    assert tried.snapshot().policy_faults == 0
    assert len(meddler.refusals) > 30
    assert shadow.report()[2].faults > len(meddler.refusals)


async def test_the_report_compares_what_each_would_have_allowed() -> None:
    shadow = Shadow(PressurePolicy(rps_threshold=10.0), FixedPolicy(1), FixedPolicy(10), AdaptivePolicy())
    await traffic(busy(shadow))

    acting, floor, ceiling, headroom = shadow.report()
    assert 2 < acting.mean_limit < 10
    assert (floor.mean_limit, ceiling.mean_limit) == pytest.approx((2, 10))
    assert (floor.more, ceiling.less) == (0, 0)
    assert floor.less > 0.5 < ceiling.more
    assert floor.mean_difference == pytest.approx(2 - acting.mean_limit)
    assert acting.seconds == floor.seconds > 30
    assert [report.faults for report in (acting, floor, ceiling, headroom)] == [0, 0, 0, 0]
    assert len(shadow.explain().splitlines()) == 4


async def test_looking_at_the_scheduler_adds_nothing_to_the_record() -> None:
    shadow = Shadow(PressurePolicy(5.0, smoothing=2.0), FixedPolicy(3))
    scheduler = busy(shadow)
    await traffic(scheduler, 3)
    recorded = len(shadow.history)
    await asyncio.sleep(30)
    for _ in range(5):
        scheduler.snapshot()
        scheduler.explain()

    assert len(shadow.history) == recorded


async def test_a_law_on_trial_learns_from_single_calls_although_the_acting_one_hears_of_none() -> None:
    class Counts(FixedPolicy):
        heard = 0

        def observe(self, now: float, event: object) -> None:
            self.heard += 1

    law = Counts(4)
    scheduler = busy(Shadow(FixedPolicy(3), law))
    for _ in range(5):
        await scheduler.submit("interactive", noop)

    assert law.heard == 10  # an arrival and an end for each


async def test_a_broken_gauge_on_trial_is_a_fault_of_the_trial_and_not_of_the_scheduler() -> None:
    shadow = Shadow(FixedPolicy(3), ExternalPolicy(lambda: math.nan))
    scheduler = busy(shadow)
    await traffic(scheduler, 5)

    assert scheduler.snapshot().policy_faults == 0
    assert shadow.report()[1].faults == len(shadow.history)
    assert shadow.report()[1].mean_limit == 2
    decision = shadow.history[-1].decisions[1]
    assert decision is not None
    assert decision.reason == "external_stale"


def test_on_another_loop_the_record_begins_again() -> None:
    shadow = Shadow(FixedPolicy(3), FixedPolicy(4))
    scheduler = busy(shadow)
    lengths = []
    for _ in range(2):
        with asyncio.Runner() as runner:
            runner.run(scheduler.submit("interactive", noop))
        lengths.append(len(shadow.history))

    assert lengths == [1, 1]


@pytest.mark.parametrize("values", [{"policy": 3}, {"policy": Shadow}])
def test_a_policy_is_still_checked_at_the_schedulers_own_door(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^policy must be an object with the methods advance and decide"):
        make_scheduler(**values)


@pytest.mark.asyncio(loop_factories=["real"])
async def test_the_record_can_be_read_from_another_thread_while_it_is_written() -> None:
    shadow = Shadow(PressurePolicy(5.0), FixedPolicy(4), history=50)
    scheduler = make_scheduler(max_concurrency=12, window=0.001, policy=shadow)
    over = False

    def read() -> int:
        looks = 0
        while not over:
            times = [record.time for record in shadow.history]
            assert times == sorted(times)
            assert len(shadow.explain().splitlines()) == len(shadow.report()) == 2
            looks += 1
        return looks

    reader = in_thread(read)
    try:
        for _ in range(500):
            await scheduler.submit("interactive", noop)
        await until(lambda: reader.done() or len(shadow.history) == 50)
    finally:
        over = True

    assert reader.result() > 0
