"""M. API misuse, second half: who calls, how often and in what order does not matter, or is refused at once."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import pytest

from llm_traffic_scheduler import CloseReport, Kind, SchedulerClosed, SchedulerMisuse
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.loops import loop_factories
from tests.scenarios.counted import Counted
from tests.scenarios.stage import LOOPS, Stage, scenario
from tests.support import account, hold, make_scheduler, noop, settle

# B137


@scenario
@each_door
@each_kind
async def test_b137_one_task_may_have_many_calls_at_a_time(stage: Stage, run: Door, kind: Kind) -> None:
    scheduler = stage.scheduler(max_concurrency=4)

    for _ in range(3):
        await asyncio.gather(*(run(scheduler, kind, settle, 3) for _ in range(10)))

    assert account(scheduler, kind).completed == 30
    assert scheduler.most == (4 if kind == "interactive" else 3)


@scenario
@each_door
async def test_b137_one_task_may_hold_one_slot_after_another_and_call_inside_of_calls(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler(max_concurrency=3)

    for _ in range(3):
        async with scheduler.slot("batch") as outer:
            async with scheduler.slot("interactive") as inner:
                assert inner is not outer
                await run(scheduler, "interactive", noop)
                assert scheduler.snapshot().running == 1  # what is inside uses the same slot
            assert scheduler.snapshot().running == 1


@scenario
@each_kind
async def test_b137_a_done_callback_may_submit_although_no_task_runs(stage: Stage, kind: Kind) -> None:
    scheduler = stage.scheduler()
    tasks: list[asyncio.Task[None]] = []
    all_there = asyncio.Event()

    def again(_: asyncio.Task[None] | None) -> None:
        assert asyncio.current_task() is None
        if len(tasks) == 10:
            all_there.set()
            return
        tasks.append(start(scheduler.submit(kind, settle)))
        tasks[-1].add_done_callback(again)

    asyncio.get_running_loop().call_soon(again, None)
    await all_there.wait()

    assert account(scheduler, kind).completed == 10


@pytest.mark.parametrize("loop_name", LOOPS)
def test_b137_loops_and_tasks_that_have_the_address_of_former_ones_are_not_taken_for_them(loop_name: str) -> None:
    if loop_name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with 3.12")
    scheduler = make_scheduler()
    left: list[asyncio.Task[Any]] = []

    async def leave_some_behind() -> None:
        kinds: list[Kind] = ["interactive", "batch"] * 2
        left.extend(start(scheduler.submit(kind, asyncio.Event().wait, run_timeout=60)) for kind in kinds)
        await settle()

    for _ in range(10):
        with asyncio.Runner(
            loop_factory=loop_factories()["virtual" if loop_name == "default" else loop_name]
        ) as runner:
            runner.run(assert_whole(scheduler))
            runner.run(leave_some_behind())
        del runner
        left.clear()
        gc.collect()

    assert account(scheduler, "interactive").cancelled == account(scheduler, "batch").cancelled == 20


# B139


async def _enter(scheduler: Counted) -> None:
    async with scheduler:
        await settle(2)


async def _close(scheduler: Counted) -> None:
    assert isinstance(await scheduler.close(), CloseReport)


async def _submit(scheduler: Counted) -> None:
    await scheduler.submit("interactive", settle, 2)


async def _slot(scheduler: Counted) -> None:
    async with scheduler.slot("batch"):
        await settle(2)


async def _drain(scheduler: Counted) -> None:
    await scheduler.drain()


async def _configure(scheduler: Counted) -> None:
    scheduler.configure(max_concurrency=3, batch_max_concurrency=2)


async def _pause_and_resume(scheduler: Counted) -> None:
    scheduler.pause("batch")
    await settle(2)
    scheduler.resume("batch")


async def _look(scheduler: Counted) -> None:
    assert scheduler.snapshot().name in scheduler.explain()
    scheduler.check()


Action: TypeAlias = Callable[[Counted], Coroutine[Any, Any, None]]

ACTIONS: Final[list[Action]] = [
    _enter,
    _close,
    _submit,
    _slot,
    _drain,
    _configure,
    _pause_and_resume,
    _look,
]
AFTER_A_CLOSE: Final[dict[Action, type[Exception]]] = {
    _enter: SchedulerMisuse,
    _submit: SchedulerClosed,
    _slot: SchedulerClosed,
}


@scenario
@pytest.mark.parametrize("length", [2, 3])
async def test_b139_actions_in_any_order_end_at_once_as_they_say(stage: Stage, length: int) -> None:
    for actions in itertools.product(ACTIONS, repeat=length):
        scheduler = stage.scheduler()
        closed = False
        for action in actions:
            async with asyncio.timeout(stage.seconds(50)):
                assert await outcome(action(scheduler)) is (AFTER_A_CLOSE.get(action) if closed else None), actions
            closed = closed or action in (_enter, _close)
        stage.forget(scheduler)
        scheduler.check()
        assert scheduler.snapshot().running == 0


@scenario
async def test_b139_actions_at_the_same_time_end_as_well(stage: Stage) -> None:
    for actions in itertools.product(ACTIONS, repeat=2):
        for busy in (False, True):
            scheduler = stage.scheduler()
            held = [hold(scheduler, "batch") for _ in range(2 * busy)]
            await settle()
            tasks = [start(action(scheduler)) for action in actions]
            await settle()
            for call in held:
                call.release()
            _, hanging = await asyncio.wait(tasks, timeout=stage.seconds(50))
            assert not hanging, actions
            for action, task in zip(actions, tasks, strict=True):
                assert await outcome(task) in (None, AFTER_A_CLOSE.get(action)), actions
            await settle()
            stage.forget(scheduler)
            scheduler.check()
            assert scheduler.snapshot().running == 0


@scenario
async def test_b139_a_block_in_a_block_closes_once_and_a_second_close_reports_the_same(stage: Stage) -> None:
    scheduler = stage.scheduler()
    waiting = []
    async with scheduler:
        async with scheduler:
            waiting = [start(scheduler.submit("interactive", settle)) for _ in range(5)]
            await settle(2)
        assert [await outcome(task) for task in waiting] == [None] * 5
        with pytest.raises(SchedulerClosed):
            await scheduler.submit("interactive", noop)

    reports = await asyncio.gather(scheduler.close(), scheduler.close(timeout=0))
    assert reports[0] == reports[1] == CloseReport(finished=5)
