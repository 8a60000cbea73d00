"""Calls and blocks that end in another order, task or context than they began: promises 12 and 17."""

from __future__ import annotations

import asyncio

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


