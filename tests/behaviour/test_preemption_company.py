"""Preemption beside everything else that can happen to a call: cancels, timeouts, close, calls inside, other loops.

Promises 11, 13, 16, 17, 19, 20, 23 and 25.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    ConfigError,
    PossibleDeadlock,
    QueueFull,
    RunTimeout,
    SchedulerMisuse,
    TrafficScheduler,
    checkpoint,
    current_slot,
    released,
    traffic,
)
from llm_traffic_scheduler.surroundings import active
from tests.behaviour.doors import assert_whole, outcome, start, through_submit
from tests.behaviour.preempted_plays import PREEMPTED_PLAYS
from tests.support import Held, account, hold, make_scheduler, noop, now, settle


class Work:
    """A function that is safe to run again: counts its runs, and waits in each as `wait` does."""

    def __init__(self, wait: Callable[[], Awaitable[object]] | None = None) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self._wait = wait

    async def __call__(self) -> str:
        self.runs += 1
        await (self.gate.wait() if self._wait is None else self._wait())
        return "done"


async def stage(**settings: Any) -> tuple[TrafficScheduler, Held]:
    """Three slots, and of them one for a batch call that stays, and one for an interactive call."""
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2, **settings)
    hold(scheduler, "batch")
    held = hold(scheduler)
    await settle()
    return scheduler, held


async def run(scheduler: TrafficScheduler, work: Callable[[], Awaitable[Any]], **options: Any) -> asyncio.Task[Any]:
    """A batch call that may be preempted, in the third slot."""
    task = start(scheduler.submit("batch", work, preemptible=True, **options))
    await settle()
    return task


async def person(scheduler: TrafficScheduler) -> Held:
    """An interactive call for which there is no slot."""
    held = hold(scheduler)
    await settle()
    return held


def preempted(scheduler: TrafficScheduler) -> int:
    return account(scheduler, "batch").preempted


# Who may ask for it


async def test_a_block_cannot_be_run_again() -> None:
    scheduler = make_scheduler()

    with pytest.raises(SchedulerMisuse, match=r"slot\(\) cannot run its block again.*submit"):
        scheduler.slot("batch", preemptible=True)
    with pytest.raises(SchedulerMisuse, match=r"slot_from_thread\(\) cannot run its block again"):
        scheduler.slot_from_thread("batch", preemptible=True)
    async with scheduler.slot("batch", preemptible=False):
        pass


@pytest.mark.parametrize("value", [1, None, "yes"])
async def test_it_is_yes_or_no(value: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(ConfigError, match="preemptible must be True or False"):
        await scheduler.submit("batch", noop, preemptible=value)
    with pytest.raises(ConfigError, match="preemptible must be True or False"):
        scheduler.wrap("batch", preemptible=value)
    assert account(scheduler, "batch").submitted == 0


async def test_a_wrapped_function_is_run_again_with_its_arguments() -> None:
    scheduler, _ = await stage()
    calls = []

    @scheduler.wrap("batch", preemptible=True)
    async def summarise(text: str, *, words: int) -> int:
        calls.append((text, words))
        await asyncio.sleep(1.0)
        return len(calls)

    task = start(summarise("long", words=3))
    await settle()
    (await person(scheduler)).release()

    assert await task == 2
    assert calls == [("long", 3)] * 2


async def test_what_a_wrapped_function_runs_as_decides() -> None:
    scheduler, held = await stage()
    work = Work()
    wrapped = scheduler.wrap(preemptible=True)(work.__call__)
    with traffic("interactive"):
        task = start(wrapped())
    await settle()
    await person(scheduler)
    assert task.cancelling() == work.runs - 1 == 0
    held.release()
    work.gate.set()
    assert await task == "done"


async def test_an_interactive_call_that_runs_as_batch_is_preempted_as_batch() -> None:
    scheduler, _ = await stage()
    work = Work()
    with traffic("batch"):
        task = start(scheduler.submit("interactive", work, preemptible=True))
    await settle()
    first = await person(scheduler)
    assert (first.started, preempted(scheduler)) == (True, 1)
    first.release()
    await settle()
    work.gate.set()
    assert (await task, work.runs) == ("done", 2)


async def test_a_call_from_a_thread_is_run_again() -> None:
    scheduler, _ = await stage()
    work = Work()
    futures: list[Any] = []
    thread = threading.Thread(
        target=lambda: futures.append(scheduler.submit_from_thread("batch", work, preemptible=True))
    )
    thread.start()
    thread.join()
    await settle()
    assert work.runs == 1
    first = await person(scheduler)
    assert (first.started, preempted(scheduler)) == (True, 1)
    first.release()
    await settle()
    work.gate.set()
    await settle()

    assert (futures[0].result(), work.runs) == ("done", 2)


# Cancels


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_cancel_of_the_callers_in_the_same_pass_wins(first: str) -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    waiting = hold(scheduler)
    await asyncio.sleep(0)
    assert task.cancelling() == 0
    if first == "ours":
        asyncio.get_running_loop().call_soon(task.cancel)  # behind the decision
    else:
        task.cancel()
    await settle()

    assert task.cancelled()
    assert (work.runs, preempted(scheduler), account(scheduler, "batch").cancelled) == (1, 0, 1)
    assert waiting.started


async def test_who_cleans_up_after_a_cancel_of_the_callers_is_not_disturbed() -> None:
    scheduler, _ = await stage()
    cleaned: list[float] = []

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            await asyncio.sleep(1.0)
            cleaned.append(now())

    work = Work(wait)
    task = await run(scheduler, work)
    task.cancel()
    await settle()
    waiting = await person(scheduler)
    assert not waiting.started
    await asyncio.sleep(1.0)
    await settle()

    assert (task.cancelled(), cleaned, waiting.started) == (True, [1.0], True)
    assert preempted(scheduler) == 0


async def test_a_cancel_while_it_waits_again_ends_it() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert scheduler.snapshot().batch_queued == 1
    task.cancel()
    await settle()

    assert task.cancelled()
    assert task.cancelling() == 1
    totals = account(scheduler, "batch")
    assert (totals.started, totals.cancelled, totals.preempted) == (2, 1, 1)
    assert scheduler.snapshot().batch_queued == 0
    first.release()
    await settle()
    assert work.runs == 1


async def test_a_cancel_that_meets_its_new_slot_ends_it_and_the_slot_goes_on() -> None:
    scheduler, _ = await stage()
    work = Work()
    task = await run(scheduler, work)
    first, second = await person(scheduler), hold(scheduler, "batch")
    await settle()
    first.release()
    await asyncio.sleep(0)
    assert scheduler.snapshot().batch_running == 2
    assert work.runs == 1
    task.cancel()
    await settle()

    assert task.cancelled()
    assert second.started
    assert work.runs == 1


async def test_a_timeout_around_the_call_ends_it_wherever_it_is() -> None:
    scheduler, _ = await stage()

    async def caller() -> None:
        async with asyncio.timeout(2.0):
            await scheduler.submit("batch", work, preemptible=True)

    work = Work()
    task = start(caller())
    await settle()
    await person(scheduler)
    assert scheduler.snapshot().batch_queued == 1
    await asyncio.sleep(2.0)

    assert await outcome(task) is TimeoutError
    assert (now(), task.cancelling(), work.runs) == (2.0, 0, 1)


async def test_a_timeout_inside_the_function_does_not_take_our_cancel_for_its_own() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        async with asyncio.timeout(5.0):
            await work.gate.wait()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    first.release()
    await settle()
    work.gate.set()

    assert (await task, work.runs, task.cancelling()) == ("done", 2, 0)


async def test_a_task_group_inside_the_function_is_stopped_with_it() -> None:
    scheduler, _ = await stage()
    ended: list[float] = []

    async def child() -> None:
        try:
            await work.gate.wait()
        finally:
            ended.append(now())

    async def wait() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                _ = group.create_task(child())

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert (first.started, ended) == (True, [0.0, 0.0])
    first.release()
    await settle()
    work.gate.set()

    assert (await task, work.runs, task.cancelling()) == ("done", 2, 0)


async def test_a_function_that_takes_our_cancel_back_itself_keeps_its_result() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        except asyncio.CancelledError:
            task.uncancel()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)

    assert first.started
    assert (await task, work.runs, task.cancelling(), preempted(scheduler)) == ("done", 1, 0, 0)


async def test_cancels_that_the_caller_was_owed_before_stay_owed() -> None:
    scheduler, _ = await stage()
    work = Work()

    async def caller() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        result = await scheduler.submit("batch", work, preemptible=True)
        assert task.cancelling() == 1
        return result

    task = start(caller())
    await settle()
    first = await person(scheduler)
    assert preempted(scheduler) == 1
    first.release()
    await settle()
    work.gate.set()
    assert (await task, work.runs) == ("done", 2)


# Timeouts


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


# The end


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


# Bounds


async def test_it_waits_again_although_the_queue_is_full() -> None:
    scheduler, _ = await stage(max_queued_batch=0)
    work = Work()
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert scheduler.snapshot().batch_queued == 1
    with pytest.raises(QueueFull):
        await scheduler.submit("batch", noop)
    first.release()
    await settle()
    work.gate.set()
    assert await task == "done"


async def test_among_tenants_it_keeps_its_place_and_is_charged_once() -> None:
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2, max_running_per_tenant=2)
    log: list[str] = []
    hold(scheduler, "batch", tenant="x")
    hold(scheduler, tenant="z")
    await settle()
    work = Work()
    task = await run(scheduler, work, tenant="x")
    others = [hold(scheduler, "batch", name=name, log=log, tenant=name) for name in ("x", "y")]
    first = hold(scheduler, tenant="z")
    await settle()
    assert (first.started, preempted(scheduler)) == (True, 1)
    first.release()
    await settle()

    assert (work.runs, log) == (2, [])
    work.gate.set()
    assert await task == "done"
    await settle()
    assert log == ["y"]
    for each in others:
        each.release()


async def test_a_tenant_at_its_bound_is_no_reason_to_stop_anybody() -> None:
    scheduler = make_scheduler(max_concurrency=4, max_running_per_tenant=2)
    held = [hold(scheduler, tenant="x") for _ in range(2)]
    works = [Work() for _ in range(2)]
    for work in works:
        _ = await run(scheduler, work, tenant="y")
    waiting = hold(scheduler, tenant="x")
    await settle()

    assert not waiting.started
    assert preempted(scheduler) == 0
    held[0].release()
    await settle()
    assert waiting.started


async def test_for_those_whose_tenant_is_at_its_bound_nobody_is_stopped_beside_the_rest() -> None:
    scheduler = make_scheduler(max_concurrency=4, max_running_per_tenant=1)
    hold(scheduler, tenant="x")
    for tenant in ("1", "2", "3"):
        _ = await run(scheduler, Work(), tenant=tenant)
    people = [hold(scheduler, tenant=tenant) for tenant in ("x", "z")]
    await settle()

    assert [each.started for each in people] == [False, True]
    assert preempted(scheduler) == 1


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


# Calls inside of calls


async def test_a_call_in_the_slot_of_a_parent_that_has_ended_is_left_alone() -> None:
    scheduler, _ = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def leave_behind() -> None:
        children.append(asyncio.create_task(scheduler.submit("batch", inner, preemptible=True)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    outer = start(scheduler.submit("batch", leave_behind))
    await settle()
    assert outer.done()
    assert (inner.runs, scheduler.snapshot().batch_running) == (1, 2)
    waiting = await person(scheduler)
    assert not waiting.started
    assert preempted(scheduler) == 0

    inner.gate.set()
    assert await children[0] == "done"
    await settle()
    assert waiting.started


async def test_a_call_whose_slot_a_child_task_uses_is_left_alone() -> None:
    scheduler, _ = await stage()
    inner = Work()
    outer = Work(lambda: asyncio.create_task(scheduler.submit("batch", inner)))
    task = await run(scheduler, outer)
    waiting = await person(scheduler)
    assert not waiting.started
    assert preempted(scheduler) == 0

    inner.gate.set()
    await settle()
    assert waiting.started
    waiting.release()
    assert await task == "done"


async def test_what_a_call_has_called_in_its_own_task_ends_with_it_and_is_called_again() -> None:
    scheduler, _ = await stage()
    innermost, ends = Work(), list[type[BaseException | None]]()

    async def inner() -> str:
        try:
            async with scheduler.slot("batch"):
                return await scheduler.submit("batch", innermost)
        finally:
            ends.append(type(sys.exception()))

    outer = Work(lambda: scheduler.submit("batch", inner))
    task = await run(scheduler, outer)
    waiting = await person(scheduler)

    assert waiting.started
    assert (outer.runs, innermost.runs, ends) == (1, 1, [asyncio.CancelledError])
    assert preempted(scheduler) == 1
    scheduler.check()
    waiting.release()
    await settle()
    innermost.gate.set()
    assert await task == "done"
    assert (outer.runs, innermost.runs) == (2, 2)
    assert account(scheduler, "batch").completed == 1


async def test_a_call_whose_inner_one_has_given_the_slot_up_has_none_to_give() -> None:
    scheduler, _ = await stage()
    back = asyncio.Event()

    async def inner() -> None:
        async with released():
            await back.wait()

    task = await run(scheduler, Work(lambda: scheduler.submit("batch", inner)))
    waiting = await person(scheduler)

    assert waiting.started
    assert preempted(scheduler) == 0
    another = await person(scheduler)
    assert preempted(scheduler) == 0
    for each in (waiting, another):
        each.release()
    back.set()
    assert await task == "done"


async def test_a_call_inside_of_another_is_left_alone() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    inner = Work()

    async def wait() -> object:
        return await asyncio.create_task(scheduler.submit("batch", inner, preemptible=True))

    hold(scheduler, "batch")
    hold(scheduler)
    outer = start(scheduler.submit("batch", Work(wait)))
    await settle()
    assert scheduler.snapshot().batch_running == 3
    waiting = await person(scheduler)

    assert not waiting.started
    assert preempted(scheduler) == 0
    inner.gate.set()
    assert await outer == "done"


async def test_a_child_that_came_while_it_ended_keeps_the_slot_and_the_call_runs_again_in_it() -> None:
    scheduler, _ = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def wait() -> None:
        try:
            await outer.gate.wait()
        except asyncio.CancelledError:
            if not children:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                await asyncio.sleep(0)
            raise

    outer = Work(wait)
    task = await run(scheduler, outer)
    waiting = await person(scheduler)
    assert (outer.runs, inner.runs, waiting.started) == (2, 1, False)
    assert scheduler.snapshot().batch_running == 2
    assert preempted(scheduler) == 1
    scheduler.check()

    inner.gate.set()
    await settle()
    assert waiting.started, "with its slot to itself it may be preempted again"
    assert len(children) == 1
    waiting.release()
    await settle()
    outer.gate.set()
    assert (await task, await children[0], outer.runs) == ("done", "done", 3)


async def test_a_run_in_the_same_slot_has_the_whole_run_timeout_too() -> None:
    scheduler, _ = await stage()
    inner = Work()

    async def wait() -> None:
        try:
            await outer.gate.wait()
        except asyncio.CancelledError:
            if outer.runs == 1:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                await asyncio.sleep(1.0)
            raise

    children: list[asyncio.Task[str]] = []
    outer = Work(wait)
    task = await run(scheduler, outer, run_timeout=1.5)
    await person(scheduler)
    await asyncio.sleep(2.4)
    assert (outer.runs, task.done()) == (2, False)
    await asyncio.sleep(0.2)
    assert await outcome(task) is RunTimeout

    inner.gate.set()
    assert await children[0] == "done"


async def test_a_child_that_waits_for_its_slot_gets_it_when_it_is_back() -> None:
    scheduler, held = await stage()
    inner = Work()
    children: list[asyncio.Task[str]] = []

    async def wait() -> None:
        if outer.runs == 1:
            try:
                await outer.gate.wait()
            except asyncio.CancelledError:
                children.append(asyncio.create_task(scheduler.submit("batch", inner)))
                raise
        await children[0]

    outer = Work(wait)
    task = await run(scheduler, outer)
    first = await person(scheduler)
    assert first.started
    assert (outer.runs, inner.runs) == (1, 0)
    first.release()
    await settle()
    assert (outer.runs, inner.runs) == (2, 1)
    inner.gate.set()

    assert await task == "done"
    held.release()
    await settle()
    scheduler.check()


async def test_a_checkpoint_of_the_second_run_gives_way_like_any_other() -> None:
    scheduler, held = await stage()

    async def wait() -> None:
        await work.gate.wait()
        await checkpoint()

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    first.release()
    await settle()
    second = await person(scheduler)
    second.release()
    await settle()
    assert work.runs == 3
    third = await person(scheduler)
    assert not third.started
    work.gate.set()
    await settle()
    assert third.started
    assert not task.done()
    third.release()
    assert (await task, preempted(scheduler)) == ("done", 2)
    held.release()


async def test_a_block_without_a_slot_after_it_was_stopped_does_not_keep_it_from_running_again() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            if not work.gate.is_set():
                async with released():
                    await asyncio.sleep(1.0)

    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert first.started
    await asyncio.sleep(2.0)  # the block is over, and wants the slot back
    first.release()
    await settle()
    assert (work.runs, preempted(scheduler)) == (2, 1)
    work.gate.set()
    assert await task == "done"


async def test_one_that_leaves_the_queue_after_it_was_stopped_is_aborted_and_says_why() -> None:
    scheduler, _ = await stage()

    async def wait() -> None:
        try:
            await work.gate.wait()
        finally:
            try:
                async with asyncio.timeout(1.0), released():
                    pass
            except TimeoutError:
                pass

    work = Work(wait)
    task = await run(scheduler, work)
    await person(scheduler)
    await asyncio.sleep(2.0)

    with pytest.raises(CallAborted, match="preempted, and lost its place"):
        await task
    assert account(scheduler, "batch").cancelled == 1


# Loops


def test_a_call_whose_coroutine_is_thrown_away_is_forgotten() -> None:
    async def main() -> None:
        scheduler, _ = await stage()
        coroutine = scheduler.submit("batch", Work(), preemptible=True)
        coroutine.send(None)
        preemption = scheduler._home.preemption
        assert preemption is not None
        assert len(preemption._running) == 1
        thread = threading.Thread(target=coroutine.close)
        thread.start()
        thread.join()
        await settle()
        assert not preemption._running
        assert scheduler.snapshot().batch_running == 1

    asyncio.run(main())


def test_what_was_to_be_decided_on_a_loop_that_has_gone_is_not_decided() -> None:
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)

    async def first() -> None:
        for _ in range(2):
            _ = start(scheduler.submit("batch", Work(), preemptible=True))
        hold(scheduler)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hold(scheduler)
        await asyncio.sleep(0)

    async def second() -> None:
        work = Work()
        task = await run(scheduler, work)
        await settle()
        work.gate.set()
        assert (await task, work.runs) == ("done", 1)
        await assert_whole(scheduler)

    asyncio.run(first())
    gc.collect()
    asyncio.run(second())


async def test_waiting_again_inside_another_scheduler_is_part_of_a_circle_like_any_other_wait() -> None:
    one = make_scheduler(name="one", max_concurrency=3, batch_max_concurrency=2)
    two = make_scheduler(name="two", max_concurrency=2)
    hold(one, "batch")
    held = hold(one)
    await settle()
    work = Work()

    async def outer() -> object:
        return await one.submit("batch", work, preemptible=True)

    crossing = start(two.submit("interactive", outer))
    hold(two)
    await settle()

    async def back() -> None:
        await two.submit("interactive", noop)

    blocked = start(one.submit("interactive", back))
    await settle()
    assert preempted(one) == 1
    with pytest.warns(PossibleDeadlock):
        await asyncio.sleep(6.0)
    blocked.cancel()
    await settle()
    work.gate.set()
    assert await crossing == "done"
    held.release()


async def test_no_frame_of_a_run_that_was_stopped_is_kept() -> None:
    scheduler, _ = await stage()

    class Big:
        """Something that a run holds."""

    async def work() -> None:
        big = Big()
        await gate.wait()
        del big

    gate = asyncio.Event()
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert first.started
    gc.disable()
    try:
        assert not [each for each in gc.get_objects() if isinstance(each, Big)]
    finally:
        gc.enable()
    first.release()
    await settle()
    gate.set()
    await task


class Payload:
    """Something whose end is seen."""


async def fail(payload: Payload) -> None:
    await asyncio.sleep(0)
    raise ConnectionError(payload)


@pytest.mark.parametrize("again", [False, True])
async def test_nothing_of_a_call_outlives_it_even_without_a_garbage_collector(again: bool) -> None:
    scheduler, _ = await stage()
    gate = asyncio.Event()

    async def wait(payload: Payload) -> Payload:
        await gate.wait()
        return payload

    async def caller(payload: Payload) -> None:
        if again:
            await scheduler.submit("batch", wait, payload, preemptible=True)
        else:
            await scheduler.submit("batch", lambda: asyncio.ensure_future(fail(payload)), preemptible=True)

    async def one_call() -> weakref.ref[Payload]:
        payload = Payload()
        task = start(caller(payload))
        await settle()
        if again:
            (await person(scheduler)).release()
            assert preempted(scheduler) == 1
            await settle()
            gate.set()
        await asyncio.wait([task])
        return weakref.ref(payload)

    gc.collect()
    gc.disable()
    try:
        payload = await one_call()
        await settle()
        assert payload() is None
    finally:
        gc.enable()


async def test_the_caller_is_outside_of_its_calls_afterwards_however_they_end() -> None:
    scheduler, _ = await stage()

    async def caller() -> None:
        await scheduler.submit("batch", work, preemptible=True)
        assert active.get() is None
        with pytest.raises(ConnectionError):
            await scheduler.submit("batch", fail, Payload(), preemptible=True)
        assert active.get() is None

    work = Work()
    task = start(caller())
    await settle()
    (await person(scheduler)).release()
    await settle()
    work.gate.set()
    await task
    assert work.runs == 2


async def test_what_cannot_be_awaited_is_refused() -> None:
    scheduler = make_scheduler()
    not_async: Any = len

    with pytest.raises(SchedulerMisuse, match="returned int, which cannot be awaited"):
        await scheduler.submit("batch", not_async, "abc", preemptible=True)
    await assert_whole(scheduler)


async def test_the_slot_is_none_while_the_call_waits_again() -> None:
    scheduler, _ = await stage()
    seen: list[object] = []

    async def child() -> None:
        await look.wait()
        seen.append(current_slot())

    async def wait() -> None:
        children.append(asyncio.create_task(child()))
        await work.gate.wait()

    look, children = asyncio.Event(), []  # type: ignore[var-annotated]
    work = Work(wait)
    task = await run(scheduler, work)
    first = await person(scheduler)
    look.set()
    await settle()
    assert seen == [None]
    first.release()
    await settle()
    work.gate.set()
    await task


async def test_a_partial_a_lambda_and_a_method_are_called_again() -> None:
    for make in (lambda work: functools.partial(work), lambda work: lambda: work(), lambda work: work.__call__):
        scheduler, _ = await stage()
        work = Work()
        task = await run(scheduler, make(work))
        first = await person(scheduler)
        first.release()
        await settle()
        work.gate.set()
        assert (await task, work.runs) == ("done", 2)


@pytest.mark.parametrize("name", PREEMPTED_PLAYS)
async def test_in_the_plays_somebody_is_preempted_unless_their_names_say_otherwise(name: str) -> None:
    played = PREEMPTED_PLAYS[name].stage(through_submit)
    await PREEMPTED_PLAYS[name].perform(played)

    nobody = ("is to be preempted", "without its slot", "while a preempted call cleans up")
    expected = not any(words in name for words in nobody)
    assert (preempted(played.scheduler) > 0) == expected
