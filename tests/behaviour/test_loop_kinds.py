"""The same promises on every kind of loop: asyncio's, uvloop's, eager, in debug mode.

Promise 27. Times on real loops are a few hundredths of a second; nothing here asserts that a machine is quick.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CallFinished,
    CloseReport,
    FixedPolicy,
    PressurePolicy,
    QueueTimeout,
    RunTimeout,
    SchedulerMisuse,
    TrafficScheduler,
)
from tests.behaviour.doors import Door, assert_whole, each_door, outcome, start
from tests.support import Recorder, account, hold, make_scheduler, noop, now, other_tasks, settle

each_loop = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])
on_eager = pytest.mark.asyncio(loop_factories=["eager"])


async def forever() -> None:
    await asyncio.Event().wait()


@each_loop
@each_door
async def test_a_crowd_of_calls_that_end_in_every_way_leaves_the_slots_whole(
    run: Door, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(max_concurrency=4)
    inside = most = 0

    async def job(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await asyncio.sleep(number % 3 / 1000)
            if number % 7 == 0:
                raise ConnectionError
            return number
        finally:
            inside -= 1

    with caplog.at_level(logging.WARNING, logger="asyncio"):
        tasks = [start(run(scheduler, ("interactive", "batch")[number % 2], job, number)) for number in range(60)]
        for task in tasks[::5]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert most == 4
    assert account(scheduler, "interactive").submitted + account(scheduler, "batch").submitted >= 50
    assert [record for record in caplog.records if "took" not in record.getMessage()] == []
    await assert_whole(scheduler)
    assert other_tasks() == set()


@each_loop
@each_door
async def test_timeouts_never_fire_before_their_time(run: Door) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    began = now()
    with pytest.raises(QueueTimeout) as queue_timeout:
        await run(scheduler, "interactive", noop, queue_timeout=0.02)
    waited = now() - began
    for call in held:
        call.release()
    await settle()
    began = now()
    with pytest.raises(RunTimeout):
        await run(scheduler, "interactive", forever, run_timeout=0.02)
    ran = now() - began

    # uvloop counts milliseconds, and its clock stands still within a pass.
    assert queue_timeout.value.waited >= 0.0185
    assert min(waited, ran) >= 0.0185
    await assert_whole(scheduler)


@each_loop
@each_door
async def test_measured_times_are_those_of_a_fine_clock(run: Door) -> None:
    scheduler = make_scheduler(policy=FixedPolicy(1))
    recorder = Recorder(scheduler)

    await run(scheduler, "interactive", asyncio.sleep, 0.03)

    (end,) = recorder.of(CallFinished)
    assert 0.0285 <= end.ran < 25
    assert 0.028 <= scheduler.snapshot().interactive.p95 < 25


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
@each_door
async def test_times_shorter_than_a_tick_of_the_loops_clock_are_measured(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def compute() -> None:
        began = time.monotonic()
        while time.monotonic() < began + 0.0003:
            pass

    for _ in range(20):
        await run(scheduler, "interactive", compute)

    assert min(end.ran for end in recorder.of(CallFinished)) >= 0.0003  # uvloop's own clock says 0 or 0.001


@each_loop
async def test_a_batch_limit_that_rises_by_itself_starts_waiting_work() -> None:
    scheduler = TrafficScheduler(max_concurrency=4, window=0.1, policy=PressurePolicy(rps_threshold=10))
    for _ in range(10):
        await scheduler.submit("interactive", noop)

    tasks = [start(scheduler.submit("batch", asyncio.sleep, 0.3)) for _ in range(3)]
    await settle()
    assert scheduler.snapshot().batch_running == 1
    while scheduler.snapshot().batch_running < 3:  # nothing but the scheduler's own timer wakes the others
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(0.01)

    await asyncio.gather(*tasks)
    await assert_whole(scheduler)


@each_loop
@each_door
async def test_close_cancels_and_reports(run: Door) -> None:
    scheduler = make_scheduler()
    running, waiting = start(run(scheduler, "batch", forever)), start(run(scheduler, "batch", noop))
    await settle()

    report = await scheduler.close(timeout=0.01)

    assert report == CloseReport(rejected=1, cancelled=1)
    assert await outcome(running) is CallAborted
    assert waiting.done()
    assert other_tasks() == set()


@each_loop
async def test_ten_thousand_calls_that_never_wait_are_no_recursion() -> None:
    scheduler = make_scheduler()

    tasks = [asyncio.ensure_future(scheduler.submit("interactive", noop)) for _ in range(10_000)]
    await asyncio.gather(*tasks)

    assert account(scheduler, "interactive").completed == 10_000
    scheduler.check()


@each_loop
async def test_ten_thousand_waiting_calls_that_never_wait_themselves_are_no_recursion() -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    tasks = [asyncio.ensure_future(scheduler.submit("interactive", noop)) for _ in range(10_000)]
    await settle()

    for held in blockers:
        held.release()
    await asyncio.gather(*tasks)

    assert account(scheduler, "interactive").completed == 10_002
    await assert_whole(scheduler)


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@on_eager
@each_door
async def test_an_eager_call_may_do_anything_before_its_first_await(run: Door) -> None:
    scheduler = make_scheduler()

    async def steers() -> None:
        scheduler.configure(max_concurrency=3)
        scheduler.pause("batch")
        scheduler.resume("batch")
        scheduler.configure(max_concurrency=2)

    async def closes() -> None:
        with pytest.raises(SchedulerMisuse):
            await scheduler.close()

    async def submits() -> None:
        try:
            raise ConnectionError
        except ConnectionError:
            await run(make_scheduler(name="other"), "batch", noop)

    endings = [
        await outcome(start(run(scheduler, "interactive", job))) for job in (steers, closes, submits, _cancels_itself)
    ]

    assert endings == [None, None, None, asyncio.CancelledError]
    await assert_whole(scheduler)


@on_eager
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_an_eager_call_that_never_waits_is_over_when_its_task_is_made() -> None:
    scheduler = make_scheduler()

    task = start(scheduler.submit("interactive", noop))

    assert task.done()
    assert account(scheduler, "interactive").completed == 1
