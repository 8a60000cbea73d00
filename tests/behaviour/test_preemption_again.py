"""A call that is stopped: what it returns or raises stands, else it runs again from its old place. Promise 20."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import CallFinished, CallStarted, FixedPolicy, current_slot
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.preemptible import busy, slots, stopped
from tests.support import Recorder, account, armed_timers, hold, settle


async def test_a_preempted_call_waits_until_its_kind_is_resumed() -> None:
    scheduler = slots(3)
    _, job = await busy(scheduler, 2)
    person = hold(scheduler)
    await settle()
    scheduler.pause("batch")
    person.release()
    await settle()
    assert len(job.began) == 1

    scheduler.resume("batch")
    await settle()
    assert len(job.began) == 2


async def test_a_result_stands() -> None:
    scheduler = slots(3)

    async def stubborn() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "all the same"
        return "undisturbed"

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", stubborn, preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()

    assert person.started
    assert await task == "all the same"
    assert task.cancelling() == 0
    totals = account(scheduler, "batch")
    assert (totals.preempted, totals.completed) == (0, 1)


async def test_another_exception_stands() -> None:
    scheduler = slots(3)

    async def touchy() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ValueError("the cursor is lost") from None

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", touchy, preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()

    assert person.started
    with pytest.raises(ValueError, match="cursor"):
        await task
    totals = account(scheduler, "batch")
    assert (totals.preempted, totals.failed) == (0, 1)


async def test_it_waits_in_its_old_place() -> None:
    scheduler = slots(3)
    log: list[str] = []
    _, job = await busy(scheduler, 2)
    later = [
        hold(scheduler, "batch", name=name, log=log, priority=priority) for name, priority in (("z", 0), ("a", -1))
    ]
    await settle()
    person = hold(scheduler)
    await settle()
    assert len(job.stopped) == 1

    person.release()
    await settle()
    assert (log, len(job.began)) == (["a"], 1)  # a lower priority goes first
    later[1].release()
    await settle()
    assert (log, len(job.began)) == (["a"], 2)  # one that came later does not
    for each in later:
        each.release()


async def test_the_function_is_called_again_with_its_arguments_in_the_callers_task() -> None:
    scheduler = slots(3)
    calls: list[Any] = []

    async def work(*args: Any) -> int:
        calls.append((args, asyncio.current_task()))
        await asyncio.sleep(1.0)
        return len(calls)

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", work, 1, "two", preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()
    person.release()

    assert await task == 2
    assert calls == [((1, "two"), task)] * 2


async def test_it_is_counted_as_one_call_that_was_preempted() -> None:
    scheduler = slots(3)
    heard = Recorder(scheduler)
    _, job = await busy(scheduler, 2, lasts=5.0, label="job")
    person = hold(scheduler)
    await settle()
    waiting = account(scheduler, "batch")
    assert (waiting.submitted, waiting.started, waiting.preempted, waiting.cancelled) == (2, 2, 1, 0)
    info = [info for info in scheduler.calls() if info.state == "queued"]
    assert [each.label for each in info] == ["job"]
    await asyncio.sleep(2.0)
    person.release()
    await job.task

    await settle()
    totals = account(scheduler, "batch")
    assert (totals.submitted, totals.started, totals.completed, totals.preempted) == (2, 2, 2, 1)
    starts = [event for event in heard.of(CallStarted) if event.label == "job"]
    assert [event.waited for event in starts] == [0.0, 0.0, 2.0]
    ends = [event for event in heard.of(CallFinished) if event.label == "job"]
    assert [(event.outcome, event.waited, event.ran) for event in ends] == [
        ("completed", 0.0, 5.0),
        ("completed", 2.0, 5.0),
    ]


async def test_each_run_has_a_handle_of_its_own() -> None:
    scheduler = slots(3)
    heard = Recorder(scheduler)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        handles.append(slot)
        slot.first_token()
        slot.tokens(5)
        await asyncio.sleep(1.0)

    handles: list[Any] = []
    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", work, preemptible=True, label="work"))
    await settle()
    person = hold(scheduler)
    await asyncio.sleep(3.0)
    person.release()
    await task

    assert handles[0] is not handles[1]
    (end,) = (event for event in heard.of(CallFinished) if event.label == "work")
    assert (end.tokens, end.first_token) == (5, 3.0)


async def test_what_is_left_afterwards_is_nothing() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2, lasts=1.0)
    person = hold(scheduler)
    await settle()
    person.release()
    await asyncio.gather(*(job.task for job in jobs))
    first = next(iter(scheduler._home.admission.interactive_running))
    assert first.task is not None
    first.task.cancel()
    await asyncio.sleep(2.0)

    await assert_whole(scheduler)
    assert armed_timers() == []
    preemption = scheduler._home.preemption
    assert preemption is not None
    assert not preemption._running
    assert not preemption._stopping
    assert not scheduler._home.attentive


async def test_the_limit_decides_whether_a_preempted_call_comes_back() -> None:
    scheduler = slots(4)
    jobs = await busy(scheduler, 3)
    person = hold(scheduler)
    await settle()
    scheduler.configure(policy=FixedPolicy(2))
    person.release()
    await settle()
    assert stopped(*jobs) == [0, 0, 1]
    assert len(jobs[2].began) == 1

    scheduler.configure(policy=FixedPolicy(3))
    await settle()
    assert len(jobs[2].began) == 2
