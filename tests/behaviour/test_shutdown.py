"""close() refuses what comes, finishes what runs, and says what became of everything.

Promise 23. When its time is over: test_close_timeouts.py. The end of a loop: test_loops.py.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CloseReport,
    ConfigError,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficKind,
    TrafficScheduler,
)
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.support import account, armed_timers, hold, make_scheduler, noop, now, other_tasks, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


async def forever() -> None:
    await asyncio.Event().wait()


async def for_seconds(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_a_scheduler_that_never_ran_anything_closes_at_once() -> None:
    scheduler = make_scheduler()
    began = now()

    assert await scheduler.close() == CloseReport(finished=0, rejected=0, cancelled=0, abandoned=0)
    assert await scheduler.close(timeout=0) == CloseReport()

    assert now() == began
    assert armed_timers() == []
    assert other_tasks() == set()


@each_door
@each_kind
async def test_a_closed_scheduler_refuses_new_calls_and_counts_them_nowhere(run: Door, kind: str) -> None:
    scheduler = make_scheduler(name="chat")
    called: list[None] = []
    await scheduler.close()

    async def job() -> None:
        called.append(None)

    with pytest.raises(SchedulerClosed, match="'chat' is closed") as caught:
        await run(scheduler, kind, job)

    assert (caught.value.kind, caught.value.retry_after) == (kind, None)
    assert called == []
    assert account(scheduler, kind).submitted == 0


@each_door
async def test_a_closing_scheduler_refuses_new_calls_and_lets_running_ones_finish(run: Door) -> None:
    scheduler = make_scheduler()
    running = start(run(scheduler, "batch", for_seconds, 5))
    await settle()
    closing = start(scheduler.close())
    await settle()

    assert await outcome(run(scheduler, "interactive", noop)) is SchedulerClosed
    assert not closing.done()

    assert await closing == CloseReport(finished=1)
    assert await running == 5


@each_door
@pytest.mark.parametrize(
    "finish_queued", [(), ("interactive",), ("batch",), ["interactive", "batch"], {TrafficKind.BATCH}, None], ids=str
)
async def test_waiting_calls_of_the_kinds_to_finish_run_and_the_others_are_refused(
    run: Door, finish_queued: Any
) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    waiting = {
        kind: [start(run(scheduler, kind, for_seconds, 1)) for _ in range(2)] for kind in ("interactive", "batch")
    }
    await settle()

    options = {} if finish_queued is None else {"finish_queued": finish_queued}
    closing = start(scheduler.close(**options))
    await settle()
    for held in blockers:
        held.release()
    report = await closing

    kept = {"interactive"} if finish_queued is None else {TrafficKind(kind).value for kind in finish_queued}
    for kind, tasks in waiting.items():
        assert [await outcome(task) for task in tasks] == [None if kind in kept else SchedulerClosed] * 2
    assert report == CloseReport(finished=2 + 2 * len(kept), rejected=4 - 2 * len(kept))
    for kind in ("interactive", "batch"):
        assert account(scheduler, kind).rejected == (0 if kind in kept else 2)


async def test_one_kind_to_finish_may_be_given_as_it_is() -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler, "batch"), hold(scheduler)]
    waiting = {kind: hold(scheduler, kind) for kind in ("interactive", "batch")}
    await settle()
    closing = start(scheduler.close(finish_queued="batch"))
    await settle()
    for held in (*blockers, *waiting.values()):
        held.release()

    assert (await closing).rejected == 1
    assert await outcome(waiting["interactive"].task) is SchedulerClosed


async def test_what_waits_of_a_paused_kind_is_refused_at_once_since_it_could_not_end() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    waiting = hold(scheduler)
    await settle()

    assert (await scheduler.close()).rejected == 1
    assert now() == 0.0
    assert await outcome(waiting.task) is SchedulerClosed


@pytest.mark.parametrize("finish_queued", [("everything",), "everything", (None,), [3]], ids=repr)
async def test_an_impossible_kind_to_finish_is_refused_and_the_scheduler_stays_open(finish_queued: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises((ConfigError, SchedulerMisuse)):
        await scheduler.close(finish_queued=finish_queued)

    await assert_whole(scheduler)


async def test_a_second_close_refuses_what_the_first_would_have_finished() -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    waiting = hold(scheduler)
    await settle()
    first = start(scheduler.close())
    await settle()
    second = start(scheduler.close(finish_queued=()))
    await settle()

    assert await outcome(waiting.task) is SchedulerClosed
    for held in blockers:
        held.release()
    assert await first == await second == CloseReport(finished=2, rejected=1)


@each_door
async def test_close_from_inside_a_slot_is_misuse_and_the_scheduler_stays_open(run: Door) -> None:
    scheduler = make_scheduler()

    async def job() -> None:
        with pytest.raises(SchedulerMisuse, match="would wait for itself"):
            await scheduler.close()
        with pytest.raises(SchedulerMisuse, match="would wait for itself"):
            await asyncio.create_task(scheduler.close())

    await run(scheduler, "batch", job)
    await assert_whole(scheduler)


@each_door
async def test_close_from_inside_another_schedulers_slot_is_no_misuse(run: Door) -> None:
    scheduler, other = make_scheduler(), make_scheduler()

    assert await run(other, "batch", scheduler.close) == CloseReport()


async def test_a_close_whose_caller_is_cancelled_goes_on() -> None:
    scheduler = make_scheduler()
    task = start(scheduler.submit("batch", forever))
    await settle()
    began = now()
    closing = start(scheduler.close(timeout=5))
    await asyncio.sleep(1)
    closing.cancel()
    assert await outcome(closing) is asyncio.CancelledError

    assert await outcome(task) is CallAborted
    assert now() - began == 5
    assert await scheduler.close() == CloseReport(cancelled=1)


async def test_a_scheduler_as_a_context_manager_finishes_its_calls_on_the_way_out() -> None:
    async with TrafficScheduler(max_concurrency=2) as scheduler:
        task = start(scheduler.submit("batch", for_seconds, 5))
        await settle()

    assert task.done()
    assert await outcome(scheduler.submit("batch", noop)) is SchedulerClosed


async def test_an_exception_inside_the_context_manager_comes_out_after_the_close() -> None:
    began = now()
    scheduler = TrafficScheduler(max_concurrency=2, close_timeout=3)
    task = start(scheduler.submit("batch", forever))
    await settle()

    with pytest.raises(ZeroDivisionError):
        async with scheduler:
            _ = 1 / 0

    assert now() - began == 3
    assert await outcome(task) is CallAborted


async def test_refusals_are_fresh_for_each_call_and_their_tracebacks_do_not_grow() -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    waiting = [hold(scheduler, "batch") for _ in range(2_000)]
    await settle()
    closing = start(scheduler.close(timeout=None))
    await settle()
    errors = [held.task.exception() for held in waiting]

    assert len({id(error) for error in errors}) == 2_000
    assert {len(traceback.extract_tb(error.__traceback__)) for error in errors if error} == {
        len(traceback.extract_tb(errors[0].__traceback__)) if errors[0] else 0
    }
    for held in blockers:
        held.release()
    assert await closing == CloseReport(finished=2, rejected=2_000)
