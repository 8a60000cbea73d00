"""A loop's own clock is the clock of every figure, and a timer that fires early has fired at its time.

Promise 27: a loop that overrides `time()`, a coarse clock, early timers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVarTuple

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CloseReport,
    Decision,
    LimitPolicy,
    PressurePolicy,
    QueueTimeout,
    RunTimeout,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import assert_whole, outcome, start
from tests.support import Recorder, hold, make_scheduler, noop, now, settle

Ts = TypeVarTuple("Ts")


async def forever() -> None:
    await asyncio.Event().wait()


class OwnTime(asyncio.SelectorEventLoop):
    """A loop whose clock has another origin, as simulators and some GUI loops have."""

    def time(self) -> float:
        return super().time() + 1e7


class ClassicTime(asyncio.SelectorEventLoop):
    """A loop of the user's that keeps asyncio's time."""


class CountedTimers(VirtualTimeLoop):
    """Counts the timers that are set, and refuses to spin for ever."""

    armed = 0
    early = 0.0

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.armed += 1
        assert self.armed < 1_000, "timers that set themselves again and again"
        return super().call_at(when - self.early, callback, *args, context=context)


class EarlyTimers(CountedTimers):
    """Timers fire a millisecond before their time, as where a selector rounds down."""

    early = 0.001


class CoarseTime(CountedTimers):
    """A clock that advances in steps of 1/64 s, as on Windows, while timers are exact: they seem to fire early."""

    def time(self) -> float:
        return math.floor(super().time() * 64) / 64


def _run_on(make_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main)


each_clock = pytest.mark.parametrize("make_loop", [OwnTime, ClassicTime, CoarseTime, EarlyTimers, VirtualTimeLoop])


@each_clock
def test_a_loops_own_clock_is_the_clock_of_every_figure(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        scheduler = make_scheduler()
        recorder = Recorder(scheduler)
        held = [hold(scheduler), hold(scheduler)]
        await settle()
        waiting = start(scheduler.submit("interactive", asyncio.sleep, 0.05))
        await asyncio.sleep(0.05)
        during = scheduler.snapshot()
        ages = [call.age for call in scheduler.calls()]
        for call in held:
            call.release()
        await waiting

        assert all(0.03 <= age < 25 for age in ages)
        assert 0.03 <= during.oldest_interactive_wait < 25
        assert 0.06 <= scheduler.snapshot().interactive.p99 < 25
        assert all(abs(event.at - now()) < 25 for event in recorder.events)
        await assert_whole(scheduler)

    _run_on(make_loop, main())


@each_clock
def test_timeouts_follow_the_loops_own_clock(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        scheduler = make_scheduler()
        held = [hold(scheduler), hold(scheduler)]
        await settle()
        with pytest.raises(QueueTimeout) as caught:
            await asyncio.wait_for(scheduler.submit("interactive", noop, queue_timeout=0.05), 20)
        for call in held:
            call.release()
        await settle()
        with pytest.raises(RunTimeout):
            await asyncio.wait_for(scheduler.submit("interactive", forever, run_timeout=0.05), 20)
        task = start(scheduler.submit("batch", forever))
        await settle()
        report = await asyncio.wait_for(scheduler.close(timeout=0.05), 20)

        assert 0.03 <= caught.value.waited < 20
        assert report == CloseReport(cancelled=1)
        assert await outcome(task) is CallAborted

    _run_on(make_loop, main())


@pytest.mark.parametrize("make_loop", [EarlyTimers, CoarseTime])
def test_a_timer_that_fires_early_has_fired_at_its_time_and_does_not_spin(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> tuple[int, float]:
        scheduler = make_scheduler()
        held = [hold(scheduler), hold(scheduler)]
        await settle()
        waiting = [start(scheduler.submit("interactive", noop, queue_timeout=5)) for _ in range(3)]
        await asyncio.sleep(4.9)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountedTimers)
        armed_before = loop.armed
        endings = [await outcome(task) for task in waiting]
        armed = loop.armed - armed_before

        assert endings == [QueueTimeout] * 3
        for call in held:
            call.release()
        await assert_whole(scheduler)
        return armed, scheduler.snapshot().timer_lateness

    armed, lateness = _run_on(make_loop, main())
    assert armed <= 1
    assert lateness == 0.0


class Counted:
    """A law that counts how often it is asked."""

    def __init__(self, law: LimitPolicy) -> None:
        self.asked = 0
        self._law = law

    def advance(self, now: float, signals: Signals) -> None:
        self._law.advance(now, signals)

    def decide(self, now: float, signals: Signals) -> Decision:
        self.asked += 1
        return self._law.decide(now, signals)


@pytest.mark.parametrize("make_loop", [EarlyTimers, CoarseTime, CountedTimers])
def test_a_limit_that_rises_by_itself_is_looked_at_a_few_times_and_not_in_a_spin(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    law = Counted(PressurePolicy(rps_threshold=2))

    async def main() -> None:
        scheduler = TrafficScheduler(max_concurrency=8, window=10, policy=law)
        for _ in range(20):
            await scheduler.submit("interactive", noop)
        tasks = [start(scheduler.submit("batch", asyncio.sleep, 60)) for _ in range(6)]
        await asyncio.sleep(20)
        assert scheduler.snapshot().batch_running == 6
        await asyncio.gather(*tasks)
        await assert_whole(scheduler)

    _run_on(make_loop, main())
    assert 5 <= law.asked <= 50  # a spin would ask for ever
