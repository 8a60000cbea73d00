"""Calls inside of calls, and calls from threads: the cases of several sections that nesting and threads are about."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from typing import Any

import pytest

from llm_traffic_scheduler import CallAborted, Decision, Kind, RunTimeout, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS, noting
from tests.scenarios.stage import Stage, scenario
from tests.support import Law, account, hold, make_scheduler, noop, settle


def real_time() -> Any:
    """For what waits for a thread of the test's own."""
    loop = asyncio.get_running_loop()
    return loop.real_time() if isinstance(loop, VirtualTimeLoop) else nullcontext()


# B23


@scenario
@each_door
@pytest.mark.parametrize("child_kind", KINDS)
@each_kind
async def test_b23_a_call_that_waits_for_one_of_its_own_scheduler_never_waits_for_itself(
    stage: Stage, run: Door, kind: Kind, child_kind: Kind
) -> None:
    """Parents filled every slot and waited for children that needed one: nothing moved, health was green."""
    scheduler = await stage.one_slot()

    await run(scheduler, kind, run, scheduler, child_kind, noop)
    assert account(scheduler, kind).completed == 1


@scenario
@each_door
@pytest.mark.parametrize("child_kind", KINDS)
async def test_b23_parents_in_every_slot_with_children_in_tasks_of_their_own_all_end(
    stage: Stage, run: Door, child_kind: Kind
) -> None:
    scheduler = stage.scheduler(max_concurrency=4)
    together = asyncio.Barrier(4)

    async def parent() -> None:
        await together.wait()  # every slot is taken
        await asyncio.gather(*[run(scheduler, child_kind, settle, 2) for _ in range(5)])

    await asyncio.gather(*[run(scheduler, "interactive", parent) for _ in range(4)])
    assert account(scheduler, "interactive").completed >= 4


@scenario
@pytest.mark.parametrize("in_a_task", [False, True])
async def test_b23_a_batch_child_of_an_interactive_parent_runs_while_batch_is_at_its_limit_or_paused(
    stage: Stage, in_a_task: bool
) -> None:
    scheduler = stage.scheduler(max_concurrency=3, policy=Law(lambda now, signals: Decision(1)))
    night = hold(scheduler, "batch")
    await settle()

    async def parent() -> int:
        child = scheduler.submit("batch", how_many)
        return await (asyncio.create_task(child) if in_a_task else child)

    async def how_many() -> int:
        return scheduler.snapshot().batch_running

    assert await scheduler.submit("interactive", parent) == 1
    scheduler.pause("batch")
    assert await scheduler.submit("interactive", parent) == 1
    scheduler.resume("batch")
    night.release()
    await night.task


@scenario
@pytest.mark.parametrize("ending", ["cancel", "run timeout", "close"])
async def test_b23_a_family_that_is_ended_from_outside_gives_every_slot_back(stage: Stage, ending: str) -> None:
    scheduler = stage.scheduler(max_concurrency=3)
    timeout = stage.seconds(1.0) if ending == "run timeout" else None
    never, together = asyncio.Event(), asyncio.Barrier(2)

    async def parent() -> None:
        await together.wait()
        await asyncio.gather(*[scheduler.submit("batch", never.wait) for _ in range(4)])

    tasks = [start(scheduler.submit("batch", parent, run_timeout=timeout)) for _ in range(2)]
    await settle()
    if ending == "cancel":
        for task in tasks:
            task.cancel()
    elif ending == "close":
        await scheduler.close(timeout=0)
    expected = {"cancel": asyncio.CancelledError, "run timeout": RunTimeout, "close": CallAborted}[ending]
    assert [await outcome(task) for task in tasks] == [expected] * 2
    await settle()
    assert scheduler.snapshot().running == 0


# B73


@scenario
async def test_b73_a_back_off_inside_a_call_holds_no_slot_under_released(stage: Stage) -> None:
    """All jobs slept in their slots for as long as the backend asked; nobody else could use them."""
    scheduler = stage.scheduler(max_concurrency=10, batch_max_concurrency=9)
    throttled = 0

    async def job() -> str:
        nonlocal throttled
        slot = current_slot()
        assert slot is not None
        throttled += 1
        async with slot.released():
            await asyncio.sleep(stage.seconds(20))
        return "answer"

    async def released(kind: Kind) -> Any:
        return await super(Counted, scheduler).submit(kind, job)  # what gives its slot up is not in it all the time

    stage.forget(scheduler)
    tasks = [start(released(KINDS[n % 2])) for n in range(10)]
    await settle()
    assert throttled == 10
    assert scheduler.snapshot().running == 0
    log: list[str] = []
    await asyncio.gather(*(scheduler.submit("interactive", noting(log, str(n))) for n in range(10)))
    assert len(log) == 10
    assert await asyncio.gather(*tasks) == ["answer"] * 10
    scheduler.check()
    assert scheduler.snapshot().running == 0


# B92


@scenario
@each_kind
async def test_b92_a_call_from_another_thread_wakes_a_loop_that_sleeps(stage: Stage, kind: Kind) -> None:
    scheduler = make_scheduler()  # the stage counts what is submitted on the loop
    await scheduler.drain()  # bound to this loop

    def thread() -> tuple[object, object]:
        first = scheduler.submit_from_thread(kind, asyncio.sleep, 0, "answer").result(10)
        with scheduler.slot_from_thread(kind):
            running = scheduler.snapshot().running
        return first, running

    with real_time():
        assert await asyncio.to_thread(thread) == ("answer", 1)
    await assert_whole(scheduler)


# B94


@scenario
async def test_b94_work_in_threads_keeps_its_slot_until_the_thread_ends_by_slot_from_thread(stage: Stage) -> None:
    scheduler = make_scheduler()  # the stage counts what is submitted on the loop
    await scheduler.drain()
    stop, lock, inside, most = threading.Event(), threading.Lock(), 0, 0

    def blocking() -> None:
        nonlocal inside, most
        with scheduler.slot_from_thread("interactive", run_timeout=0.02):
            with lock:
                inside += 1
                most = max(most, inside)
            stop.wait(0.05)
            with lock:
                inside -= 1

    with real_time():
        outcomes = await asyncio.gather(*[asyncio.to_thread(blocking) for _ in range(8)], return_exceptions=True)
    assert {type(each) for each in outcomes} == {RunTimeout}
    assert most == 2
    await assert_whole(scheduler)


# B96


@scenario
@each_door
@each_kind
async def test_b96_nested_calls_before_the_first_await_are_as_later(stage: Stage, run: Door, kind: Kind) -> None:
    scheduler = stage.scheduler(max_concurrency=3)

    async def job() -> int:
        inner = run(scheduler, "batch", how_many)
        return int(await asyncio.create_task(inner)) + int(await run(scheduler, "batch", how_many))

    async def how_many() -> int:
        return 1

    fast = [start(run(scheduler, kind, job)) for _ in range(20)]
    assert await asyncio.gather(*fast) == [2] * 20
    assert scheduler.snapshot().running == 0


# B137


@scenario
@each_kind
async def test_b137_one_task_in_a_slot_may_have_any_number_of_calls_of_its_own(stage: Stage, kind: Kind) -> None:
    scheduler = await stage.one_slot()

    async def parent() -> list[int]:
        return await asyncio.gather(*[scheduler.submit(kind, one) for _ in range(10)])

    async def one() -> int:
        await settle(1)
        return 1

    assert await scheduler.submit(kind, parent) == [1] * 10
