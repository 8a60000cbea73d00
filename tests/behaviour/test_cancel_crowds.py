"""Many calls that are cancelled or time out at once leave nothing behind for those that stay.

Promises 12, 14 and 15.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import QueueTimeout
from tests.behaviour.doors import Door, assert_whole, each_door, start
from tests.support import account, make_scheduler, noop, other_tasks, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


@each_door
async def test_the_running_and_the_waiting_call_cancelled_together_leave_nothing_behind(run: Door) -> None:
    scheduler = make_scheduler()
    called: list[int] = []

    async def job(number: int) -> None:
        called.append(number)
        await asyncio.Event().wait()

    tasks = [start(run(scheduler, "interactive", job, number)) for number in range(4)]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert called == [0, 1]
    assert account(scheduler, "interactive").cancelled == 4
    await scheduler.drain()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel, result", "result, cancel"])
async def test_callers_cancelled_as_their_calls_finish_disturb_nobody_else(run: Door, cancel_first: bool) -> None:
    scheduler = make_scheduler(max_concurrency=8)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    gates = [asyncio.get_running_loop().create_future() for _ in range(100)]

    async def job(gate: asyncio.Future[None]) -> None:
        await asyncio.wait([gate])

    tasks = [start(run(scheduler, "interactive", job, gate)) for gate in gates]
    await settle()
    for number, (gate, task) in enumerate(zip(gates, tasks, strict=True)):
        leaves = number % 3 == 0
        if leaves and cancel_first:
            task.cancel()
        gate.set_result(None)
        if leaves and not cancel_first:
            task.cancel()
        await settle(number % 4)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert cancelled == 34
    assert complaints == []
    await assert_whole(scheduler)


@each_door
async def test_a_storm_of_queue_timeouts_leaves_no_dead_call_at_the_head_of_the_queue(run: Door) -> None:
    scheduler = make_scheduler()

    async def job(seconds: float) -> None:
        await asyncio.sleep(seconds)

    storm = [
        start(run(scheduler, "interactive", job, 0.015 + number % 10 / 1000, queue_timeout=0.02))
        for number in range(200)
    ]
    outcomes = await asyncio.gather(*storm, return_exceptions=True)
    for kind in ("interactive", "batch") * 5:
        await run(scheduler, kind, noop)

    assert {type(outcome) for outcome in outcomes} == {type(None), QueueTimeout}
    assert other_tasks() == set()
    await assert_whole(scheduler)
