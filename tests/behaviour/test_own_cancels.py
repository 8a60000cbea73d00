"""The scheduler's own cancels never mix with the caller's.

Promise 16: run timeouts and close cancel the caller's task, and take each of those cancels back again.
"""

from __future__ import annotations

import asyncio

import anyio
import pytest

from llm_traffic_scheduler import CallAborted, RunTimeout
from tests.behaviour.callers import Caller, cancelling, forever
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import account, make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager"])

each_order = pytest.mark.parametrize("outer_first", [True, False], ids=["outer cancel first", "own cancel first"])


@each_door
@each_kind
async def test_after_a_run_timeout_no_cancel_is_owed_and_the_next_timeout_works(run: Door, kind: str) -> None:
    scheduler = make_scheduler()

    with pytest.raises(RunTimeout):
        await run(scheduler, kind, forever, run_timeout=1)
    assert cancelling() == 0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await forever()
    assert cancelling() == 0
    await asyncio.sleep(0)


@each_door
async def test_after_a_close_that_cancels_no_cancel_is_owed(run: Door) -> None:
    scheduler = make_scheduler()
    caller = Caller(run(scheduler, "batch", forever))
    await settle()

    report = await scheduler.close(timeout=1)

    assert await caller.ended() == (CallAborted, 0)
    assert isinstance(caller.error, CallAborted)
    assert isinstance(caller.error.__cause__, asyncio.CancelledError)
    assert report.cancelled == 1


async def _swallows() -> str:
    try:
        await forever()
    except asyncio.CancelledError:
        return "a result"
    return ""


async def _fails() -> None:
    try:
        await forever()
    except asyncio.CancelledError:
        raise ConnectionError from None


@each_door
async def test_a_result_or_an_error_in_spite_of_our_cancel_stands_and_no_cancel_is_owed(run: Door) -> None:
    scheduler = make_scheduler()

    answered = Caller(run(scheduler, "interactive", _swallows, run_timeout=1))
    failed = Caller(run(scheduler, "interactive", _fails, run_timeout=1))

    assert await answered.ended() == (None, 0)
    assert await failed.ended() == (ConnectionError, 0)
    assert answered.task.result() == "a result"
    totals = account(scheduler, "interactive")
    assert (totals.completed, totals.failed, totals.timed_out) == (1, 1, 0)
    await assert_whole(scheduler)


@each_door
@each_order
async def test_the_outer_cancel_wins_over_a_run_timeout_at_the_same_instant(run: Door, outer_first: bool) -> None:
    scheduler = make_scheduler()
    loop = asyncio.get_running_loop()
    due = loop.time() + 1
    callers: list[Caller] = []
    if outer_first:
        loop.call_at(due, lambda: callers[0].task.cancel("the user left"))
    callers.append(Caller(run(scheduler, "batch", forever, run_timeout=1)))
    await settle()
    if not outer_first:
        loop.call_at(due, lambda: callers[0].task.cancel("the user left"))

    assert await callers[0].ended() == (asyncio.CancelledError, 1)
    assert callers[0].task.cancelled()
    totals = account(scheduler, "batch")
    assert (totals.cancelled, totals.timed_out) == (1, 0)
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("outer_at", [0.5, 1.5])
async def test_the_outer_cancel_wins_over_a_run_timeout_before_or_during_the_clean_up(
    run: Door, outer_at: float
) -> None:
    scheduler = make_scheduler()

    async def careful() -> None:
        try:
            await forever()
        finally:
            # Shielded from the second cancel, as an async client's own clean-up often is.
            with anyio.CancelScope(shield=True):
                await asyncio.wait([asyncio.ensure_future(asyncio.sleep(2))])

    caller = Caller(run(scheduler, "batch", careful, run_timeout=1))
    asyncio.get_running_loop().call_later(outer_at, caller.task.cancel)

    assert await caller.ended() == (asyncio.CancelledError, 1)
    await assert_whole(scheduler)


@each_door
@each_order
async def test_the_outer_cancel_wins_over_a_close_at_the_same_instant(run: Door, outer_first: bool) -> None:
    scheduler = make_scheduler()
    loop = asyncio.get_running_loop()
    caller = Caller(run(scheduler, "batch", forever))
    await settle()
    due = loop.time() + 1
    if outer_first:
        loop.call_at(due, caller.task.cancel)
    closing = start(scheduler.close(timeout=1))
    await settle()
    if not outer_first:
        loop.call_at(due, caller.task.cancel)

    assert await caller.ended() == (asyncio.CancelledError, 1)
    report = await closing
    assert report.finished + report.cancelled == 1


@each_door
@pytest.mark.parametrize("close_timeout", [0.5, 1.0, 1.5])
async def test_close_decides_over_a_run_timeout_whichever_came_first(run: Door, close_timeout: float) -> None:
    scheduler = make_scheduler()

    async def careful() -> None:
        try:
            await forever()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([asyncio.ensure_future(asyncio.sleep(1))])

    caller = Caller(run(scheduler, "batch", careful, run_timeout=1))
    await settle()
    await scheduler.close(timeout=close_timeout)

    assert await caller.ended() == (CallAborted, 0)
    totals = account(scheduler, "batch")
    assert (totals.cancelled, totals.timed_out) == (1, 0)


@each_door
async def test_a_caller_that_is_being_cancelled_already_still_gets_its_run_timeout(run: Door) -> None:
    scheduler = make_scheduler()
    seen: list[tuple[type[BaseException], int]] = []

    async def caller() -> None:
        try:
            await forever()
        finally:
            try:
                await run(scheduler, "batch", forever, run_timeout=1)
            except BaseException as error:
                seen.append((type(error), cancelling()))

    task = start(caller())
    await settle()
    task.cancel()
    await asyncio.wait([task])

    assert seen == [(RunTimeout, 1)]
    assert task.cancelled()
    await assert_whole(scheduler)


@each_door
async def test_close_sends_no_cancel_before_the_loop_has_its_turn(run: Door) -> None:
    scheduler = make_scheduler()
    caller = Caller(run(scheduler, "batch", forever))
    await settle()

    closing = scheduler.close(timeout=0)
    closing.send(None)  # as far as close() goes synchronously
    assert caller.task.cancelling() == 0

    assert await caller.ended() == (CallAborted, 0)
    closing.close()
