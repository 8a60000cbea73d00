"""Preemption beside everything else: who may ask for it, full queues, tenants, threads, other loops.

Promises 11, 17, 20 and 25; beside cancels, timeouts and calls inside: the files beside this one.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    ConfigError,
    PossibleDeadlock,
    QueueFull,
    SchedulerMisuse,
    current_slot,
    released,
    traffic,
)
from tests.behaviour.doors import assert_whole, start, through_submit
from tests.behaviour.preempted import Work, person, preempted, run, stage
from tests.behaviour.preempted_plays import PREEMPTED_PLAYS
from tests.support import account, hold, make_scheduler, noop, settle


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
