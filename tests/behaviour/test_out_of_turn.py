"""Calls and blocks that end in another order, task or context than they began: promises 12 and 17."""

from __future__ import annotations

import asyncio

from llm_traffic_scheduler import traffic
from llm_traffic_scheduler.call import active, lineage
from tests.behaviour.doors import assert_whole
from tests.support import account, hold, make_scheduler, settle


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
