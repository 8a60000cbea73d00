"""A loop that is closed under a scheduler, in the middle of everything.

Promises 23 (close while the loop shuts down) and 25 (calls of the old loop count as cancelled).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llm_traffic_scheduler import CloseReport, SchedulerClosed, TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual
from tests.behaviour.doors import Door, assert_whole, each_door, outcome, start, through_submit
from tests.behaviour.left_behind import Left
from tests.support import account, make_scheduler, noop, settle


async def served(scheduler: TrafficScheduler) -> None:
    """The scheduler works on this loop."""
    await scheduler.submit("interactive", noop)
    scheduler.check()


@each_door
def test_calls_of_a_loop_that_was_closed_count_as_cancelled_and_their_slots_are_free(run: Door) -> None:
    scheduler = make_scheduler()
    left = Left(scheduler, run)
    left.drop()

    assert run_virtual(run(scheduler, "batch", asyncio.sleep, 1, "served")) == "served"

    assert account(scheduler, "interactive").cancelled == 4
    assert account(scheduler, "batch").cancelled == 2
    run_virtual(assert_whole(scheduler))


@each_door
@pytest.mark.parametrize("moved", [True, False], ids=["moved on", "not moved on"])
def test_calls_of_a_closed_loop_are_collected_without_a_word(
    run: Door, moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler()
    Left(scheduler, run).drop()

    if moved:
        run_virtual(served(scheduler))
    else:
        del scheduler
    with caplog.at_level(logging.DEBUG):
        gc.collect()  # a warning or an exception in a finaliser is an error by pytest's own settings

    assert caplog.records == []
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Left)]


@pytest.mark.parametrize(
    "steer",
    [
        lambda scheduler: scheduler.configure(max_concurrency=6),
        lambda scheduler: scheduler.configure(batch_queue_timeout=3),
        lambda scheduler: scheduler.resume("interactive"),
        lambda scheduler: scheduler.pause("batch"),
        lambda scheduler: scheduler.add_listener(print),
    ],
    ids=["raise the cap", "change a timeout", "resume", "pause", "listen"],
)
def test_a_scheduler_whose_loop_was_closed_can_be_steered_before_the_next_one(
    steer: Callable[[TrafficScheduler], None],
) -> None:
    scheduler = make_scheduler()
    Left(scheduler, through_submit).drop()

    steer(scheduler)

    run_virtual(served(scheduler))


def test_a_paused_scheduler_whose_loop_was_closed_can_be_resumed_before_the_next_one() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    scheduler.pause("batch")
    Left(scheduler, through_submit).drop()

    scheduler.resume("interactive")
    scheduler.resume("batch")

    run_virtual(assert_whole(scheduler))


def test_a_scheduler_whose_loop_was_closed_shows_its_last_state_until_it_moves_on() -> None:
    scheduler = make_scheduler()
    Left(scheduler, through_submit).drop()

    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (2, 2, 2)
    assert len(scheduler.calls()) == 6
    assert "2 of 2 slots taken" in scheduler.explain()

    run_virtual(scheduler.drain())
    assert scheduler.calls() == ()


@each_door
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_a_call_closed_by_hand_after_its_loop_is_gone_touches_nothing(run: Door, waits: bool) -> None:
    scheduler = make_scheduler()

    async def begin() -> list[Coroutine[Any, Any, Any]]:
        calls = [run(scheduler, "interactive", asyncio.Event().wait) for _ in range(3 if waits else 1)]
        for call in calls:
            contextvars.copy_context().run(call.send, None)
        return calls

    *others, last = run_virtual(begin())
    before = scheduler.snapshot()

    last.close()
    assert scheduler.snapshot() == before
    run_virtual(served(scheduler))
    for call in others:
        call.close()

    assert account(scheduler, "interactive").cancelled == len(others) + 1
    run_virtual(assert_whole(scheduler))


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_a_scheduler_whose_loop_was_closed_can_be_closed_on_another(timeout: float | None) -> None:
    scheduler = make_scheduler()
    Left(scheduler, through_submit).drop()

    assert run_virtual(scheduler.close(timeout=timeout)) == CloseReport()


@pytest.mark.parametrize("timeout", [0, 5, None])
@pytest.mark.parametrize("late", [0, 100], ids=["at once", "after the queue timeouts"])
def test_a_close_that_its_loop_did_not_see_to_the_end_ends_on_another(timeout: float | None, late: float) -> None:
    scheduler = make_scheduler()
    left = Left(scheduler, through_submit)

    async def begin_to_close() -> asyncio.Task[CloseReport]:
        closing = asyncio.ensure_future(scheduler.close(timeout=None))
        await settle()
        return closing

    left.tasks.append(left.loop.run_until_complete(begin_to_close()))
    left.drop()

    async def close_again() -> CloseReport:
        await asyncio.sleep(late)
        return await scheduler.close(timeout=timeout)

    report = run_virtual(close_again())
    assert report.finished + report.rejected + report.cancelled + report.abandoned == 6
    assert report.rejected == 2  # the batch calls that waited, refused on the first loop
    account(scheduler, "interactive")
    account(scheduler, "batch")


def test_a_closed_scheduler_stays_closed_on_another_loop() -> None:
    scheduler = make_scheduler()
    report = run_virtual(scheduler.close())

    assert run_virtual(outcome(scheduler.submit("batch", noop))) is SchedulerClosed
    assert run_virtual(scheduler.close()) == report


def test_a_keyboard_interrupt_in_a_call_stops_the_loop_and_leaves_the_scheduler_whole() -> None:
    scheduler = make_scheduler()

    async def stop() -> None:
        raise KeyboardInterrupt

    async def interrupted() -> None:
        await asyncio.wait([start(scheduler.submit("batch", stop))])

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run(interrupted())

        runner.run(assert_whole(scheduler))


@pytest.mark.parametrize("main_fails", [False, True], ids=["main returns", "main raises"])
def test_close_works_while_asyncio_run_cancels_everything(main_fails: bool) -> None:
    scheduler = make_scheduler()
    reports: list[CloseReport] = []

    async def service() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reports.append(await scheduler.close(timeout=5))

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2)

    async def main() -> None:
        tasks = [start(service())]
        tasks += [start(scheduler.submit("interactive", cleans_up)) for _ in range(4)]
        await settle()
        assert not any(task.done() for task in tasks)
        if main_fails:
            raise ZeroDivisionError

    assert run_virtual(outcome(main())) is (ZeroDivisionError if main_fails else None)

    # asyncio cancels in no particular order: the two that waited may be gone when close() begins.
    assert reports[0] in [CloseReport(finished=finished) for finished in (2, 3, 4)]
    assert account(scheduler, "interactive").cancelled == 4


def test_a_call_submitted_while_asyncio_run_cancels_everything_is_served_or_refused_and_never_hangs() -> None:
    scheduler = make_scheduler()
    endings: list[Any] = []

    async def last_words() -> None:
        try:
            await scheduler.submit("interactive", asyncio.Event().wait)
        finally:
            endings.append(await outcome(scheduler.submit("interactive", noop)))

    async def main() -> None:
        for _ in range(4):
            start(last_words()).get_name()
        await settle()

    run_virtual(main())

    assert endings == [None] * 4
    run_virtual(assert_whole(scheduler))
