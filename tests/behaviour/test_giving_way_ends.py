"""Calls without their slot that are cancelled, drained or closed: they give none back. Promises 12, 19, 23 and 24."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CallFinished,
    FixedPolicy,
    SchedulerClosed,
    SchedulerMisuse,
    Slot,
    checkpoint,
    current_slot,
)
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.giving_way import Steps, gauges, people, three_slots
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, now, other_tasks, settle


@pytest.mark.parametrize("goes_on", [False, True])
async def test_cancelled_in_a_checkpoint_the_call_has_no_slot_and_gives_none_back(goes_on: bool) -> None:
    scheduler = three_slots()

    async def work() -> str:
        await asyncio.sleep(1)
        try:
            await checkpoint()
        except asyncio.CancelledError:
            assert current_slot() is None
            if not goes_on:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return "went on"

    tasks = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(2)]
    held = await people(scheduler, 3)
    await asyncio.sleep(1.5)
    assert account(scheduler, "batch").completed == 1
    left = next(task for task in tasks if not task.done())
    left.cancel()
    await settle()
    assert left.cancelled() != goes_on
    assert gauges(scheduler) == (3, 0, 0, 0)
    assert account(scheduler, "batch").cancelled == 1
    assert account(scheduler, "batch").started == 2
    for each in held:
        each.release()
    await asyncio.gather(*[each.task for each in held])
    await assert_whole(scheduler)


async def test_a_cancel_that_meets_the_way_back_leaves_the_slot_to_the_next() -> None:
    scheduler = three_slots()
    steps = [Steps(scheduler) for _ in range(2)]
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    waiting = hold(scheduler, "batch")
    await settle()
    held[1].release()
    await asyncio.sleep(0)
    for each in steps:
        each.task.cancel()
    await settle()
    assert waiting.started
    waiting.release()
    held[0].release()
    await asyncio.gather(*[each.task for each in steps], return_exceptions=True)
    await assert_whole(scheduler)


async def test_close_waits_for_who_gave_way_and_its_end_cancels_it() -> None:
    scheduler = three_slots()
    steps = [Steps(scheduler, steps=50) for _ in range(2)]
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    assert gauges(scheduler) == (2, 0, 1, 1)
    report = await scheduler.close(timeout=2)
    assert (report.rejected, report.cancelled, report.abandoned) == (0, 4, 0)
    for each in steps:
        with pytest.raises(CallAborted):
            await each.task
    assert all(each.task.done() for each in held)
    assert not armed_timers()
    assert not other_tasks()


async def test_drain_and_close_wait_for_who_is_released() -> None:
    scheduler = make_scheduler()

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            with pytest.raises(SchedulerMisuse, match="wait for itself"):
                await scheduler.drain()
            await asyncio.sleep(3)

    task = asyncio.create_task(scheduler.submit("batch", agent))
    await settle()
    await scheduler.drain()
    assert now() == 3.0
    await task

    task = asyncio.create_task(scheduler.submit("batch", agent))
    await settle()
    report = await scheduler.close(timeout=1)
    assert report.cancelled == 1
    with pytest.raises(CallAborted):
        await task


@pytest.mark.parametrize("where", ["checkpoint", "released"])
async def test_cancelled_without_a_slot_the_nested_call_has_none_either(where: str) -> None:
    """It goes on, and may submit: that takes the slot of whoever is around and has one."""
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)
    seen: list[object] = []

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        await settle(3)
        try:
            if where == "checkpoint":
                await checkpoint()
            else:
                async with slot.released():
                    await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(current_slot())
        await scheduler.submit("batch", noop)

    scheduler.configure(policy=FixedPolicy(2))
    others = [hold(scheduler, "batch")]
    task = asyncio.create_task(scheduler.submit("batch", lambda: scheduler.submit("batch", inner, run_timeout=50)))
    if where == "checkpoint":
        others += await people(scheduler, 2)
    await settle()
    assert task.cancel()
    await settle()
    assert seen == [None]
    for held in others:
        held.release()
    await asyncio.wait([task, *(held.task for held in others)])
    assert now() == 0.0
    assert not armed_timers()
    totals = account(scheduler, "batch")
    assert (totals.completed, totals.cancelled) == (2, 1)
    await assert_whole(scheduler)


async def test_cancelled_without_a_slot_its_code_is_inside_of_no_call_any_more() -> None:
    scheduler = make_scheduler()

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        try:
            async with slot.released():
                await asyncio.sleep(100)
        finally:
            closing = asyncio.create_task(scheduler.close())
            await settle()
            with pytest.raises(SchedulerClosed):
                await scheduler.submit("batch", noop)
            await closing

    task = asyncio.create_task(scheduler.submit("batch", scheduler.submit, "batch", inner))
    await settle()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert account(scheduler, "batch").cancelled == 1
    scheduler.check()


async def test_close_refuses_no_call_that_comes_back_from_a_lent_slot() -> None:
    """Refused, it would have gone on without a slot; its end cancels it like any that has started."""
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(2)
        assert current_slot() is slot

    async def parent() -> None:
        children = [start(scheduler.submit("batch", agent))]
        await asyncio.sleep(1)
        children.append(start(scheduler.submit("batch", asyncio.sleep, 100)))
        await asyncio.sleep(100)

    task = start(scheduler.submit("batch", parent))
    await settle()
    report = await scheduler.close(timeout=5, finish_queued=())
    assert now() == 5.0
    assert (report.rejected, report.cancelled, report.abandoned) == (0, 3, 0)
    other.release()
    await asyncio.wait([task])
    totals = account(scheduler, "batch")
    assert (totals.cancelled, totals.rejected) == (2, 0)
    assert not armed_timers()


async def test_drain_waits_for_a_call_that_gave_a_lent_slot_up() -> None:
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]
    ended: list[float] = []
    tasks: list[asyncio.Task[Any]] = []

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(3)
        ended.append(now())

    async def parent() -> None:
        tasks.append(start(scheduler.submit("batch", agent)))
        await settle()

    await scheduler.submit("batch", parent)
    other.release()
    await scheduler.drain()
    assert ended == [3.0]
    await assert_whole(scheduler)


@pytest.mark.parametrize("nested", [False, True])
async def test_a_call_that_never_waited_and_ends_without_its_slot_is_told_of(nested: bool) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    slots: list[Slot] = []

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        slots.append(slot)
        async with slot.released():
            await asyncio.sleep(100)

    async def parent() -> None:
        await (scheduler.submit("batch", agent) if nested else agent())

    task = asyncio.create_task(scheduler.submit("batch", parent, label="a"))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recorder.names == ["CallStarted batch a", "CallFinished batch a"]
    (finished,) = recorder.of(CallFinished)
    assert (finished.outcome, finished.waited, finished.ran) == ("cancelled", 0.0, 0.0)
    assert slots[0].waited == 0.0
    await assert_whole(scheduler)


async def test_close_in_the_pass_in_which_a_call_has_its_slot_back_aborts_it() -> None:
    scheduler = three_slots()
    stays, steps = hold(scheduler, "batch"), Steps(scheduler)
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    assert gauges(scheduler) == (2, 0, 1, 1)
    closing = start(scheduler.close(timeout=5.0))
    await settle()
    held[1].release()
    await asyncio.sleep(0)
    assert gauges(scheduler) == (1, 0, 2, 0)
    assert scheduler._shutdown is not None
    scheduler._shutdown._interrupt()  # as its timer does, before the call knows of its slot
    await settle()

    with pytest.raises(CallAborted):
        await steps.task
    assert steps.task.cancelling() == 0
    with pytest.raises(CallAborted):
        await stays.task
    await closing
