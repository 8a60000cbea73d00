"""Section A, continued: calls that leave the queue, and calls that may not join it."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import CloseReport, QueueFull, QueueTimeout, SchedulerClosed
from tests.behaviour.callers import Caller
from tests.behaviour.doors import Door, each_door, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS, each_order, noting
from tests.scenarios.stage import Stage, scenario
from tests.support import hold, noop, now, settle


@scenario
@each_door
@pytest.mark.parametrize("kind", KINDS)
async def test_b09_waiters_that_time_out_cost_no_slot(stage: Stage, run: Door, kind: str) -> None:
    """Each acquire that gave up destroyed a permit; after as many timeouts as permits everything was refused."""
    scheduler = stage.scheduler(max_concurrency=8)
    holders = [hold(scheduler) for _ in range(8)]
    await settle()
    tasks = [start(run(scheduler, kind, noop, queue_timeout=stage.seconds(0.010))) for _ in range(8)]
    assert [await outcome(task) for task in tasks] == [QueueTimeout] * 8

    for held in holders:
        held.release()
    crowd = [hold(scheduler) for _ in range(8)]
    await settle()

    assert all(held.started for held in crowd)
    for held in crowd:
        held.release()


@scenario
@each_door
@pytest.mark.parametrize("release_first", [True, False])
async def test_b09_a_timeout_and_a_release_at_one_instant_run_the_call_or_refuse_it(
    stage: Stage, run: Door, release_first: bool
) -> None:
    """As before: neither both nor none may happen."""
    scheduler, log = stage.scheduler(max_concurrency=8), list[str]()
    holders = [hold(scheduler) for _ in range(8)]
    await settle()
    due = now() + stage.seconds(1)

    def release_later() -> None:
        for held in holders:
            asyncio.get_running_loop().call_at(due, held.release)

    if release_first:
        release_later()
    tasks = [start(run(scheduler, "interactive", noting(log, str(n)), queue_timeout=due - now())) for n in range(8)]
    await settle()
    if not release_first:
        release_later()
    endings = [await outcome(task) for task in tasks]

    assert [str(n) for n in range(8) if endings[n] is None] == log
    assert set(endings) <= {None, QueueTimeout}
    if stage.virtual:
        assert set(endings) == {QueueTimeout}  # promise 13: at the deadline it is too late


@scenario
@each_door
@each_order
async def test_b10_the_running_and_the_queued_call_cancelled_in_one_step_are_both_gone(
    stage: Stage, run: Door, cancel_first: bool
) -> None:
    """The queued task was started by the end of the first although it had been aborted, and never settled."""
    scheduler, log = await stage.one_slot(), list[str]()
    running = start(run(scheduler, "interactive", asyncio.Event().wait))
    await settle()
    queued = start(run(scheduler, "interactive", noting(log, "queued")))
    await settle()

    for task in (queued, running) if cancel_first else (running, queued):
        task.cancel()
    await stage.canaries(scheduler)
    stage.unload()
    await scheduler.drain()

    assert running.cancelled()
    assert queued.cancelled()
    assert log == []
    assert await scheduler.close() == CloseReport()
    assert await outcome(run(scheduler, "batch", noop)) is SchedulerClosed


async def _full(stage: Stage, **settings: int) -> Counted:
    scheduler = await stage.one_slot(**settings)
    await stage.fill(scheduler, 1)
    return scheduler


def cancel_myself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@scenario
@each_door
@pytest.mark.parametrize("kind", KINDS)
async def test_b11_a_caller_with_a_cancel_pending_does_not_wait(stage: Stage, run: Door, kind: str) -> None:
    """Only a later abort was listened to: a promise with an aborted signal never settled."""
    scheduler, log = await _full(stage), list[str]()

    async def submits() -> None:
        cancel_myself()
        await run(scheduler, kind, noting(log, "called"))

    caller = Caller(submits())
    await settle(3)

    assert caller.task.done()
    assert await caller.ended() == (asyncio.CancelledError, 1)
    assert log == []


@scenario
@each_door
async def test_b11_a_cancel_that_is_pending_on_the_fast_path_lands_at_the_first_await(stage: Stage, run: Door) -> None:
    """As before with a free slot; as for a plain await, we add no suspension point."""
    scheduler, log = stage.scheduler(), list[str]()

    async def job() -> None:
        log.append("called")
        await asyncio.sleep(0)
        log.append("went on")

    async def submits() -> None:
        cancel_myself()
        await run(scheduler, "interactive", job)

    caller = Caller(submits())

    assert await caller.ended() == (asyncio.CancelledError, 1)
    assert log == ["called"]


@scenario
@each_door
@pytest.mark.parametrize("patience", [0, -1, -1e9])
async def test_b11_no_patience_at_all_means_now_or_not_at_all(stage: Stage, run: Door, patience: float) -> None:
    """As before with a timeout that is over before it begins."""
    full, free, log = await _full(stage), stage.scheduler(), list[str]()

    refused = start(run(full, "interactive", noting(log, "called"), queue_timeout=patience))
    await settle(2)
    assert refused.done()
    assert await outcome(refused) is QueueTimeout
    assert log == []

    assert await outcome(run(free, "interactive", noting(log, "called"), queue_timeout=patience)) is None
    assert log == ["called"]


@scenario
@each_door
async def test_b11_a_deadline_in_the_past_or_a_full_queue_settles_at_once(stage: Stage, run: Door) -> None:
    """As before with a deadline of the caller's, and with no room to wait in."""
    scheduler, log = await _full(stage, max_queued_interactive=1), list[str]()

    async def late() -> None:
        async with asyncio.timeout_at(now() - 1):
            await run(scheduler, "interactive", noting(log, "called"))

    task = start(late())
    await settle(4)
    assert task.done()
    assert await outcome(task) is TimeoutError

    waiting = hold(scheduler)
    await settle()
    assert await outcome(start(run(scheduler, "interactive", noting(log, "called")))) is QueueFull
    assert log == []
    stage.unload()
    waiting.release()
    await waiting.task
