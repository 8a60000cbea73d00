"""How calls inside of calls end: errors, timeouts, cancels and close, theirs and the outer call's. Promise 17."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import CallAborted, QueueTimeout, RunTimeout, SchedulerMisuse
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.nested import full
from tests.support import account, armed_timers, make_scheduler, noop, now, settle


async def test_after_the_end_of_a_close_a_call_that_goes_on_submits_nothing_more() -> None:
    scheduler = make_scheduler()
    seen: list[str] = []

    async def stubborn() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(100)
        try:
            await scheduler.submit("interactive", noop)
        except Exception as error:
            seen.append(type(error).__name__)

    task = asyncio.create_task(scheduler.submit("interactive", stubborn))
    await settle()
    await scheduler.close(timeout=0)

    await task
    assert seen == ["SchedulerClosed"]


async def test_the_end_of_a_close_cancels_calls_that_share_a_task_once() -> None:
    scheduler = make_scheduler()
    seen: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            seen.append(f"{task.cancelling() if task else 0} cancel")
            raise

    async def outer() -> None:
        try:
            await scheduler.submit("interactive", inner)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    task = asyncio.create_task(scheduler.submit("interactive", outer))
    await settle()
    await scheduler.close(timeout=0)

    with pytest.raises(CallAborted):
        await task
    assert seen == ["1 cancel", "CancelledError"]


async def test_run_timeout_applies_to_a_nested_call_and_leaves_the_parent_alone() -> None:
    scheduler = make_scheduler()

    async def parent() -> str:
        with pytest.raises(RunTimeout):
            await scheduler.submit("batch", asyncio.sleep, 9, run_timeout=1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return "went on"

    assert await scheduler.submit("batch", parent) == "went on"
    assert account(scheduler, "batch").completed == 1
    assert now() == 1.0
    await assert_whole(scheduler)


async def test_the_parents_run_timeout_ends_the_nested_call_too() -> None:
    scheduler = make_scheduler()
    seen: list[type[BaseException]] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(9)
        except BaseException as error:
            seen.append(type(error))
            raise

    with pytest.raises(RunTimeout):
        await scheduler.submit("batch", scheduler.submit, "batch", inner, run_timeout=1)

    assert seen == [asyncio.CancelledError]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert account(scheduler, "batch").timed_out == 1
    await assert_whole(scheduler)


async def test_an_error_of_a_nested_call_is_the_parents_to_handle() -> None:
    scheduler = make_scheduler()

    async def broken() -> None:
        raise ZeroDivisionError

    async def parent() -> None:
        with pytest.raises(ZeroDivisionError):
            await scheduler.submit("batch", broken)
        with pytest.raises(ZeroDivisionError):
            await asyncio.gather(scheduler.submit("batch", broken))

    await scheduler.submit("batch", parent)
    assert account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


@pytest.mark.parametrize("timeout", [0, 0.5])
async def test_a_queue_timeout_holds_for_a_nested_call_that_waits(timeout: float) -> None:
    scheduler = make_scheduler()

    async def parent() -> tuple[Any, Any]:
        first = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1))
        await settle()
        second = asyncio.create_task(scheduler.submit("batch", noop, queue_timeout=timeout))
        return await asyncio.gather(first, second, return_exceptions=True)

    _, second = await scheduler.submit("batch", parent)
    assert isinstance(second, QueueTimeout)
    assert account(scheduler, "batch").rejected == 1
    await assert_whole(scheduler)


async def test_a_cancelled_child_loses_its_place_and_the_next_gets_the_slot() -> None:
    scheduler = make_scheduler()
    ran: list[int] = []

    async def child(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(1)

    async def parent() -> None:
        tasks = [asyncio.create_task(scheduler.submit("batch", child, number)) for number in range(4)]
        await settle()
        tasks[0].cancel()  # uses the slot
        tasks[1].cancel()  # waits for it
        await asyncio.gather(*tasks, return_exceptions=True)

    await scheduler.submit("batch", parent)
    assert ran == [0, 2, 3]
    assert now() == 2.0
    await assert_whole(scheduler)


async def test_close_lets_nested_calls_of_running_ones_go_on_and_its_end_cancels_them() -> None:
    scheduler = make_scheduler()
    ended: list[str] = []

    async def child(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} cancelled")
            raise

    async def parent() -> None:
        await asyncio.sleep(1)
        await scheduler.submit("batch", child, "own", 1)
        await asyncio.gather(*[scheduler.submit("batch", child, f"child {n}", 2 + n) for n in range(2)])

    task = asyncio.create_task(scheduler.submit("batch", parent))
    await settle()
    report = await scheduler.close(timeout=5)
    with pytest.raises(CallAborted):
        await task
    assert ended == ["own", "child 0", "child 1 cancelled"]
    assert (report.finished, report.cancelled, report.abandoned) == (0, 1, 0)
    assert not armed_timers()


async def test_drain_and_close_from_inside_a_nested_call_are_refused() -> None:
    scheduler = make_scheduler()

    async def inner() -> None:
        with pytest.raises(SchedulerMisuse, match="wait for itself"):
            await scheduler.drain()
        with pytest.raises(SchedulerMisuse, match="wait for itself"):
            await asyncio.create_task(scheduler.close())

    await scheduler.submit("batch", scheduler.submit, "batch", inner)


async def test_a_waiting_call_that_is_lent_a_slot_leaves_no_timer_behind() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def parent() -> None:
        first = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1))
        await settle()
        second = asyncio.create_task(scheduler.submit("batch", settle, queue_timeout=10))
        await first
        await second
        assert not armed_timers()

    await scheduler.submit("batch", parent)
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_the_end_of_close_reaches_a_call_that_was_lent_a_slot_and_has_not_woken() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)
    children: list[asyncio.Task[Any]] = []

    async def child() -> None:
        await asyncio.sleep(1)
        assert scheduler._shutdown is not None
        asyncio.get_running_loop().call_soon(scheduler._shutdown._interrupt)

    async def parent() -> None:
        children.append(start(scheduler.submit("batch", child)))
        children.append(start(scheduler.submit("batch", asyncio.sleep, 100)))
        await asyncio.sleep(50)

    children.append(start(scheduler.submit("batch", parent)))
    await settle()
    close = asyncio.create_task(scheduler.close(timeout=50))
    await asyncio.wait([close, *children])
    other.release()
    assert isinstance(children[2].exception(), CallAborted)
    assert now() == 1.0
