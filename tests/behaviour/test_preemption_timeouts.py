"""Preemption beside timeouts and close: each run has its whole time, until close ends it. Promises 13, 20, 23."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import CallAborted, RunTimeout, released
from tests.behaviour.doors import outcome, start
from tests.behaviour.preempted import Work, person, preempted, run, stage
from tests.support import account, hold, now, settle


async def test_each_run_has_the_whole_run_timeout() -> None:
    scheduler, _ = await stage()
    for _ in range(60):  # much has been had, so a second may be lost
        await scheduler.submit("batch", asyncio.sleep, 1.0, preemptible=True)

    async def wait() -> None:
        await asyncio.sleep(1.0)
        async with released():
            pass  # from here on two seconds are left
        await work.gate.wait()

    work = Work(wait)
    began = now()
    task = await run(scheduler, work, run_timeout=3.0)
    await asyncio.sleep(2.0)
    first = await person(scheduler)
    assert first.started
    await asyncio.sleep(10.0)
    first.release()
    await settle()
    assert work.runs == 2
    await asyncio.sleep(2.9)
    assert not task.done()
    await asyncio.sleep(0.2)

    assert await outcome(task) is RunTimeout
    assert now() - began < 15.2
    totals = account(scheduler, "batch")
    assert (totals.timed_out, totals.preempted, work.runs) == (1, 1, 2)


async def test_waiting_again_is_bounded_by_no_timeout() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work, run_timeout=3.0, queue_timeout=1.0)
    first = await person(scheduler)
    await asyncio.sleep(10.0)
    assert not task.done()
    first.release()
    await settle()
    work.gate.set()

    assert await task == "done"


async def test_a_run_timeout_while_it_cleans_up_after_a_preemption_decides() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            try:
                await asyncio.sleep(3.0)
            finally:
                pass

    work = Work(wait)
    task = await run(scheduler, work, run_timeout=1.0)
    await person(scheduler)
    await asyncio.sleep(5.0)

    assert await outcome(task) is RunTimeout
    assert (work.runs, preempted(scheduler), account(scheduler, "batch").timed_out) == (1, 0, 1)
    assert task.cancelling() == 0


async def test_a_call_that_its_run_timeout_has_told_to_stop_is_not_preempted() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            await asyncio.sleep(3.0)

    work = Work(wait)
    task = await run(scheduler, work, run_timeout=1e-9)
    await asyncio.sleep(1e-6)
    assert task.cancelling() == 1
    await person(scheduler)
    assert task.cancelling() == 1
    await asyncio.sleep(5.0)
    assert await outcome(task) is RunTimeout


async def test_close_lets_a_preempted_call_run_again() -> None:
    scheduler, held = await stage()
    work = Work()
    task = await run(scheduler, work)
    first = await person(scheduler)
    waiting = hold(scheduler, "batch")
    await settle()
    closing = start(scheduler.close(timeout=None))
    await settle()
    assert waiting.task.done()
    first.release()
    await settle()
    work.gate.set()
    assert (await task, work.runs) == ("done", 2)

    held.release()
    stays = next(iter(scheduler._home.admission.batch_running))
    assert stays.task is not None
    stays.task.cancel()
    report = await closing
    assert (report.finished, report.rejected, report.cancelled) == (4, 1, 0)


@pytest.mark.parametrize("moment", ["waits", "cleans up"])
async def test_close_that_runs_out_of_patience_aborts_it_whatever_it_does(moment: str) -> None:
    scheduler, held = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            if moment == "cleans up":
                await asyncio.sleep(5.0)

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert first.started == (moment != "cleans up")
    closing = start(scheduler.close(timeout=1.0))
    await asyncio.sleep(3.0)

    assert await outcome(task) is CallAborted
    assert (work.runs, task.cancelling()) == (1, 0)
    assert account(scheduler, "batch").cancelled == 2
    await closing
    assert held.task.done()


async def test_close_in_the_pass_in_which_it_has_its_slot_again_aborts_it() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    first = await person(scheduler)
    closing = start(scheduler.close(timeout=5.0))
    await settle()
    first.release()
    await asyncio.sleep(0)
    assert (scheduler.snapshot().batch_running, work.runs) == (2, 1)
    assert scheduler._shutdown is not None
    scheduler._shutdown._interrupt()  # as its timer does
    await settle()

    assert await outcome(task) is CallAborted
    assert task.cancelling() == 0
    await closing


async def test_a_call_that_went_on_after_its_run_timeout_is_not_told_again() -> None:
    scheduler, _ = await stage()
    heard: list[float] = []

    async def wait() -> None:
        try:
            await work.gate.wait()
        except asyncio.CancelledError:
            task.uncancel()
        try:
            await work.gate.wait()
        except asyncio.CancelledError:
            heard.append(now())
            raise

    work = Work(wait)
    task = await run(scheduler, work, run_timeout=1e-9)
    await asyncio.sleep(1e-6)
    waiting = await person(scheduler)
    assert (waiting.started, heard) == (False, [])
    work.gate.set()
    assert await task == "done"
