"""What counts as an arrival and as a sample, seen through the front door: promises 28 to 31 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    Decision,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficScheduler,
)
from tests.support import Law, hold, make_scheduler, noop, now, settle

WINDOW = 10.0
SLICE = WINDOW / 100


async def call(scheduler: TrafficScheduler, seconds: float, **options: Any) -> None:
    """One interactive call that takes so long."""
    await scheduler.submit("interactive", asyncio.sleep, seconds, **options)


async def fail_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise ConnectionError("the backend is gone")


def arrivals(scheduler: TrafficScheduler) -> int:
    return round(scheduler.snapshot().interactive.rps * WINDOW)


def samples(scheduler: TrafficScheduler) -> int:
    return scheduler.snapshot().interactive.sample_count


# Arrivals: promise 28


async def test_an_arrival_counts_at_submit() -> None:
    scheduler = make_scheduler()
    hold(scheduler), hold(scheduler)
    await settle()
    for _ in range(3):
        hold(scheduler)  # waits
    await settle()

    assert arrivals(scheduler) == 5
    assert scheduler.snapshot().interactive.rps == pytest.approx(0.5)
    assert samples(scheduler) == 0


async def test_a_refused_call_is_an_arrival_and_a_refused_argument_or_a_closed_scheduler_is_not() -> None:
    scheduler = make_scheduler(max_queued_interactive=1)
    hold(scheduler), hold(scheduler), hold(scheduler)
    await settle()
    with pytest.raises(QueueFull):
        await call(scheduler, 0)
    assert arrivals(scheduler) == 4
    scheduler.configure(max_queued_interactive=None)
    with pytest.raises(QueueTimeout):
        await call(scheduler, 0, queue_timeout=0)
    assert arrivals(scheduler) == 5

    with pytest.raises(ConfigError):
        await call(scheduler, 0, run_timeout=-1)
    with pytest.raises(SchedulerMisuse):
        await scheduler.submit("interactive", noop())  # type: ignore[arg-type]
    assert arrivals(scheduler) == 5

    closing = asyncio.create_task(scheduler.close())
    await settle()
    with pytest.raises(SchedulerClosed):
        await call(scheduler, 0)
    assert arrivals(scheduler) == 5
    closing.cancel()


async def test_batch_calls_and_unobserved_ones_are_neither_arrivals_nor_samples() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=0.5)
    await scheduler.submit("batch", asyncio.sleep, 1)
    await call(scheduler, 1, observe=False)
    async with scheduler.slot("interactive", observe=False):
        await asyncio.sleep(1)  # longer than the threshold: it would join while it runs
        assert samples(scheduler) == 0

    assert arrivals(scheduler) == samples(scheduler) == 0
    assert scheduler.snapshot().pressure == 0


async def test_a_sample_is_end_to_end_from_submit_to_completion() -> None:
    scheduler = make_scheduler()
    first, _ = hold(scheduler), hold(scheduler)
    await settle()
    waiting = asyncio.create_task(call(scheduler, 2.0))
    await asyncio.sleep(3.0)
    first.release()
    await waiting

    traffic = scheduler.snapshot().interactive
    assert traffic.sample_count == 2
    assert traffic.p95 == pytest.approx(5.0, rel=0.01)  # three in the queue, two in the slot
    assert traffic.p50 == pytest.approx(3.0, rel=0.01)


async def test_a_slot_block_is_a_call_like_any_other() -> None:
    scheduler = make_scheduler()
    async with scheduler.slot("interactive"):
        await asyncio.sleep(2)

    assert (arrivals(scheduler), samples(scheduler)) == (1, 1)
    assert scheduler.snapshot().interactive.p50 == pytest.approx(2, rel=0.01)


# Unfinished calls: promise 29


async def test_an_unfinished_call_joins_at_its_age_once_it_is_older_than_the_threshold() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=2.0)
    hold(scheduler)
    await asyncio.sleep(2.0)
    assert samples(scheduler) == 0

    await asyncio.sleep(1.0)
    snapshot = scheduler.snapshot()
    assert snapshot.interactive.sample_count == 1
    assert snapshot.interactive.p95 == pytest.approx(3.0, rel=0.01)
    assert snapshot.pressure == pytest.approx(1.5, rel=0.01)
    assert snapshot.reason == "latency"


async def test_a_call_that_waits_joins_like_one_that_runs() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=2.0)
    scheduler.pause("interactive")
    hold(scheduler)
    await asyncio.sleep(4.0)

    assert scheduler.snapshot().pressure == pytest.approx(2.0, rel=0.01)


async def test_a_joined_call_leaves_the_quantile_when_it_ends_and_its_sample_takes_its_place() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=2.0)
    slow = hold(scheduler)
    await asyncio.sleep(5.0)
    slow.release()
    await settle()
    assert samples(scheduler) == 1
    await asyncio.sleep(1.0)

    assert scheduler.snapshot().interactive.p95 == pytest.approx(5.0, rel=0.01)  # and no longer grows


async def test_one_long_call_among_many_moves_neither_p95_nor_pressure() -> None:
    scheduler = make_scheduler(max_concurrency=4, interactive_p95_threshold=1.0)
    hold(scheduler)
    for _ in range(60):
        await call(scheduler, 0.1)

    snapshot = scheduler.snapshot()
    assert snapshot.oldest_interactive_running == pytest.approx(6.0)
    assert snapshot.interactive.p95 == pytest.approx(0.1, rel=0.01)
    assert snapshot.pressure == pytest.approx(0.1, rel=0.01)
    assert snapshot.interactive.p99 == pytest.approx(6.0, rel=0.01)


async def test_under_a_law_without_a_threshold_only_finished_calls_count() -> None:
    scheduler = make_scheduler(policy=Law(lambda now, signals: Decision(1)))
    hold(scheduler)
    await asyncio.sleep(100)
    assert samples(scheduler) == 0

    scheduler.configure(policy=Law(lambda now, signals: Decision(1), p95_threshold=2.0))
    assert samples(scheduler) == 1
    scheduler.configure(policy=Law(lambda now, signals: Decision(1), p95_threshold=None))
    assert samples(scheduler) == 0


@pytest.mark.parametrize("gap", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("threshold", [0.5, 2.0])
async def test_at_a_steady_rate_a_hung_backend_is_full_pressure_within_threshold_and_a_twentieth_and_one_gap(
    gap: float, threshold: float
) -> None:
    scheduler = make_scheduler(max_concurrency=1000, interactive_p95_threshold=threshold)
    hung = asyncio.Event()

    async def backend() -> None:
        if hung.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(gap / 2)

    async def traffic() -> None:
        while True:
            clients.append(asyncio.create_task(scheduler.submit("interactive", backend)))
            await asyncio.sleep(gap)

    clients: list[asyncio.Task[None]] = []
    source = asyncio.create_task(traffic())
    await asyncio.sleep(3 * WINDOW)
    assert scheduler.snapshot().pressure <= gap / 2 / threshold * 1.01
    hung.set()

    await asyncio.sleep(threshold + WINDOW / 20 + gap)
    snapshot = scheduler.snapshot()
    source.cancel()
    for client in clients:
        client.cancel()

    assert snapshot.pressure >= 0.99  # quantiles are within one per cent
    assert snapshot.batch_limit == snapshot.batch_min_concurrency


async def test_at_any_rate_a_hung_backend_is_full_pressure_within_threshold_and_window() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=2.0)
    for _ in range(200):
        await call(scheduler, 0.01)
    hold(scheduler)  # the last one that arrives, and it hangs

    await asyncio.sleep(2.0 + WINDOW)

    assert scheduler.snapshot().pressure >= 1
    assert scheduler.snapshot().batch_limit == 1


# Failures: promise 30


@pytest.mark.parametrize("ending", ["failure", "cancel", "run timeout", "queue timeout"])
async def test_an_unsuccessful_end_counts_as_a_lower_bound_from_the_present_p95_up(ending: str) -> None:
    async def end_after(seconds: float) -> None:
        scheduler.resume("interactive")
        if ending == "failure":
            with contextlib.suppress(ConnectionError):
                await scheduler.submit("interactive", fail_after, seconds)
        elif ending == "run timeout":
            with contextlib.suppress(RunTimeout):
                await call(scheduler, 1000, run_timeout=seconds)
        elif ending == "cancel":
            held = hold(scheduler)
            await asyncio.sleep(seconds)
            held.cancel()
            await settle()
        else:
            scheduler.pause("interactive")
            with contextlib.suppress(QueueTimeout):
                await call(scheduler, 1000, queue_timeout=seconds)

    scheduler = make_scheduler()
    await call(scheduler, 1.0)

    await end_after(0.5)
    assert samples(scheduler) == 1
    assert scheduler.snapshot().interactive.p50 == pytest.approx(1.0, rel=0.01)

    await end_after(2.0)
    assert samples(scheduler) == 2
    assert scheduler.snapshot().interactive.p95 == pytest.approx(2.0, rel=0.01)
    assert arrivals(scheduler) == 3


async def test_a_waiting_call_that_is_cancelled_is_a_lower_bound_too() -> None:
    scheduler = make_scheduler()
    hold(scheduler), hold(scheduler)
    await settle()
    waiting = hold(scheduler)
    await asyncio.sleep(3)
    waiting.cancel()
    await settle()

    assert scheduler.snapshot().interactive.p95 == pytest.approx(3, rel=0.01)


async def test_failures_without_a_success_keep_the_latency_pressure_at_its_last_value() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=2.0)
    for _ in range(5):
        await call(scheduler, 1.5)
    assert scheduler.snapshot().pressure == pytest.approx(0.75, rel=0.01)

    for _ in range(40):  # for two windows everything fails in a millisecond
        with contextlib.suppress(ConnectionError):
            await scheduler.submit("interactive", fail_after, 0.001)
        await asyncio.sleep(0.5)
        assert scheduler.snapshot().pressure == pytest.approx(0.75, rel=0.01)

    await call(scheduler, 0.5)  # a success says how things are
    assert scheduler.snapshot().pressure == pytest.approx(0.25, rel=0.01)


async def test_the_kept_pressure_ends_with_the_failures() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=2.0)
    await call(scheduler, 1.5)
    await asyncio.sleep(5)
    with contextlib.suppress(ConnectionError):
        await scheduler.submit("interactive", fail_after, 0.001)
    await asyncio.sleep(9.5)
    assert scheduler.snapshot().pressure == pytest.approx(0.75, rel=0.01)

    await asyncio.sleep(1)

    assert scheduler.snapshot().pressure == 0
    assert scheduler.snapshot().reason == "calm"


# The window: promise 31


@pytest.mark.parametrize("origin", [0.0, 1234.567, 1e9])
async def test_a_sample_leaves_at_most_one_slice_early_and_never_late(origin: float) -> None:
    await asyncio.sleep(origin)
    scheduler = make_scheduler()
    for _ in range(30):
        await call(scheduler, 0.237)
        ended = now()
        await asyncio.sleep(WINDOW - SLICE - 1e-6)
        assert (arrivals(scheduler), samples(scheduler)) == (0, 1)  # it arrived more than a slice earlier
        await asyncio.sleep(ended + WINDOW + 1e-6 - now())
        assert samples(scheduler) == 0


async def test_quantiles_are_nearest_rank_within_one_per_cent() -> None:
    rng = random.Random(5)
    scheduler = make_scheduler(max_concurrency=1000, window=1000.0)
    seconds = [rng.lognormvariate(-1, 1.5) for _ in range(700)]
    await asyncio.gather(*(call(scheduler, each) for each in seconds))

    traffic = scheduler.snapshot().interactive
    ranked = sorted(seconds)
    for percent, value in [(50, traffic.p50), (95, traffic.p95), (99, traffic.p99)]:
        assert value == pytest.approx(ranked[math.ceil(percent / 100 * len(ranked)) - 1], rel=0.01)
    assert traffic.sample_count == 700
    assert traffic.rps == pytest.approx(0.7)


async def test_an_idle_window_says_zero() -> None:
    traffic = make_scheduler().snapshot().interactive

    assert (traffic.rps, traffic.p50, traffic.p95, traffic.p99, traffic.sample_count) == (0.0, 0.0, 0.0, 0.0, 0)


async def test_an_arrival_counts_against_the_next_batch_call_at_once() -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, interactive_rps_threshold=0.1)
    batch = [hold(scheduler, "batch") for _ in range(2)]
    await settle()

    chat = hold(scheduler, "interactive")
    await settle()
    batch.append(hold(scheduler, "batch"))
    await settle()

    assert [each.started for each in batch] == [True, True, False]
    for each in (chat, *batch):
        each.release()


async def test_an_arrival_at_the_very_end_of_a_slice_belongs_to_the_next() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=1, window=10.0)
    await scheduler.submit("interactive", noop)
    end = scheduler._home.governor.slice_end
    reached = asyncio.Event()
    asyncio.get_running_loop().call_at(end, reached.set)
    await reached.wait()
    assert now() == end

    chat = hold(scheduler)
    await settle()

    assert chat.started
    assert scheduler._home.governor.slice_end > end
    chat.release()
