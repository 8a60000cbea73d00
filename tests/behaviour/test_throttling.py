"""The backend asks us to wait: `Slot.throttled()` holds batch back until the time is over, and not a moment longer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import AdaptivePolicy, ConfigError, Decision, LimitChanged, PressurePolicy, Signals
from llm_traffic_scheduler.testing import run_virtual
from tests.behaviour.doors import each_kind
from tests.behaviour.throttled import BATCH_MAX, BATCH_MIN, crowd, plain, scheduler_of, started, throttle
from tests.support import Law, Recorder, armed_timers, hold, noop, settle

HEEDS: dict[str, Callable[[], Any]] = {
    "pressure": lambda: PressurePolicy(rps_threshold=1e6),
    "smoothed pressure": lambda: PressurePolicy(p95_threshold=1e6, smoothing=30.0),
    "adaptive": AdaptivePolicy,
}
each_policy = pytest.mark.parametrize("policy", HEEDS.values(), ids=list(HEEDS))


# Until when


@each_policy
@each_kind
async def test_until_the_time_is_over_no_more_than_the_minimum_starts(policy: Callable[[], Any], kind: Any) -> None:
    scheduler = scheduler_of(policy())
    await throttle(scheduler, 5, kind=kind)

    batch = crowd(scheduler)
    await asyncio.sleep(4.99)
    assert started(batch) == BATCH_MIN

    await asyncio.sleep(2)
    assert started(batch) == BATCH_MAX


@pytest.mark.parametrize("given, seconds", [((), 1.0), ((None,), 1.0), ((0.25,), 0.25), ((7,), 7.0)])
async def test_it_lasts_as_long_as_said_and_a_second_where_nothing_is_said(given: Any, seconds: float) -> None:
    scheduler = plain()
    await throttle(scheduler, *given)
    batch = crowd(scheduler)

    await asyncio.sleep(seconds - 0.001)
    assert started(batch) == BATCH_MIN
    assert scheduler.snapshot().reason == "throttled"
    await asyncio.sleep(0.002)

    assert started(batch) == BATCH_MAX
    assert scheduler.snapshot().reason != "throttled"


async def test_no_time_at_all_holds_nobody_back() -> None:
    scheduler = plain()
    await throttle(scheduler, 0)

    batch = crowd(scheduler)
    await settle()

    assert started(batch) == BATCH_MAX


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -1e-9, True, False, "3", "", [1], 10**400])
@each_kind
async def test_what_is_no_time_is_refused_and_changes_nothing(value: Any, kind: Any) -> None:
    scheduler = plain()
    before = scheduler._home.governor.throttled_until

    async with scheduler.slot(kind) as slot:
        with pytest.raises(ConfigError, match="retry_after must be a"):
            slot.throttled(value)

    assert scheduler._home.governor.throttled_until == before
    assert scheduler.snapshot().reason != "throttled"


async def test_what_is_no_time_does_not_end_an_earlier_wish() -> None:
    scheduler = plain()
    async with scheduler.slot("interactive") as slot:
        slot.throttled(5)
        with pytest.raises(ConfigError):
            slot.throttled(math.nan)

    assert scheduler.snapshot().reason == "throttled"


@given(st.lists(st.tuples(st.floats(0, 5), st.one_of(st.none(), st.floats(0, 20))), min_size=1, max_size=8))
def test_of_all_wishes_the_latest_end_holds(wishes: list[tuple[float, float | None]]) -> None:
    async def story() -> None:
        seen: list[float] = []

        def answer(at: float, signals: Signals) -> Decision:
            seen.append(signals.throttled_until)
            return Decision(signals.batch_min)

        scheduler = scheduler_of(Law(answer))
        batch = crowd(scheduler)
        loop, latest = asyncio.get_running_loop(), -math.inf
        async with scheduler.slot("interactive") as slot:
            for gap, seconds in wishes:
                await asyncio.sleep(gap)
                slot.throttled(*(() if seconds is None else (seconds,)))
                latest = max(latest, loop.time() + (1.0 if seconds is None else seconds))
                assert seen[-1] == pytest.approx(latest)
        for call in batch:
            call.release()
        await asyncio.gather(*(call.task for call in batch))

    run_virtual(story())


@given(st.floats(0, 1e3), st.floats(-1e3, 1e3), st.floats(0, 3), st.sampled_from([None, 3.0]))
def test_the_pressure_is_at_least_one_exactly_until_then(
    now: float, ahead: float, rps: float, smoothing: float | None
) -> None:
    policy = PressurePolicy(rps_threshold=2.0, smoothing=smoothing)
    signals = Signals(max_concurrency=8, batch_max=6, batch_min=2, rps=rps)
    throttled = Signals(max_concurrency=8, batch_max=6, batch_min=2, rps=rps, throttled_until=now + ahead)
    policy.advance(now, signals)

    unaware, aware = policy.decide(now, signals), policy.decide(now, throttled)

    if now < now + ahead:
        assert (aware.limit, aware.pressure) == (2, max(1.0, unaware.pressure))
        assert aware.reason == ("throttled" if unaware.pressure < 1 else unaware.reason)
        assert aware.valid_until <= now + ahead
    else:
        assert aware == unaware


# What follows


async def test_what_runs_goes_on_and_only_starts_are_held_back() -> None:
    scheduler = plain()
    batch = crowd(scheduler)
    await settle()
    await throttle(scheduler, 5)
    assert scheduler.snapshot().batch_running == BATCH_MAX

    batch[0].release()
    batch[1].release()
    batch[2].release()
    await settle()

    assert started(batch) == BATCH_MAX + 1  # one runs and one takes its place beside it
    assert scheduler.snapshot().batch_running == BATCH_MIN


@each_policy
@pytest.mark.parametrize("seconds", [1e9, 1e300, 1.7e308, 5e-324])
async def test_any_finite_time_is_taken(policy: Callable[[], Any], seconds: float) -> None:
    scheduler = scheduler_of(policy())
    await throttle(scheduler, seconds)
    batch = crowd(scheduler)

    await asyncio.sleep(200_000)  # further than a loop sleeps at a time

    assert started(batch) == (BATCH_MAX if seconds < 1 else BATCH_MIN)
    assert scheduler.snapshot().policy_faults == 0
    scheduler.check()


async def test_interactive_calls_are_not_held_back() -> None:
    scheduler = plain()
    await throttle(scheduler, 5)

    interactive = [hold(scheduler) for _ in range(8)]
    await settle()

    assert started(interactive) == 8


async def test_a_batch_call_sees_that_it_should_give_way() -> None:
    scheduler = plain()
    batch = crowd(scheduler, BATCH_MAX - 1)
    async with scheduler.slot("batch") as slot:
        await settle()
        assert not slot.should_yield
        slot.throttled(5)
        assert slot.should_yield
    assert started(batch) == BATCH_MAX - 1


@each_policy
async def test_a_timer_ends_it_only_while_batch_waits(policy: Callable[[], Any]) -> None:
    scheduler = scheduler_of(policy())
    await throttle(scheduler, 50)
    assert armed_timers() == []

    batch = crowd(scheduler, BATCH_MIN)
    await settle()
    assert armed_timers() == []

    batch += crowd(scheduler, 1)
    await settle()
    assert len(armed_timers()) == 1
    await asyncio.sleep(55)
    assert started(batch) == BATCH_MIN + 1
    assert armed_timers() == []


async def test_a_longer_wish_while_batch_waits_moves_the_end() -> None:
    scheduler = plain()
    await throttle(scheduler, 2)
    batch = crowd(scheduler)
    await asyncio.sleep(1)
    await throttle(scheduler, 9)

    await asyncio.sleep(8.9)
    assert started(batch) == BATCH_MIN
    await asyncio.sleep(0.2)

    assert started(batch) == BATCH_MAX


async def test_a_wish_while_batch_waits_for_other_reasons_wakes_nobody_before_its_end() -> None:
    scheduler = scheduler_of(PressurePolicy(rps_threshold=0.1), window=3.0)
    await scheduler.submit("interactive", noop)
    batch = crowd(scheduler)
    await asyncio.sleep(1)
    assert started(batch) == BATCH_MIN

    await throttle(scheduler, 10)

    await asyncio.sleep(9.9)  # the window has been empty for long
    assert started(batch) == BATCH_MIN
    await asyncio.sleep(0.2)
    assert started(batch) == BATCH_MAX


async def test_the_limit_changes_twice_however_often_it_is_said() -> None:
    scheduler = plain()
    recorder = Recorder(scheduler)
    batch = crowd(scheduler)
    await settle()
    batch[0].release()
    await settle()

    for _ in range(5):
        await throttle(scheduler, 3)
    batch[1].release()
    await asyncio.sleep(4)

    assert [(event.before, event.after, event.reason) for event in recorder.of(LimitChanged)] == [
        (BATCH_MAX, BATCH_MIN, "throttled"),
        (BATCH_MIN, BATCH_MAX, recorder.of(LimitChanged)[-1].reason),
    ]
    assert started(batch) == BATCH_MAX + 2


async def test_it_shows_in_snapshot_and_explain() -> None:
    scheduler = plain()
    await throttle(scheduler, 5)

    snapshot = scheduler.snapshot()
    assert (snapshot.reason, snapshot.pressure, snapshot.batch_limit) == ("throttled", 1.0, BATCH_MIN)
    assert "the backend has asked us to wait" in snapshot.detail
    assert "the backend has asked us to wait" in scheduler.explain()

    await asyncio.sleep(5)
    assert scheduler.snapshot().batch_limit == BATCH_MAX
    assert "asked us to wait" not in scheduler.explain()


async def test_a_policy_that_does_not_heed_it_sees_it() -> None:
    seen: list[float] = []

    def answer(at: float, signals: Signals) -> Decision:
        seen.append(signals.throttled_until)
        return Decision(3)

    scheduler = scheduler_of(Law(answer))
    crowd(scheduler)
    await settle()
    await throttle(scheduler, 5)

    assert (seen[0], seen[-1]) == (-math.inf, 5.0)
    assert scheduler.snapshot().batch_limit == 3


@pytest.mark.parametrize("change", [{"window": 3.0}, {"policy": PressurePolicy(rps_threshold=1e5)}])
async def test_changed_settings_do_not_end_it(change: dict[str, Any]) -> None:
    scheduler = plain()
    await throttle(scheduler, 5)

    scheduler.configure(**change)

    assert scheduler.snapshot().reason == "throttled"
