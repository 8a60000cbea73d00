"""Preemption beside cancels of the caller's own: those win, and are kept apart from ours. Promises 16 and 20."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.doors import outcome, start
from tests.behaviour.preempted import Work, person, preempted, run, stage
from tests.support import account, hold, now, settle


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_cancel_of_the_callers_in_the_same_pass_wins(first: str) -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    waiting = hold(scheduler)
    await asyncio.sleep(0)
    assert task.cancelling() == 0
    if first == "ours":
        asyncio.get_running_loop().call_soon(task.cancel)  # behind the decision
    else:
        task.cancel()
    await settle()

    assert task.cancelled()
    assert (work.runs, preempted(scheduler), account(scheduler, "batch").cancelled) == (1, 0, 1)
    assert waiting.started


async def test_who_cleans_up_after_a_cancel_of_the_callers_is_not_disturbed() -> None:
    scheduler, _ = await stage()
    cleaned: list[float] = []

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            await asyncio.sleep(1.0)
            cleaned.append(now())

    work = Work(wait)
    task = await run(scheduler, work)
    task.cancel()
    await settle()
    waiting = await person(scheduler)
    assert not waiting.started
    await asyncio.sleep(1.0)
    await settle()

    assert (task.cancelled(), cleaned, waiting.started) == (True, [1.0], True)
    assert preempted(scheduler) == 0


async def test_a_cancel_while_it_waits_again_ends_it() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert scheduler.snapshot().batch_queued == 1
    task.cancel()
    await settle()

    assert task.cancelled()
    assert task.cancelling() == 1
    totals = account(scheduler, "batch")
    assert (totals.started, totals.cancelled, totals.preempted) == (2, 1, 1)
    assert scheduler.snapshot().batch_queued == 0
    first.release()
    await settle()
    assert work.runs == 1


async def test_a_cancel_that_meets_its_new_slot_ends_it_and_the_slot_goes_on() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    first, second = await person(scheduler), hold(scheduler, "batch")
    await settle()
    first.release()
    await asyncio.sleep(0)
    assert scheduler.snapshot().batch_running == 2
    assert work.runs == 1
    task.cancel()
    await settle()

    assert task.cancelled()
    assert second.started
    assert work.runs == 1


async def test_a_timeout_around_the_call_ends_it_wherever_it_is() -> None:
    scheduler, _ = await stage()

    async def caller() -> None:
        async with asyncio.timeout(2.0):
            await scheduler.submit("batch", work, preemptible=True)

    work = Work()
    task = start(caller())
    await settle()
    await person(scheduler)
    assert scheduler.snapshot().batch_queued == 1
    await asyncio.sleep(2.0)

    assert await outcome(task) is TimeoutError
    assert (now(), task.cancelling(), work.runs) == (2.0, 0, 1)


async def test_a_timeout_inside_the_function_does_not_take_our_cancel_for_its_own() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        async with asyncio.timeout(5.0):
            await work.gate.wait()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    first.release()
    await settle()
    work.gate.set()

    assert (await task, work.runs, task.cancelling()) == ("done", 2, 0)


async def test_a_task_group_inside_the_function_is_stopped_with_it() -> None:
    scheduler, _ = await stage()
    ended: list[float] = []

    async def child() -> None:
        try:
            await work.gate.wait()
        finally:
            ended.append(now())

    async def wait() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                _ = group.create_task(child())

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert (first.started, ended) == (True, [0.0, 0.0])
    first.release()
    await settle()
    work.gate.set()

    assert (await task, work.runs, task.cancelling()) == ("done", 2, 0)


async def test_a_function_that_takes_our_cancel_back_itself_keeps_its_result() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        except asyncio.CancelledError:
            task.uncancel()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)

    assert first.started
    assert (await task, work.runs, task.cancelling(), preempted(scheduler)) == ("done", 1, 0, 0)


async def test_cancels_that_the_caller_was_owed_before_stay_owed() -> None:
    scheduler, _ = await stage()
    work = Work()

    async def caller() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        result = await scheduler.submit("batch", work, preemptible=True)
        assert task.cancelling() == 1
        return result

    task = start(caller())
    await settle()
    first = await person(scheduler)
    assert preempted(scheduler) == 1
    first.release()
    await settle()
    work.gate.set()
    assert (await task, work.runs) == ("done", 2)
