"""Calls and blocks that end in another order, task or context than they began: promises 12 and 17."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from llm_traffic_scheduler import current_slot, kind_in_force, traffic
from llm_traffic_scheduler.surroundings import active, lineage
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual
from tests.behaviour.doors import assert_whole
from tests.support import account, armed_timers, hold, make_scheduler, noop, settle


async def test_a_long_chain_of_tasks_in_one_lent_slot_gives_it_back() -> None:
    scheduler = make_scheduler()
    other, gate, tasks = hold(scheduler), asyncio.Event(), list[asyncio.Task[None]]()
    await settle()

    async def hop(left: int) -> None:
        if left:
            tasks.append(asyncio.create_task(scheduler.submit("batch", hop, left - 1)))
            await settle(3)
        else:
            await gate.wait()

    await scheduler.submit("batch", hop, 1500)
    await settle(5 * 1500)
    assert sum(not task.done() for task in tasks) == 1
    assert scheduler.snapshot().batch_running == 1
    gate.set()
    await asyncio.gather(*tasks)

    assert account(scheduler, "batch").completed == 1
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_chains_of_tasks_in_traffic_blocks_keep_nothing_of_the_calls_before() -> None:
    scheduler = make_scheduler()
    depth, tasks = list[int](), list[asyncio.Task[None]]()

    async def hop(left: int) -> None:
        depth.append(len(list(lineage(active.get()))))
        with traffic("batch", priority=1):
            if left:
                tasks.append(asyncio.create_task(later(left - 1)))

    async def later(left: int) -> None:
        await settle()
        await scheduler.submit("batch", hop, left)

    await scheduler.submit("batch", hop, 10)
    while tasks:
        await tasks.pop()
    assert depth == [1] + [2] * 10


async def test_chains_of_tasks_that_begin_before_the_call_around_ends_keep_nothing_of_those_before() -> None:
    scheduler = make_scheduler(max_concurrency=20)
    depth, tasks = list[int](), list[asyncio.Task[None]]()

    async def hop(left: int) -> None:
        depth.append(len(list(lineage(active.get()))))
        await settle(1)
        if left:
            tasks.append(asyncio.create_task(scheduler.submit("batch", hop, left - 1)))
            await settle(1)

    await scheduler.submit("batch", hop, 50)
    while tasks:
        await tasks.pop()
    assert max(depth) <= 4


@pytest.mark.parametrize("left_later", [False, True])
async def test_a_call_that_ends_inside_of_released_has_no_slot_and_takes_none(left_later: bool) -> None:
    scheduler, blocks = make_scheduler(), list[Any]()

    async def leaves_it_open() -> None:
        slot = current_slot()
        assert slot is not None
        blocks.append(slot.released())
        await blocks[0].__aenter__()

    await scheduler.submit("batch", leaves_it_open)
    if left_later:
        await blocks[0].__aexit__(None, None, None)

    totals = account(scheduler, "batch")
    assert (totals.started, totals.cancelled) == (1, 1)
    await assert_whole(scheduler)


async def test_a_call_that_ends_while_it_comes_back_in_another_task_wakes_that_one() -> None:
    scheduler, waits = make_scheduler(), list[asyncio.Task[None]]()
    other = hold(scheduler)
    await settle()

    async def comes_back_in_another_task() -> None:
        slot = current_slot()
        assert slot is not None
        block: Any = slot.released()
        await block.__aenter__()
        scheduler.pause("batch")
        waits.append(asyncio.create_task(block.__aexit__(None, None, None)))
        await settle()

    await scheduler.submit("batch", comes_back_in_another_task)
    await waits[0]
    other.release()
    await other.task
    scheduler.resume("batch")
    await assert_whole(scheduler)


async def test_a_released_block_that_outlives_the_nested_call_is_that_of_the_call_around() -> None:
    scheduler = make_scheduler()

    async def enters(stack: contextlib.AsyncExitStack) -> None:
        slot = current_slot()
        assert slot is not None
        await stack.enter_async_context(slot.released())

    async def parent() -> list[int]:
        seen = []
        async with contextlib.AsyncExitStack() as stack:
            await scheduler.submit("batch", enters, stack)
            seen.append(scheduler.snapshot().running)
        seen.append(scheduler.snapshot().running)
        await scheduler.submit("batch", settle)
        return seen

    assert await scheduler.submit("batch", parent) == [0, 1]
    assert account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


async def test_a_child_that_is_lent_the_slot_before_its_owner_wakes_keeps_its_own_run_timeout() -> None:
    scheduler, back = make_scheduler(), asyncio.Event()
    other = hold(scheduler)
    await settle()

    async def child() -> None:
        await back.wait()
        await scheduler.submit("batch", asyncio.sleep, 1, run_timeout=100)

    async def parent() -> None:
        slot = current_slot()
        assert slot is not None
        task = asyncio.create_task(child())
        async with slot.released():
            await settle()
        await task

    agent = asyncio.create_task(scheduler.submit("batch", parent))
    meanwhile = hold(scheduler, "batch")
    await settle(20)
    assert meanwhile.started
    meanwhile.release()  # the slot is the parent's, which wakes up after the child has asked
    back.set()
    await agent

    assert not armed_timers()
    other.release()
    await other.task
    await assert_whole(scheduler)


async def batch_block() -> AsyncGenerator[None, None]:
    with traffic("batch"):
        yield


def batch_slot() -> AsyncGenerator[None, None]:
    scheduler = make_scheduler()

    async def stream() -> AsyncGenerator[None, None]:
        async with scheduler.slot("batch"):
            yield

    return stream()


@pytest.mark.parametrize("generator", [batch_block, batch_slot])
async def test_an_async_generator_that_is_left_early_leaves_no_kind_in_force(generator: Any) -> None:
    async for _ in generator():
        assert kind_in_force() == "batch"
        break
    await settle()  # asyncio closes it in a task of its own

    assert kind_in_force() is None
    assert await make_scheduler().submit("interactive", kind_of_this_call) == "interactive"


@pytest.mark.parametrize("generator", [batch_block, batch_slot])
async def test_blocks_that_overlap_are_in_force_as_long_as_each_is_open(generator: Any) -> None:
    first, second = generator(), generator()
    await anext(first)
    await anext(second)

    await first.aclose()
    assert kind_in_force() == "batch"
    await second.aclose()
    assert kind_in_force() is None


async def test_a_block_left_in_another_task_is_over_where_it_was_entered_and_goes_on_in_child_tasks() -> None:
    scheduler, context, go_on = make_scheduler(max_concurrency=4), contextvars.copy_context(), asyncio.Event()
    block, fixture = traffic("batch"), scheduler.slot()
    context.run(block.__enter__)
    await asyncio.create_task(fixture.__aenter__(), context=context)

    async def later() -> str:
        await go_on.wait()
        return await scheduler.submit("interactive", kind_of_this_call)

    child = context.run(asyncio.create_task, later())
    await fixture.__aexit__(None, None, None)
    block.__exit__(None, None, None)
    go_on.set()

    assert await child == "batch"
    assert context.run(kind_in_force) is None
    in_context = asyncio.create_task(scheduler.submit("interactive", kind_of_this_call), context=context)
    assert await in_context == "interactive"
    await assert_whole(scheduler)


async def kind_of_this_call() -> str:
    slot = current_slot()
    assert slot is not None
    return slot.kind


def test_calls_in_lent_slots_end_for_the_scheduler_with_the_loop_that_was_left() -> None:
    scheduler, left, slots = make_scheduler(), VirtualTimeLoop(), list[Any]()

    async def begin() -> tuple[asyncio.Event, asyncio.Task[None]]:
        go_on = asyncio.Event()

        async def inner() -> None:
            slots.append(current_slot())
            await go_on.wait()
            assert current_slot() is None
            async with slots[0].released():
                await settle()

        async def outer() -> None:
            await scheduler.submit("batch", inner, run_timeout=100)

        task = asyncio.create_task(scheduler.submit("batch", outer))
        await settle()
        return go_on, task

    async def end(go_on: asyncio.Event, task: asyncio.Task[None]) -> None:
        go_on.set()
        await task
        assert not armed_timers()

    waits = left.run_until_complete(begin())
    run_virtual(scheduler.submit("batch", noop))
    left.run_until_complete(end(*waits))
    left.close()

    totals = account(scheduler, "batch")
    assert (totals.completed, totals.cancelled) == (1, 1)
    scheduler.check()


async def test_an_async_generator_kept_by_the_failure_of_its_consumer_gives_its_slot_back() -> None:
    scheduler = make_scheduler()

    async def stream() -> AsyncGenerator[int, None]:
        async with scheduler.slot("batch"):
            yield 1

    async def consumer() -> None:
        numbers = stream()
        async for _ in numbers:
            raise ZeroDivisionError

    task = asyncio.create_task(consumer())
    await asyncio.wait([task])
    assert isinstance(task.exception(), ZeroDivisionError)
    del task
    gc.collect()
    await settle()

    await assert_whole(scheduler)


async def test_a_task_with_many_slot_blocks_keeps_none_of_them() -> None:
    scheduler = make_scheduler()
    for _ in range(10):
        async with scheduler.slot("batch"):
            pass
    assert "forget_task" not in repr(asyncio.current_task())
