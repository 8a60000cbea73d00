"""F. Shutdown: running calls get their time, stubborn ones do not hold it up, and whoever waits for the end gets it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_traffic_scheduler import CallAborted, CloseReport, SchedulerClosed, SchedulerMisuse, TrafficScheduler
from tests.behaviour.doors import Door, each_door, each_kind, outcome, start
from tests.loops import loop_factories
from tests.scenarios.counted import Counted
from tests.scenarios.scale import counted_lines
from tests.scenarios.stage import LOOPS, Stage, scenario, scenario_on
from tests.support import hold, make_scheduler, noop, now, other_tasks, settle

# B75: the ways to the end


async def _by_close(scheduler: Counted) -> None:
    await scheduler.close()


async def _by_leaving_the_block(scheduler: Counted) -> None:
    async with scheduler:
        await settle()


async def _by_an_exception(scheduler: Counted) -> None:
    async def app() -> None:
        async with scheduler:
            await settle()
            raise ConnectionError

    assert await outcome(app()) is ConnectionError


async def _by_a_signal(scheduler: Counted) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await stop.wait()
    loop.remove_signal_handler(signal.SIGTERM)
    await scheduler.close()


async def _by_a_lifespan(scheduler: Counted) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with scheduler:
            yield

    async with lifespan():
        await settle()


async def _by_a_cancel(scheduler: Counted) -> None:
    async def main() -> None:
        async with scheduler:
            await asyncio.Event().wait()

    task = start(main())
    await settle()
    task.cancel()  # what asyncio.run does on Ctrl-C
    assert await outcome(task) is asyncio.CancelledError


ENTRIES = [
    _by_close,
    _by_leaving_the_block,
    _by_an_exception,
    _by_a_signal,
    _by_a_lifespan,
    _by_a_cancel,
]
each_entry = pytest.mark.parametrize("end", ENTRIES, ids=lambda entry: entry.__name__.removeprefix("_by_"))


@scenario
@each_door
@each_entry
async def test_b75_running_calls_are_left_their_time(
    stage: Stage, run: Door, end: Callable[[Counted], Awaitable[None]]
) -> None:
    scheduler = stage.scheduler(max_concurrency=5, batch_max_concurrency=2, close_timeout=stage.seconds(50))
    lasts, began = stage.seconds(5), now()
    kinds = ("batch", "batch", *["interactive"] * 3)
    running = [start(run(scheduler, kind, asyncio.sleep, lasts, "done")) for kind in kinds]
    people = [start(run(scheduler, "interactive", asyncio.sleep, lasts, "done")) for _ in range(2)]
    night = [start(run(scheduler, "batch", noop)) for _ in range(3)]
    await settle()
    assert scheduler.begun == 5

    await end(scheduler)

    assert now() - began >= stage.seconds(10) * 0.8  # as long as those take that waited
    assert [task.result() for task in running + people] == ["done"] * 7
    assert [await outcome(task) for task in night] == [SchedulerClosed] * 3


@scenario
@each_door
@each_entry
async def test_b75_after_the_timeout_the_rest_is_cancelled(
    stage: Stage, run: Door, end: Callable[[Counted], Awaitable[None]]
) -> None:
    scheduler = stage.scheduler(
        max_concurrency=5, batch_max_concurrency=2, interactive_p95_threshold=1e9, close_timeout=stage.seconds(5)
    )
    forever = asyncio.Event()
    quick = [start(run(scheduler, kind, settle, 30)) for kind in ("interactive", "batch")]
    slow = [start(run(scheduler, kind, forever.wait)) for kind in ("batch", *["interactive"] * 2)]
    people = [start(run(scheduler, "interactive", forever.wait)) for _ in range(2)]
    await settle()

    began = now()
    await end(scheduler)

    assert now() - began >= stage.seconds(5) * 0.8
    assert [task.exception() for task in quick] == [None, None]
    assert [await outcome(task) for task in slow + people] == [CallAborted] * 5


# B76


class Deaf:
    """A job that takes a cancel for something to retry after."""

    def __init__(self) -> None:
        self.stopped = False
        self.cancels = 0
        self._pulse = asyncio.Event()

    async def run(self) -> str:
        while not self.stopped:
            try:
                await self._pulse.wait()
            except BaseException:
                self.cancels += 1
        return "done after all"

    def stop(self) -> None:
        self.stopped = True
        self._pulse.set()


@scenario
@each_door
async def test_b76_jobs_that_swallow_their_cancel_do_not_hold_up_the_close(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler(max_concurrency=4, batch_max_concurrency=2, interactive_p95_threshold=1e9)
    deaf = Deaf()
    stubborn = [start(run(scheduler, kind, deaf.run)) for kind in ("interactive", "batch")]
    polite = start(run(scheduler, "batch", asyncio.Event().wait))
    quick = start(run(scheduler, "interactive", settle, 15))
    await settle()

    began = now()
    report = await scheduler.close(timeout=stage.seconds(0.2))

    assert report == CloseReport(finished=1, cancelled=1, abandoned=2)
    assert stage.seconds(0.2) + 0.9 <= now() - began <= 10 + stage.seconds(1)  # a second of grace, real on each loop
    assert (await outcome(quick), await outcome(polite)) == (None, CallAborted)
    assert (scheduler.snapshot().running, deaf.cancels) == (2, 2)  # it counts as long as it really runs
    deaf.stop()
    assert [await task for task in stubborn] == ["done after all"] * 2


@scenario
@each_door
@each_kind
async def test_b76_a_job_that_swallows_its_run_timeout_keeps_its_slot_until_it_has_really_ended(
    stage: Stage, run: Door, kind: str
) -> None:
    scheduler = stage.scheduler()
    deaf = Deaf()
    stubborn = start(run(scheduler, kind, deaf.run, run_timeout=stage.seconds(0.2)))
    await asyncio.sleep(stage.seconds(1))
    others = [hold(scheduler), hold(scheduler)]
    await settle()

    assert deaf.cancels == 1
    assert [held.started for held in others] == [True, False]
    assert scheduler.snapshot().overdue == 1
    deaf.stop()
    assert await stubborn == "done after all"
    await settle()
    assert others[1].started
    for held in others:
        held.release()
    await asyncio.gather(*(held.task for held in others))


# B77


async def _at_rest(waiter: asyncio.Task[None]) -> bool:
    await settle()
    return waiter.done()


@scenario
async def test_b77_an_idle_scheduler_has_drained(stage: Stage) -> None:
    scheduler = stage.scheduler()

    assert await _at_rest(start(scheduler.drain()))
    await scheduler.submit("batch", noop)
    assert await _at_rest(start(scheduler.drain()))
    await scheduler.close()
    assert await _at_rest(start(scheduler.drain()))


@scenario
@each_kind
@pytest.mark.parametrize("way", ["ends", "cancel", "close", "close at once", "queue timeout"])
async def test_b77_whatever_takes_the_last_call_away_ends_the_drain(stage: Stage, kind: str, way: str) -> None:
    scheduler = stage.scheduler()
    scheduler.pause("interactive")
    scheduler.pause("batch")
    last = start(scheduler.submit(kind, noop, queue_timeout=stage.seconds(1) if way == "queue timeout" else None))  # type: ignore[arg-type]
    await settle()
    drains = [start(scheduler.drain()) for _ in range(2)]
    assert not await _at_rest(drains[0])

    if way == "ends":
        scheduler.resume("interactive")
        scheduler.resume("batch")
    elif way == "cancel":
        last.cancel()
    elif way == "queue timeout":
        await asyncio.wait([last])
    else:
        await scheduler.close(finish_queued=(), timeout=0 if way == "close at once" else None)

    assert [await _at_rest(drain) for drain in drains] == [True, True]
    assert [drain.exception() for drain in drains] == [None, None]
    await asyncio.wait([last])


@scenario
@each_door
async def test_b77_a_job_cannot_wait_for_itself(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler()

    for wait in (scheduler.drain, scheduler.close):
        with pytest.raises(SchedulerMisuse, match="would wait for itself"):
            await run(scheduler, "batch", wait)

    await stage.canaries(scheduler)


@scenario
async def test_b77_a_drain_that_is_cancelled_leaves_the_others_alone(stage: Stage) -> None:
    scheduler = stage.scheduler()
    held = hold(scheduler)
    await settle()
    drains = [start(scheduler.drain()) for _ in range(3)]
    await settle()

    drains[0].cancel()
    await settle()
    assert [drain.done() for drain in drains] == [True, False, False]

    held.release()
    assert [await outcome(drain) for drain in drains] == [asyncio.CancelledError, None, None]


# B78


async def _close_over(scheduler: TrafficScheduler, count: int) -> tuple[int, list[asyncio.Task[Any]]]:
    """Lines run for closing over `count` calls that wait, until each has been told."""
    scheduler.pause("batch")
    tasks = [start(scheduler.submit("batch", noop)) for _ in range(count)]
    await settle(2)
    assert scheduler.snapshot().batch_queued == count
    with counted_lines() as lines:
        report = await scheduler.close()
        await settle(3)
    assert report == CloseReport(rejected=count)
    return lines.count, tasks


@scenario_on("default", "eager", "uvloop")  # in debug mode most lines are asyncio's
async def test_b78_closing_costs_each_waiting_call_the_same(stage: Stage) -> None:
    few, tasks = await _close_over(stage.scheduler(), 200)
    many, more_tasks = await _close_over(stage.scheduler(), 2_000)

    assert all(isinstance(task.exception(), SchedulerClosed) for task in tasks + more_tasks)
    assert many < 11 * few


@scenario
@pytest.mark.slow
async def test_b78_a_hundred_thousand_waiting_calls_are_refused_and_none_is_called(stage: Stage) -> None:
    count = 100_000 if stage.loop == "default" else 1_000
    scheduler = stage.scheduler()
    scheduler.pause("interactive")
    scheduler.pause("batch")
    tasks = [start(scheduler.submit(("interactive", "batch")[number % 2], noop)) for number in range(count)]
    await settle(2)

    report = await scheduler.close(timeout=0, finish_queued=())
    await settle(3)

    assert report == CloseReport(rejected=count)
    assert scheduler.begun == 0
    assert all(isinstance(task.exception(), SchedulerClosed) for task in tasks)


# B81


@scenario
@each_door
@each_kind
async def test_b81_after_the_close_no_job_is_alive(stage: Stage, run: Door, kind: str) -> None:
    scheduler = stage.scheduler(max_concurrency=4)
    saved: list[int] = []

    async def job(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(stage.seconds(0.1))
            saved.append(number)

    tasks = [start(run(scheduler, kind, job, number)) for number in range(3)]
    await settle()

    report = await scheduler.close(timeout=0)

    assert report == CloseReport(cancelled=3)
    assert saved == [0, 1, 2]
    await settle()
    assert all(task.done() for task in tasks)
    assert other_tasks() == set()


# B82: the end of asyncio.run

each_loop = pytest.mark.parametrize("loop_name", LOOPS)


def _runner(loop_name: str) -> asyncio.Runner:
    if loop_name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with 3.12")
    return asyncio.Runner(loop_factory=loop_factories()["virtual" if loop_name == "default" else loop_name])


class Teardown:
    """Five jobs that submit once more as they end, and what that came to."""

    def __init__(self, max_concurrency: int = 5) -> None:
        self.scheduler = make_scheduler(max_concurrency=max_concurrency, close_timeout=0.1)
        self.tasks: list[asyncio.Task[Any]] = []
        self.endings: list[type[BaseException] | None] = []

    async def job(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.endings.append(await outcome(self.scheduler.submit("interactive", noop)))

    async def begin(self) -> None:
        self.tasks = [start(self.scheduler.submit("interactive", self.job)) for _ in range(5)]
        await settle()


@each_loop
@pytest.mark.parametrize("how", ["an error", "Ctrl-C", "a cancelled close"])
def test_b82_the_end_of_the_run_with_the_close_in_its_finally_ends_everything(loop_name: str, how: str) -> None:
    teardown = Teardown()

    async def main() -> None:
        try:
            await teardown.begin()
            if how == "an error":
                raise ConnectionError
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await (teardown.scheduler.close() if how == "a cancelled close" else asyncio.Event().wait())
        finally:
            await teardown.scheduler.close()

    with _runner(loop_name) as runner, pytest.raises(ConnectionError if how == "an error" else KeyboardInterrupt):
        runner.run(main())

    assert [type(task.exception()) for task in teardown.tasks] == [CallAborted] * 5
    assert teardown.endings == [SchedulerClosed] * 5
    assert teardown.scheduler.snapshot().running == 0


@each_loop
@pytest.mark.parametrize("how", ["an error", "Ctrl-C"])
def test_b82_the_end_of_the_run_without_a_close_ends_everything_too(loop_name: str, how: str) -> None:
    teardown = Teardown()

    async def main() -> None:
        await teardown.begin()
        if how == "an error":
            raise ConnectionError
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.Event().wait()

    with _runner(loop_name) as runner, pytest.raises(ConnectionError if how == "an error" else KeyboardInterrupt):
        runner.run(main())

    assert all(task.cancelled() for task in teardown.tasks)
    assert teardown.scheduler.snapshot().running == teardown.scheduler.snapshot().interactive_queued == 0
    assert len(teardown.endings) == 5
