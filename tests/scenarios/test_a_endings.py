"""Section A, continued: two ways to end at the same instant, timeouts and what is owed after them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llm_traffic_scheduler import CallAborted, RunTimeout
from tests.behaviour.callers import Caller, cancelling
from tests.behaviour.doors import Door, Job, each_door, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS, each_order, noting
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.support import hold, noop, now, settle


async def _timeout_and_failure(run: Door, scheduler: Counted, order: str, outer: str) -> tuple[object, ...]:
    """Three calls in a task group; one fails at the very instant at which a timeout or a cancel arrives."""
    loop, due = asyncio.get_running_loop(), now() + 1
    failing: asyncio.Future[None] = loop.create_future()
    caller: list[asyncio.Task[None]] = []
    seen: list[object] = []

    def cancel_from_outside() -> None:
        if outer == "cancel":
            caller[0].cancel()

    async def body() -> None:
        try:
            async with asyncio.timeout_at(due if outer == "timeout" else None), asyncio.TaskGroup() as group:
                group.create_task(run(scheduler, "interactive", lambda: failing))
                group.create_task(run(scheduler, "interactive", asyncio.sleep, 5))
                group.create_task(run(scheduler, "batch", asyncio.sleep, 5))
        except BaseException as error:
            seen.append(type(error))
        seen.append(cancelling())
        try:
            async with asyncio.timeout(0.05):
                await asyncio.sleep(5)
        except BaseException as error:
            seen.append(type(error))
        seen.append(cancelling())

    if order == "failure first":
        loop.call_at(due, failing.set_exception, ConnectionError())
    caller.append(start(body()))
    loop.call_at(due, cancel_from_outside)
    await settle()
    if order == "failure second":
        loop.call_at(due, failing.set_exception, ConnectionError())
    await asyncio.wait(caller)
    return (*seen, caller[0].cancelled())


async def _directly(_: Counted, __: str, job: Job, *args: object) -> object:
    return await job(*args)


@scenario_on("default", "eager", "debug")
@each_door
@pytest.mark.parametrize("order", ["failure first", "failure second"])
@pytest.mark.parametrize("outer", ["timeout", "cancel"])
async def test_b14_cancels_of_nested_scopes_balance_as_without_a_scheduler(
    stage: Stage, run: Door, order: str, outer: str
) -> None:
    """An outer cancel was swallowed, or the task's cancel counter stayed above 0 and later timeouts misbehaved."""
    scheduler = stage.scheduler(max_concurrency=3)

    plain = await _timeout_and_failure(_directly, scheduler, order, outer)
    scheduled = await _timeout_and_failure(run, scheduler, order, outer)

    assert scheduled == plain
    assert scheduled[1] == (0 if outer == "timeout" else 1)
    assert scheduled[2] is TimeoutError or outer == "cancel"


@scenario_on("default", "eager", "debug")
@each_door
@each_order
async def test_b14_a_run_timeout_at_the_instant_of_an_outer_one_leaves_no_cancel_owed(
    stage: Stage, run: Door, cancel_first: bool
) -> None:
    """As before, with a timeout of our own among them."""
    scheduler = stage.scheduler()
    owed = []

    async def body() -> None:
        assert await outcome(bounded(1, run(scheduler, "batch", asyncio.sleep, 5, run_timeout=1))) is TimeoutError
        owed.append(cancelling())
        assert await outcome(bounded(0.05, asyncio.sleep(5))) is TimeoutError
        owed.append(cancelling())

    async def bounded(seconds: float, awaitable: Coroutine[Any, Any, Any]) -> None:
        async with asyncio.timeout(seconds) as bound:
            if not cancel_first:  # its timer is set behind that of the run timeout
                asyncio.get_running_loop().call_soon(bound.reschedule, now() + seconds)
            await awaitable

    await start(body())
    assert owed == [0, 0]


@scenario
@each_door
@pytest.mark.parametrize("ending", [None, ValueError, RunTimeout], ids=["result", "error", "cleans up"])
async def test_b15_what_the_job_does_with_its_timeout_decides_what_comes_out(
    stage: Stage, run: Door, ending: type[BaseException] | None
) -> None:
    """A timeout did not fire, or a CancelledError came out, or the slot was free while the job still ran."""
    scheduler, log = await stage.one_slot(), list[str]()

    async def job() -> str:
        began = now()
        try:
            await asyncio.sleep(stage.seconds(50))
        except asyncio.CancelledError:
            assert now() - began >= stage.seconds(0.5) - (0 if stage.virtual else 0.002)
            if ending is None:
                return "ok"
            if ending is ValueError:
                raise ValueError from None
            await asyncio.sleep(stage.seconds(5))
            log.append("clean")
            raise
        return "not stopped"

    held = hold(scheduler)
    await settle()
    caller = Caller(run(scheduler, "batch", job, run_timeout=stage.seconds(0.5)))
    await asyncio.sleep(stage.seconds(3))  # what it waits is not what it runs
    held.release()
    await settle()
    following = start(run(scheduler, "batch", noting(log, "next")))
    await asyncio.sleep(stage.seconds(2.5))

    assert scheduler.snapshot().overdue == (ending is RunTimeout)
    assert await caller.ended() == (ending, 0)
    await following
    assert log == (["clean", "next"] if ending is RunTimeout else ["next"])
    assert scheduler.endings["timed_out"] == (ending is RunTimeout)


@scenario
@each_door
async def test_b15_a_job_that_goes_on_after_its_timeout_is_seen_and_blocks_nobody_else(stage: Stage, run: Door) -> None:
    """As before with a job that swallows its cancel: its caller waits with it, as for a plain await."""
    scheduler, gate = stage.scheduler(), asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    caller = Caller(run(scheduler, "batch", stubborn, run_timeout=stage.seconds(1), label="stubborn"))
    await asyncio.sleep(stage.seconds(5))
    waiting = start(run(scheduler, "batch", noop))
    await scheduler.submit("interactive", noop)

    assert scheduler.snapshot().overdue == 1
    assert [call.state for call in scheduler.calls() if call.label == "stubborn"] == ["overdue"]
    assert not waiting.done()
    assert not caller.task.done()
    gate.set()
    assert await caller.ended() == (None, 0)
    await waiting


@scenario
@each_door
async def test_b16_callers_cancelled_as_their_jobs_end_harm_no_other(stage: Stage, run: Door) -> None:
    """A shared worker set the result of a future that had been cancelled, died of it, and everybody else hung."""
    scheduler = stage.scheduler(max_concurrency=8)
    gates: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(100)]
    tasks = [start(run(scheduler, KINDS[n % 2], gates.__getitem__, n)) for n in range(100)]

    for number, (task, gate) in enumerate(zip(tasks, gates, strict=True)):
        await settle(3)
        if number % 10 == 0:
            task.cancel()
        if not gate.done():
            gate.set_result(None)
        if number % 10 in (3, 6):
            task.cancel()
    await asyncio.wait(tasks)
    await stage.canaries(scheduler, 10)

    assert sum(task.cancelled() for task in tasks) == 30
    assert scheduler.endings == {"completed": 90, "cancelled": 30}


@scenario
@each_door
@pytest.mark.parametrize("first", ["cancel", "run timeout"])
@pytest.mark.parametrize("apart", [0, 1, 10])
async def test_b18_a_second_cancel_during_the_clean_up_frees_the_slot_once(
    stage: Stage, run: Door, first: str, apart: int
) -> None:
    """Clean-up that awaited was itself cancelled half-way, and the slot leaked."""
    scheduler, log, cleaning = await stage.one_slot(), list[str](), asyncio.Event()

    async def job() -> None:
        try:
            await asyncio.sleep(stage.seconds(50))
        finally:
            cleaning.set()
            await asyncio.sleep(stage.seconds(2))
            log.append("clean")

    timeout = stage.seconds(1) if first == "run timeout" else None
    caller = Caller(run(scheduler, "batch", job, run_timeout=timeout))
    await settle()
    if first == "cancel":
        caller.task.cancel()
    await cleaning.wait()
    assert scheduler.snapshot().batch_running == 1
    await asyncio.sleep(stage.seconds(apart / 10) if apart > 1 else 0)
    if apart:
        caller.task.cancel()

    calm = apart == 0
    outer_cancels = (first == "cancel") + (not calm)
    assert await caller.ended() == (asyncio.CancelledError if outer_cancels else RunTimeout, outer_cancels)
    assert log == (["clean"] if calm else [])
    assert scheduler.snapshot().batch_running == 0


@scenario
@each_door
async def test_b19_done_callbacks_and_listeners_that_raise_free_the_slot_once(
    stage: Stage, run: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the completion callback made the release run twice; the semaphore became larger than configured."""
    scheduler = await stage.one_slot()

    def raises(_: object) -> None:
        raise ZeroDivisionError

    scheduler.add_listener(raises)
    for number in range(stage.share(200)):
        task = start(run(scheduler, KINDS[number % 2], asyncio.sleep, 0))
        task.add_done_callback(raises)
        await task
        await settle(2)

    assert len(stage.complaints) == stage.share(200)
    stage.complaints.clear()
    assert [record.name for record in caplog.records] == ["llm_traffic_scheduler"]
    assert scheduler.snapshot().listener_faults >= 2 * stage.share(200)
    scheduler.remove_listener(raises)


@scenario
@each_door
async def test_b19_jobs_that_end_as_their_timeout_fires_free_the_slot_once(stage: Stage, run: Door) -> None:
    """As before with two ends in one step."""
    scheduler = await stage.one_slot()
    for number in range(stage.share(200)):
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = now() + stage.seconds(0.25)
        if number % 2:
            asyncio.get_running_loop().call_at(due, _set, gate)
        task = start(run(scheduler, KINDS[number // 2 % 2], lambda gate=gate: gate, run_timeout=stage.seconds(0.25)))
        await settle(3)
        if not number % 2:
            asyncio.get_running_loop().call_at(due, _set, gate)
        assert await outcome(task) in (None, RunTimeout)
        assert scheduler.snapshot().running == 1


def _set(gate: asyncio.Future[None]) -> None:
    if not gate.done():
        gate.set_result(None)


@scenario
@each_door
@pytest.mark.parametrize("end_first", [True, False])
async def test_b19_jobs_that_end_as_close_cancels_them_free_the_slot_once(
    stage: Stage, run: Door, end_first: bool
) -> None:
    """As before with a shutdown."""
    for _ in range(stage.share(200)):
        scheduler = stage.scheduler()
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = now() + stage.seconds(0.25)
        tasks = [start(run(scheduler, kind, lambda gate=gate: gate)) for kind in KINDS]
        await settle(3)
        if end_first:
            asyncio.get_running_loop().call_at(due, _set, gate)
        closing = start(scheduler.close(timeout=due - now()))
        await settle(3)
        if not end_first:
            asyncio.get_running_loop().call_at(due, _set, gate)
        report = await closing
        assert {await outcome(task) for task in tasks} <= {None, CallAborted}
        assert report.finished + report.cancelled == 2
