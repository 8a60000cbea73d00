"""Calls inside and around `asyncio.timeout`, task groups and anyio's cancel scopes.

Promise 16: whoever cancels, the others' counts of `task.cancelling()` stay right.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import anyio
import pytest

from llm_traffic_scheduler import RunTimeout
from tests.behaviour.callers import Caller, cancelling, forever
from tests.behaviour.doors import Door, assert_whole, each_door, start
from tests.support import account, armed_timers, hold, make_scheduler, noop, now, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


@each_door
@pytest.mark.parametrize("run_timeout", [0.5, 1.0, 1.5])
async def test_asyncio_timeout_around_a_call_sees_only_its_own_time(run: Door, run_timeout: float) -> None:
    scheduler = make_scheduler()
    began = now()

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(1):
            await run(scheduler, "batch", forever, run_timeout=run_timeout)

    # At the same instant both cancels are in the task by the time it runs: the outer one wins.
    assert type(caught.value) is (RunTimeout if run_timeout < 1 else TimeoutError)
    assert now() - began == min(1, run_timeout)
    assert cancelling() == 0
    assert armed_timers() == []
    await assert_whole(scheduler)


@each_door
async def test_asyncio_timeout_around_a_waiting_call_takes_it_out_of_the_queue(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(1):
            await run(scheduler, "batch", noop)

    assert type(caught.value) is TimeoutError
    assert cancelling() == 0
    assert scheduler.snapshot().batch_queued == 0
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("inner, expected", [(0.5, TimeoutError), (1.0, RunTimeout), (1.5, RunTimeout)])
async def test_asyncio_timeout_inside_a_call_leaves_the_run_timeout_alone(
    run: Door, inner: float, expected: type[TimeoutError]
) -> None:
    scheduler = make_scheduler()

    async def job() -> None:
        async with asyncio.timeout(inner):
            await forever()

    with pytest.raises(TimeoutError) as caught:
        await run(scheduler, "batch", job, run_timeout=1)

    assert type(caught.value) is expected
    assert cancelling() == 0
    assert armed_timers() == []
    await assert_whole(scheduler)


@each_door
async def test_a_task_group_around_calls_sees_a_run_timeout_as_an_ordinary_error(run: Door) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    async def plain_failure() -> None:
        await asyncio.sleep(1)
        raise RunTimeout

    async def together(*members: Coroutine[Any, Any, Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(member)

    async def caller(*members: Coroutine[Any, Any, Any]) -> tuple[list[type[BaseException]], int]:
        with pytest.raises(ExceptionGroup) as caught:
            await together(*members)
        return [type(error) for error in caught.value.exceptions], cancelling()

    plain = await start(caller(forever(), plain_failure(), forever()))
    scheduled = await start(
        caller(
            run(scheduler, "interactive", forever),
            run(scheduler, "interactive", forever, run_timeout=1),
            run(scheduler, "batch", forever),
        )
    )

    # The count is 1 up to Python 3.12, where the group itself forgets to take its cancel back.
    assert scheduled == plain == ([RunTimeout], 0 if sys.version_info >= (3, 13) else 1)
    assert account(scheduler, "interactive").cancelled == account(scheduler, "batch").cancelled == 1
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("child_fails", [True, False])
async def test_a_task_group_inside_a_call_ends_with_its_run_timeout(run: Door, child_fails: bool) -> None:
    scheduler = make_scheduler()
    children: list[asyncio.Task[Any]] = []

    async def child() -> None:
        await asyncio.sleep(1 if child_fails else 60)
        raise ConnectionError

    async def job() -> None:
        async with asyncio.TaskGroup() as group:
            children.append(group.create_task(child()))
            children.append(group.create_task(forever()))

    caller = Caller(run(scheduler, "batch", job, run_timeout=1))
    ended = await caller.ended()

    assert ended in ([(RunTimeout, 0)] if not child_fails else [(RunTimeout, 0), (ExceptionGroup, 0)])
    assert all(task.done() for task in children)
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("cause", ["timeout", "outer cancel"])
async def test_a_failing_call_in_a_group_in_a_timeout_leaves_the_counts_right(run: Door, cause: str) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ConnectionError

    async def body() -> None:
        async with asyncio.timeout(1 if cause == "timeout" else 60), asyncio.TaskGroup() as group:
            for job in (forever, fails, forever):
                group.create_task(run(scheduler, "interactive", job))

    caller = Caller(body())
    if cause == "outer cancel":
        asyncio.get_running_loop().call_later(1, caller.task.cancel)
    _, owed = await caller.ended()

    assert owed == (1 if cause == "outer cancel" else 0)
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
async def test_an_anyio_scope_around_a_call_cancels_it_and_no_cancel_is_owed(run: Door, waits: bool) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)] if waits else []
    await settle()

    with anyio.move_on_after(1) as scope:
        await run(scheduler, "batch", forever)

    assert scope.cancelled_caught
    assert cancelling() == 0
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("run_timeout", [0.5, 1.0, 1.5])
async def test_an_anyio_scope_goes_on_cancelling_a_call_that_cleans_up(run: Door, run_timeout: float) -> None:
    scheduler = make_scheduler()
    cut_short: list[str] = []

    async def sleep(name: str) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cut_short.append(name)
            raise

    async def careful() -> None:
        try:
            await forever()
        finally:
            try:
                await sleep("first clean-up")
            finally:
                await sleep("second clean-up")

    with anyio.move_on_after(1) as scope:
        await run(scheduler, "batch", careful, run_timeout=run_timeout)

    assert cut_short == ["first clean-up", "second clean-up"]
    assert scope.cancelled_caught
    assert cancelling() == 0
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("inner, times_out", [(0.5, False), (1.0, True), (1.5, True)])
async def test_an_anyio_scope_inside_a_call_leaves_the_run_timeout_alone(
    run: Door, inner: float, times_out: bool
) -> None:
    scheduler = make_scheduler()

    async def job() -> str:
        with anyio.move_on_after(inner):
            await forever()
        return "moved on"

    caller = Caller(run(scheduler, "batch", job, run_timeout=1))

    assert await caller.ended() == ((RunTimeout, 0) if times_out else (None, 0))
    assert armed_timers() == []
    await assert_whole(scheduler)


@each_door
async def test_calls_in_an_anyio_task_group_are_cancelled_with_it(run: Door) -> None:
    scheduler = make_scheduler()

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(run, scheduler, "interactive", forever)
        await anyio.sleep(1)
        group.cancel_scope.cancel()

    assert account(scheduler, "interactive").cancelled == 4
    assert cancelling() == 0
    await assert_whole(scheduler)
