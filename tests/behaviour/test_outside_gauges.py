"""A gauge outside of the process steers the batch limit; dead, broken or late, it never does so silently.

Keeps what CONTROL.md says of `ExternalPolicy`, and promises 6 and 32 of SEMANTICS.md for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    ExternalPolicy,
    FixedPolicy,
    Gauge,
    LimitChanged,
    LimitPolicy,
    PressurePolicy,
    TrafficScheduler,
)
from tests.behaviour.threads import in_thread, until
from tests.support import Held, Recorder, armed_timers, hold, make_scheduler, noop, now, settle

MAX_AGE = 15.0
REFRESH = 1.0


class Dial:
    """A source that shows what the test sets; an exception is raised. Counts how often it was asked."""

    def __init__(self, shows: Any = None) -> None:
        self.shows = shows
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        if isinstance(self.shows, BaseException):
            raise self.shows
        return self.shows


def gauged(source: Any, **options: Any) -> TrafficScheduler:
    """Batch between 2 and 10, by the gauge alone."""
    policy = ExternalPolicy(source, **{"max_age": MAX_AGE, "refresh": REFRESH, **options})
    return make_scheduler(max_concurrency=12, batch_max_concurrency=10, batch_min_concurrency=2, policy=policy)


def started(calls: list[Held]) -> int:
    return sum(held.started for held in calls)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# The limit follows


async def test_the_limit_is_what_the_gauge_leaves() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    gauge.report(0.5)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await settle()

    snapshot = scheduler.snapshot()
    assert started(batch) == snapshot.batch_limit == 6
    assert (snapshot.pressure, snapshot.reason) == (0.5, "external")
    assert "the outside gauge shows a pressure of 0.50" in scheduler.explain()


async def test_waiting_work_starts_within_refresh_of_a_better_reading_although_nothing_else_happens() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    gauge.report(1.0)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await asyncio.sleep(5.5)
    assert started(batch) == 2

    gauge.report(0.0)
    await asyncio.sleep(REFRESH + 0.001)

    assert started(batch) == 10


async def test_a_worse_reading_lets_running_calls_go_on_and_starts_no_more() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    gauge.report(0.0)
    batch = [hold(scheduler, "batch") for _ in range(10)]
    await settle()

    gauge.report(1.0)
    await asyncio.sleep(REFRESH + 0.001)
    late = hold(scheduler, "batch")
    for held in batch[:8]:
        held.release()
    await settle()
    assert not late.started

    batch[8].release()
    await settle()
    assert late.started


async def test_only_while_batch_work_waits_is_the_gauge_looked_at_and_then_once_per_refresh() -> None:
    dial = Dial(1.0)
    scheduler = gauged(dial)
    await asyncio.sleep(60)
    assert (dial.asked, armed_timers()) == (0, [])

    batch = [hold(scheduler, "batch") for _ in range(3)]
    await settle()
    before = dial.asked
    await asyncio.sleep(60)
    assert 58 <= dial.asked - before <= 122  # at most twice a look: for the end of the last slice, and for now

    for held in batch:
        held.release()
        await settle()
    before = dial.asked
    await asyncio.sleep(60)
    assert (dial.asked, armed_timers()) == (before, [])


@pytest.mark.parametrize("refresh", [1e-9, 0.05])
async def test_a_refresh_shorter_than_a_slice_does_not_spin(refresh: float) -> None:
    dial = Dial(1.0)
    scheduler = gauged(dial, refresh=refresh)
    for _ in range(3):
        hold(scheduler, "batch")
    await asyncio.sleep(10)

    assert 90 <= dial.asked <= 110  # once per slice


# The gauge dies, and comes back


async def test_a_dead_gauge_holds_the_limit_for_max_age_and_then_the_minimum_holds_and_says_so() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    recorder = Recorder(scheduler)
    gauge.report(0.5)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await asyncio.sleep(MAX_AGE - 0.01)
    assert scheduler.snapshot().batch_limit == 6

    await asyncio.sleep(0.02)  # nobody calls

    snapshot = scheduler.snapshot()
    assert (snapshot.batch_limit, snapshot.pressure, snapshot.reason) == (2, 1.0, "external_stale")
    assert "the outside gauge has shown nothing usable of late" in scheduler.explain()
    (fell,) = recorder.of(LimitChanged)
    assert (fell.before, fell.after, fell.reason) == (6, 2, "external_stale")
    assert fell.at == pytest.approx(MAX_AGE, abs=0.001)
    assert started(batch) == 6
    assert snapshot.policy_faults == 0


async def test_a_gauge_that_comes_back_is_followed_within_refresh_although_nobody_calls() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await asyncio.sleep(3600)
    assert (started(batch), scheduler.snapshot().reason) == (2, "external_stale")

    gauge.report(0.25)
    await asyncio.sleep(REFRESH + 0.001)

    assert (started(batch), scheduler.snapshot().reason) == (8, "external")


@pytest.mark.parametrize(
    "fallback, limit",
    [(FixedPolicy(4), 4), (PressurePolicy(rps_threshold=10.0), 10), (AdaptivePolicy(), 10)],
    ids=lambda value: type(value).__name__,
)
async def test_while_the_gauge_is_dead_the_fallback_decides(fallback: LimitPolicy, limit: int) -> None:
    gauge = Gauge()
    scheduler = gauged(gauge, fallback=fallback)
    gauge.report(1.0)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await asyncio.sleep(MAX_AGE - 1)
    assert started(batch) == 2

    await asyncio.sleep(2)

    assert (started(batch), scheduler.snapshot().reason) == (limit, "external_stale")


async def test_the_gauge_and_a_law_on_our_own_traffic_hold_both() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge, also=PressurePolicy(rps_threshold=1.0))
    gauge.report(0.5)
    assert scheduler.snapshot().batch_limit == 6

    for _ in range(20):
        await scheduler.submit("interactive", noop)
    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (2, "arrivals")

    await asyncio.sleep(12)
    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (6, "external")


async def test_a_learning_law_inside_hears_of_single_calls() -> None:
    inside, alone = AdaptivePolicy(p95_target=1.0), AdaptivePolicy(p95_target=1.0)
    gauge = Gauge()
    schedulers = [gauged(gauge, also=inside), make_scheduler(max_concurrency=12, policy=alone)]
    schedulers[1].configure(batch_max_concurrency=10, batch_min_concurrency=2)
    gauge.report(0.0)
    for _ in range(40):
        for scheduler in schedulers:
            await scheduler.submit("interactive", asyncio.sleep, 0.2)
        gauge.report(0.0)
    await asyncio.sleep(1)  # no step of a limit that reopens is on its way

    seen, expected = (scheduler.snapshot() for scheduler in schedulers)
    assert seen.batch_limit == expected.batch_limit > 2


# How old a reading is


async def test_before_the_first_call_a_picture_shows_the_gauge() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    await scheduler.drain()
    gauge.report(0.5)

    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (6, "external")


async def test_after_a_quiet_hour_a_reading_of_just_now_counts() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    await scheduler.submit("interactive", noop)
    await asyncio.sleep(3600)
    gauge.report(0.5)
    await asyncio.sleep(1)

    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (6, "external")
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await settle()
    assert started(batch) == 6


async def test_after_a_quiet_hour_a_reading_of_an_hour_ago_is_stale_at_first_sight() -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    await scheduler.drain()
    gauge.report(0.0)  # and died; nothing has looked at it since
    await asyncio.sleep(3600)

    assert scheduler.snapshot().reason == "external_stale"
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await settle()
    assert started(batch) == 2


@pytest.mark.parametrize("quiet", [0.05, 5.0, 3600.0])
async def test_a_picture_taken_after_a_quiet_spell_shows_the_gauge_as_it_is_now(quiet: float) -> None:
    dial = Dial(1.0)
    scheduler = gauged(dial)
    await scheduler.submit("interactive", noop)
    await scheduler.submit("batch", noop)
    dial.shows = 0.0
    await asyncio.sleep(quiet)

    expected = 10 if quiet > 0.1 else 2  # in the same slice it has not been looked at again
    assert scheduler.snapshot().batch_limit == scheduler.snapshot().batch_limit == expected
    assert scheduler.snapshot().reason == "external"


async def test_a_reading_on_another_clock_is_stale_and_not_fresh_for_ever() -> None:
    gauge = Gauge(clock=time.time)  # seconds since 1970
    scheduler = gauged(gauge)
    gauge.report(0.0)
    hold(scheduler, "batch")
    await settle()

    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (2, "external_stale")


# Bad readings

BAD = [math.nan, math.inf, -math.inf, -1.0, "0.5", True, [], ConnectionError("redis is away")]


@pytest.mark.parametrize("bad", BAD, ids=repr)
async def test_bad_readings_are_counted_and_logged_once_and_the_limit_holds_until_the_last_good_one_is_too_old(
    bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dial = Dial(0.5)
    scheduler = gauged(dial)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await settle()
    asked, dial.shows = dial.asked, bad

    await asyncio.sleep(MAX_AGE - 0.01)
    asked = dial.asked - asked
    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (6, "external")
    assert 13 <= scheduler.snapshot().policy_faults == asked
    assert len(logged(caplog)) == 1

    await asyncio.sleep(1)
    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (2, "external_stale")
    assert "faults: " in scheduler.explain()

    dial.shows = 0.25
    await asyncio.sleep(REFRESH + 0.001)
    assert (started(batch), scheduler.snapshot().reason) == (8, "external")
    scheduler.check()


@pytest.mark.parametrize("bad", [math.nan, "busy", None])
async def test_one_bad_report_to_a_gauge_is_one_fault_and_the_next_one_counts(bad: Any) -> None:
    gauge = Gauge()
    scheduler = gauged(gauge)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    gauge.report(0.5)
    await asyncio.sleep(2)
    gauge.report(bad)
    await asyncio.sleep(5)
    assert (started(batch), scheduler.snapshot().policy_faults) == (6, 1)

    gauge.report(0.0)
    await asyncio.sleep(2)

    assert (started(batch), scheduler.snapshot().policy_faults) == (10, 1)


async def test_a_picture_of_a_broken_gauge_after_a_quiet_spell_is_stale_and_no_fault() -> None:
    dial = Dial(0.5)
    scheduler = gauged(dial)
    await scheduler.submit("batch", noop)
    dial.shows = ConnectionError()
    await asyncio.sleep(3600)

    assert scheduler.snapshot().reason == "external_stale"
    assert scheduler.snapshot().policy_faults == 0


# Threads


async def test_a_report_from_another_thread_while_the_loop_runs_is_followed() -> None:
    gauge = Gauge(clock=asyncio.get_running_loop().time)
    scheduler = gauged(gauge)
    batch = [hold(scheduler, "batch") for _ in range(12)]
    await asyncio.sleep(100)

    in_thread(lambda: gauge.report(0.5)).result()
    await asyncio.sleep(REFRESH + 0.001)

    assert started(batch) == 6


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
async def test_on_a_real_loop_a_thread_that_reports_all_the_time_moves_the_limit_and_breaks_nothing() -> None:
    gauge = Gauge()
    scheduler = make_scheduler(
        max_concurrency=12,
        batch_max_concurrency=10,
        batch_min_concurrency=2,
        window=0.1,
        policy=ExternalPolicy(gauge, refresh=0.001, max_age=60.0),
    )
    over = False

    def poll() -> int:
        reports = 0
        while not over:
            gauge.report([0.0, 0.5, 1.0, math.nan][reports % 4])
            scheduler.snapshot()
            reports += 1
        return reports

    poller = in_thread(poll)
    limits = set()

    async def work() -> None:
        limits.add(scheduler.snapshot().batch_limit)
        await asyncio.sleep(0.0005)

    try:
        await until(lambda: gauge() is not None)
        while limits < {2, 6, 10}:
            await asyncio.gather(*(scheduler.submit("batch", work) for _ in range(20)))
    finally:
        over = True

    assert poller.result() > 0
    assert limits == {2, 6, 10}
    assert scheduler.snapshot().reason == "external"
    assert scheduler.snapshot().batch_running == 0
    scheduler.check()


async def test_the_scheduler_and_the_gauge_count_time_alike() -> None:
    gauge = Gauge()
    await asyncio.sleep(123)
    gauge.report(0.5)

    reading = gauge()
    assert reading is not None
    assert reading.at == now() == pytest.approx(123)
