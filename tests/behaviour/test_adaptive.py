"""The adaptive law in a scheduler: who starts when, and by which timer."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
)
from llm_traffic_scheduler.simulation import BatchingServer
from tests.behaviour.adaptive import (
    BATCH_MAX,
    BATCH_MIN,
    STEP,
    TARGET,
    adaptive,
    backlog,
    learn,
    limit,
    running,
    started,
)
from tests.support import armed_timers, hold, make_scheduler, noop, now, settle


async def test_when_interactive_traffic_ends_waiting_batch_opens_up_by_the_clock_alone() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.6)
    before = limit(scheduler)
    batch = [hold(scheduler, "batch") for _ in range(2 * BATCH_MAX)]
    await asyncio.sleep(50.0)
    assert started(batch) < BATCH_MAX - 5

    await asyncio.sleep(65.0)

    assert started(batch) == BATCH_MAX > before
    scheduler.check()


async def test_without_any_interactive_traffic_batch_has_all_it_may_a_minute_after_a_cold_start() -> None:
    scheduler = make_scheduler(max_concurrency=80, batch_max_concurrency=64, policy=AdaptivePolicy(p95_target=TARGET))
    batch = [hold(scheduler, "batch") for _ in range(100)]
    await asyncio.sleep(0.5)
    first = started(batch)
    await asyncio.sleep(24.5)
    then = started(batch)
    await asyncio.sleep(35.0)

    assert first == 3
    assert 20 < then < 50
    assert started(batch) == 64
    scheduler.check()


async def test_no_loop_pass_starts_more_than_an_eighth_of_the_range() -> None:
    scheduler = adaptive()
    most, instant, at = 0, 0, -1.0

    async def work() -> None:
        nonlocal most, instant, at
        instant, at = (instant + 1 if now() == at else 1), now()
        most = max(most, instant)
        await asyncio.sleep(10_000)

    await learn(scheduler, 0.2)
    await asyncio.sleep(1.0)
    batch = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(100)]
    await asyncio.sleep(0.5)
    crowd = [hold(scheduler) for _ in range(3 * 8)]
    await asyncio.sleep(0.5)
    for call in crowd:
        call.release()
    await asyncio.sleep(10.0)

    assert running(scheduler) == BATCH_MAX
    # The floor is nobody's to hold back.
    assert most <= BATCH_MIN + STEP
    for task in batch:
        task.cancel()


async def test_what_ended_within_a_slice_does_not_start_again_all_at_once() -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.2)
    batch = [hold(scheduler, "batch") for _ in range(8)]
    await asyncio.sleep(10.0)
    async with backlog(scheduler, 1000.0):
        await asyncio.sleep(10.0)
        assert running(scheduler) == BATCH_MAX
        # All within one slice of the window: a crowd comes, batch calls end and are not replaced, the crowd leaves.
        crowd = [hold(scheduler) for _ in range(2 * BATCH_MAX)]
        await settle()
        for call in batch:
            call.release()
        await settle()
        assert running(scheduler) == BATCH_MAX - 8
        for call in crowd:
            call.release()
        await settle()

        assert running(scheduler) == BATCH_MAX - 8 + STEP


async def test_the_limit_follows_each_arrival_at_once() -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.6)
    async with backlog(scheduler, 1000.0):
        await asyncio.sleep(10.0)
        limits = [limit(scheduler)]
        calls = []
        for _ in range(3):
            calls.append(hold(scheduler))
            await settle()
            limits.append(limit(scheduler))
        for call in calls:
            call.release()
            await settle()
            limits.append(limit(scheduler))

    assert limits[:4] == sorted(set(limits[:4]), reverse=True)
    assert limits[3:] == sorted(set(limits[3:]))


@pytest.mark.parametrize("policy", [AdaptivePolicy(), AdaptivePolicy(p95_target=TARGET)], ids=["without", "with"])
async def test_an_idle_scheduler_has_no_timer(policy: AdaptivePolicy) -> None:
    scheduler = adaptive(policy)
    await learn(scheduler, 0.5)
    await settle()

    assert armed_timers() == []
    await asyncio.sleep(3600.0)
    await scheduler.submit("interactive", noop)
    assert armed_timers() == []


async def test_without_a_target_each_interactive_call_finds_the_reserve_free() -> None:
    scheduler = adaptive(AdaptivePolicy())
    async with backlog(scheduler, 1.0):
        await settle()
        assert running(scheduler) == BATCH_MAX
        calls = [hold(scheduler) for _ in range(8)]
        await settle()
        assert started(calls) == 8
        assert limit(scheduler) == BATCH_MAX - 8
        await asyncio.sleep(1.1)
        assert running(scheduler) == BATCH_MAX - 8

        more = [hold(scheduler) for _ in range(8)]
        await settle()
        assert started(more) == 8
        for call in [*calls, *more]:
            call.release()


async def test_a_heavy_call_that_becomes_late_lets_waiting_batch_start_by_the_clock_alone() -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.5)
    call = hold(scheduler)
    await asyncio.sleep(1.0)  # older than any other has ever been
    batch = [hold(scheduler, "batch") for _ in range(2 * BATCH_MAX)]
    await asyncio.sleep(0.9)
    before = started(batch)
    assert before < BATCH_MAX

    await asyncio.sleep(0.4)

    assert started(batch) > before
    scheduler.check()
    call.release()


async def test_on_a_server_that_slows_down_with_its_load_the_target_is_kept_and_batch_runs() -> None:
    scheduler = make_scheduler(max_concurrency=96, batch_max_concurrency=80, policy=AdaptivePolicy(p95_target=TARGET))
    server, latencies, done = BatchingServer(), [], 0

    async def batch() -> None:
        nonlocal done
        while True:
            await scheduler.submit("batch", server.serve, 500, 200)
            done += 1

    async def chat() -> None:
        began = now()
        await scheduler.submit("interactive", server.serve, 500, 80)
        latencies.append(now() - began)

    workers = [asyncio.create_task(batch()) for _ in range(100)]
    chats = []
    for _ in range(1500):
        chats.append(asyncio.create_task(chat()))
        await asyncio.sleep(0.4)
    await asyncio.gather(*chats)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)

    missed = sum(latency > TARGET for latency in latencies[500:]) / len(latencies[500:])
    assert missed < 0.1
    assert done > 500
