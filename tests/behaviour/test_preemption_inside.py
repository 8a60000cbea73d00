"""Preemption of calls with others inside, and while they have given their slot up. Promises 17, 19 and 20."""

from __future__ import annotations

import asyncio
import sys

from llm_traffic_scheduler import RunTimeout, checkpoint, released
from tests.behaviour.doors import outcome, start
from tests.behaviour.preempted import Work, person, preempted, run, stage
from tests.support import account, hold, make_scheduler, settle


async def test_a_call_in_the_slot_of_a_parent_that_has_ended_is_left_alone() -> None:
    scheduler, _ = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def leave_behind() -> None:
        children.append(asyncio.create_task(scheduler.submit("batch", inner, preemptible=True)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    outer = start(scheduler.submit("batch", leave_behind))
    await settle()
    assert outer.done()
    assert (inner.runs, scheduler.snapshot().batch_running) == (1, 2)
    waiting = await person(scheduler)
    assert not waiting.started
    assert preempted(scheduler) == 0

    inner.gate.set()
    assert await children[0] == "done"
    await settle()
    assert waiting.started


async def test_a_call_whose_slot_a_child_task_uses_is_left_alone() -> None:
    scheduler, _ = await stage()
    inner = Work()
    outer = Work(lambda: asyncio.create_task(scheduler.submit("batch", inner)))
    task = await run(scheduler, outer)
    waiting = await person(scheduler)
    assert not waiting.started
    assert preempted(scheduler) == 0

    inner.gate.set()
    await settle()
    assert waiting.started
    waiting.release()
    assert await task == "done"


async def test_what_a_call_has_called_in_its_own_task_ends_with_it_and_is_called_again() -> None:
    scheduler, _ = await stage()
    innermost, ends = Work(), list[type[BaseException | None]]()

    async def inner() -> str:
        try:
            async with scheduler.slot("batch"):
                return await scheduler.submit("batch", innermost)
        finally:
            ends.append(type(sys.exception()))

    outer = Work(lambda: scheduler.submit("batch", inner))
    task = await run(scheduler, outer)
    waiting = await person(scheduler)

    assert waiting.started
    assert (outer.runs, innermost.runs, ends) == (1, 1, [asyncio.CancelledError])
    assert preempted(scheduler) == 1
    scheduler.check()
    waiting.release()
    await settle()
    innermost.gate.set()
    assert await task == "done"
    assert (outer.runs, innermost.runs) == (2, 2)
    assert account(scheduler, "batch").completed == 1


async def test_a_call_whose_inner_one_has_given_the_slot_up_has_none_to_give() -> None:
    scheduler, _ = await stage()
    back = asyncio.Event()

    async def inner() -> None:
        async with released():
            await back.wait()

    task = await run(scheduler, Work(lambda: scheduler.submit("batch", inner)))
    waiting = await person(scheduler)

    assert waiting.started
    assert preempted(scheduler) == 0
    another = await person(scheduler)
    assert preempted(scheduler) == 0
    for each in (waiting, another):
        each.release()
    back.set()
    assert await task == "done"


async def test_a_call_inside_of_another_is_left_alone() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    inner = Work()

    async def wait() -> object:
        return await asyncio.create_task(scheduler.submit("batch", inner, preemptible=True))

    hold(scheduler, "batch")
    hold(scheduler)
    outer = start(scheduler.submit("batch", Work(wait)))
    await settle()
    assert scheduler.snapshot().batch_running == 3
    waiting = await person(scheduler)

    assert not waiting.started
    assert preempted(scheduler) == 0
    inner.gate.set()
    assert await outer == "done"


async def test_a_child_that_came_while_it_ended_keeps_the_slot_and_the_call_runs_again_in_it() -> None:
    scheduler, _ = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def wait() -> None:
        try:
            await outer.gate.wait()
        except asyncio.CancelledError:
            if not children:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                await asyncio.sleep(0)
            raise

    outer = Work(wait)
    task = await run(scheduler, outer)
    waiting = await person(scheduler)
    assert (outer.runs, inner.runs, waiting.started) == (2, 1, False)
    assert scheduler.snapshot().batch_running == 2
    assert preempted(scheduler) == 1
    scheduler.check()

    inner.gate.set()
    await settle()
    assert waiting.started, "with its slot to itself it may be preempted again"
    assert len(children) == 1
    waiting.release()
    await settle()
    outer.gate.set()
    assert (await task, await children[0], outer.runs) == ("done", "done", 3)


async def test_a_run_in_the_same_slot_has_the_whole_run_timeout_too() -> None:
    scheduler, _ = await stage()
    inner = Work()

    async def wait() -> None:
        try:
            await outer.gate.wait()
        except asyncio.CancelledError:
            if outer.runs == 1:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                await asyncio.sleep(1.0)
            raise

    children: list[asyncio.Task[str]] = []
    outer = Work(wait)
    task = await run(scheduler, outer, run_timeout=1.5)
    await person(scheduler)
    await asyncio.sleep(2.4)
    assert (outer.runs, task.done()) == (2, False)
    await asyncio.sleep(0.2)
    assert await outcome(task) is RunTimeout

    inner.gate.set()
    assert await children[0] == "done"


async def test_a_child_that_waits_for_its_slot_gets_it_when_it_is_back() -> None:
    scheduler, held = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def wait() -> None:
        if outer.runs == 1:
            try:
                await outer.gate.wait()
            except asyncio.CancelledError:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                raise
        await children[0]

    outer = Work(wait)
    task = await run(scheduler, outer)
    first = await person(scheduler)
    assert first.started
    assert (outer.runs, inner.runs) == (1, 0)
    first.release()
    await settle()
    assert (outer.runs, inner.runs) == (2, 1)
    inner.gate.set()

    assert await task == "done"
    held.release()
    await settle()
    scheduler.check()


async def test_a_checkpoint_of_the_second_run_gives_way_like_any_other() -> None:
    scheduler, held = await stage()

    async def wait() -> None:
        await work.gate.wait()
        await checkpoint()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    first.release()
    await settle()
    second = await person(scheduler)
    second.release()
    await settle()
    assert work.runs == 3
    third = await person(scheduler)
    assert not third.started
    work.gate.set()
    await settle()
    assert third.started
    assert not task.done()
    third.release()
    assert (await task, preempted(scheduler)) == ("done", 2)
    held.release()


async def test_a_block_without_a_slot_after_it_was_stopped_does_not_keep_it_from_running_again() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            if not work.gate.is_set():
                async with released():
                    await asyncio.sleep(1.0)

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert first.started
    await asyncio.sleep(2.0)  # the block is over, and wants the slot back
    first.release()
    await settle()
    assert (work.runs, preempted(scheduler)) == (2, 1)
    work.gate.set()
    assert await task == "done"
