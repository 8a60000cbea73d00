"""The scheduler's own cancels never mix with the caller's.

Promise 16: run timeouts and close cancel the caller's task, and take each of those cancels back again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine
from typing import Any

import anyio
import pytest

from llm_traffic_scheduler import CallAborted, RunTimeout
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import account, armed_timers, hold, make_scheduler, noop, now, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager"])

each_order = pytest.mark.parametrize("outer_first", [True, False], ids=["outer cancel first", "own cancel first"])


async def forever() -> None:
    await asyncio.Event().wait()


def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Caller:
    """A task that awaits something and notes how it ended and what `cancelling()` said then."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.error: BaseException | None = None
        self.cancelling = -1
        self.task = start(self._await(awaitable))

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        try:
            return await awaitable
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.cancelling = _cancelling()

    async def ended(self) -> tuple[type[BaseException] | None, int]:
        """Type of the error, and the count of cancels that are still owed."""
        await asyncio.wait([self.task])
        return (None if self.error is None else type(self.error)), self.cancelling


@each_door
@each_kind
async def test_after_a_run_timeout_no_cancel_is_owed_and_the_next_timeout_works(run: Door, kind: str) -> None:
    scheduler = make_scheduler()

    with pytest.raises(RunTimeout):
        await run(scheduler, kind, forever, run_timeout=1)
    assert _cancelling() == 0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await forever()
    assert _cancelling() == 0
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
                seen.append((type(error), _cancelling()))

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
    assert _cancelling() == 0
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
    assert _cancelling() == 0
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
    assert _cancelling() == 0
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
        return [type(error) for error in caught.value.exceptions], _cancelling()

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
    assert _cancelling() == 0
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
    assert _cancelling() == 0
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
    assert _cancelling() == 0
    await assert_whole(scheduler)
