"""Cancelling costs nobody a slot, and is never swallowed.

Promises 12 (cancelled while it runs), 14 (cancelled while it waits) and 15 (a cancel and a grant in one loop pass).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from llm_traffic_scheduler import CallFinished, CallStarted, Event
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import Recorder, account, hold, make_scheduler, noop, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])

either_order = pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel, release", "release, cancel"])


async def _cancelled(awaitable: Awaitable[Any]) -> str:
    """The message of the CancelledError that comes out."""
    with pytest.raises(asyncio.CancelledError) as caught:
        await awaitable
    return str(caught.value)


@each_door
@each_kind
@pytest.mark.parametrize("next_kind", ["interactive", "batch"])
@either_order
async def test_a_slot_granted_in_the_pass_of_a_cancel_goes_to_the_next_call(
    run: Door, kind: str, next_kind: str, cancel_first: bool
) -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    called: list[str] = []

    async def job() -> None:
        called.append("the leaver's")

    leaver = start(run(scheduler, kind, job))
    await settle()
    stayer = hold(scheduler, next_kind, log=called, name="the stayer's")
    await settle()

    # The release happens when the first caller's task has its turn, one pass from here.
    asyncio.get_running_loop().call_soon(first.release if cancel_first else leaver.cancel)
    (leaver.cancel if cancel_first else first.release)()
    assert await _cancelled(leaver) == ""
    await settle()

    assert called == ["the stayer's"]
    stayer.release()
    second.release()
    await assert_whole(scheduler)


@each_door
@each_kind
async def test_a_call_cancelled_after_its_slot_was_assigned_and_before_it_woke_does_not_run(
    run: Door, kind: str
) -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    called: list[str] = []

    async def job() -> None:
        called.append("the leaver's")

    leaver = start(run(scheduler, kind, job, label="leaver"))
    await settle()
    stayer = hold(scheduler, kind, log=called, name="the stayer's")
    await settle()
    seen: list[int] = []

    def cancel_the_owner(event: Event) -> None:
        # A listener is told as soon as the slot has moved: the leaver owns it and has not woken.
        if isinstance(event, CallStarted) and event.label == "leaver":
            seen.append(scheduler.snapshot().running)
            leaver.cancel("changed my mind")

    scheduler.add_listener(cancel_the_owner)
    first.release()

    assert await _cancelled(leaver) == "changed my mind"
    await settle()
    assert seen == [2]
    assert called == ["the stayer's"]
    stayer.release()
    second.release()
    await assert_whole(scheduler)


@each_door
@each_kind
async def test_a_waiting_call_that_is_cancelled_makes_way_by_the_next_pass(run: Door, kind: str) -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    leaver = start(run(scheduler, kind, noop))
    await settle()

    leaver.cancel()
    await settle(1)

    snapshot = scheduler.snapshot()
    assert (snapshot.interactive_queued, snapshot.batch_queued) == (0, 0)
    assert snapshot.totals[kind].cancelled == 1
    first.release()
    second.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
async def test_the_cancels_message_reaches_the_caller_and_the_count_is_the_callers(run: Door, waits: bool) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)] if waits else []
    await settle()
    counts: list[int] = []

    async def caller() -> None:
        try:
            await run(scheduler, "interactive", asyncio.Event().wait)
        finally:
            task = asyncio.current_task()
            assert task is not None
            counts.append(task.cancelling())

    task = start(caller())
    await settle()
    task.cancel("the user left")

    assert await _cancelled(task) == "the user left"
    assert counts == [1]
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@each_kind
async def test_a_cancelled_call_that_cleans_up_keeps_its_slot_until_it_has_ended(run: Door, kind: str) -> None:
    scheduler = make_scheduler()

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)

    task = start(run(scheduler, kind, careful))
    await settle()
    task.cancel()
    await asyncio.sleep(2)
    assert scheduler.snapshot().running == 1

    await asyncio.sleep(2)
    assert task.cancelled()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("later", [0, 1, 2, 3])
async def test_a_second_cancel_during_the_clean_up_gives_the_slot_back_once(run: Door, later: int) -> None:
    scheduler = make_scheduler()
    other = hold(scheduler, "interactive")

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)

    task = start(run(scheduler, "batch", careful))
    await settle()
    task.cancel()
    await settle(later)
    task.cancel()

    await _cancelled(task)
    assert scheduler.snapshot().running == 1
    other.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel, result", "result, cancel"])
async def test_a_cancel_in_the_pass_of_the_result_is_seen_once_and_the_call_counted_once(
    run: Door, cancel_first: bool
) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask() -> str:
        return await answer

    task = start(run(scheduler, "interactive", ask))
    await settle()
    if cancel_first:
        task.cancel()
        if not answer.done():
            answer.set_result("42")
    else:
        answer.set_result("42")
        task.cancel()

    await _cancelled(task)
    assert [event.outcome for event in recorder.of(CallFinished)] == ["cancelled"]
    assert account(scheduler, "interactive").cancelled == 1
    await assert_whole(scheduler)


@each_door
async def test_a_cancel_that_was_pending_at_the_call_lands_at_the_functions_first_await(run: Door) -> None:
    scheduler = make_scheduler()
    reached: list[str] = []

    async def job() -> None:
        reached.append("start")
        await asyncio.sleep(0)
        reached.append("end")

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await run(scheduler, "interactive", job)

    await _cancelled(start(caller()))
    assert reached == ["start"]
    await assert_whole(scheduler)


@each_door
@each_kind
async def test_a_cancel_that_was_pending_at_the_call_takes_it_out_of_the_queue_at_once(run: Door, kind: str) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await run(scheduler, kind, noop)

    await _cancelled(start(caller()))

    assert scheduler.snapshot().totals[kind].cancelled == 1
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel, timeout", "timeout, cancel"])
async def test_a_cancel_at_the_instant_of_the_queue_timeout_wins_and_is_counted_once(
    run: Door, cancel_first: bool
) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    loop = asyncio.get_running_loop()
    due = loop.time() + 5
    task: asyncio.Task[Any]
    if cancel_first:
        loop.call_at(due, lambda: task.cancel())
    task = start(run(scheduler, "batch", noop, queue_timeout=5))
    await settle()
    if not cancel_first:
        loop.call_at(due, lambda: task.cancel())

    await _cancelled(task)
    totals = account(scheduler, "batch")
    assert totals.cancelled + totals.rejected == totals.submitted == 1
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
async def test_a_caller_that_survives_its_cancel_can_submit_again(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    async def stubborn() -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            await run(scheduler, "interactive", noop)
        except asyncio.CancelledError:
            task.uncancel()
        await run(scheduler, "interactive", noop)
        return "served"

    task = start(stubborn())
    await settle()
    task.cancel()
    await settle()
    for held in blockers:
        held.release()

    assert await task == "served"
    await assert_whole(scheduler)
