"""When close() has waited long enough: who is cancelled, who is refused, who is abandoned, and when it returns.

Promise 23.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CloseReport,
    ConfigError,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
)
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.support import account, armed_timers, hold, make_scheduler, noop, now, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


async def forever() -> None:
    await asyncio.Event().wait()


async def for_seconds(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def cleans_up(seconds: float) -> None:
    try:
        await forever()
    finally:
        await asyncio.sleep(seconds)


async def deaf(stop: asyncio.Event) -> str:
    while not stop.is_set():
        try:
            await stop.wait()
        except asyncio.CancelledError:
            continue
    return "done after all"


@each_door
@each_kind
async def test_what_still_runs_at_the_timeout_is_cancelled_and_its_caller_gets_call_aborted(
    run: Door, kind: str
) -> None:
    scheduler = make_scheduler()
    task = start(run(scheduler, kind, forever, label="index"))
    await settle()
    began = now()

    report = await scheduler.close(timeout=3)

    assert now() - began == 3
    assert report == CloseReport(cancelled=1)
    with pytest.raises(CallAborted, match=f"^{kind} call 'index' had not ended when close"):
        await task
    assert account(scheduler, kind).cancelled == 1
    assert armed_timers() == []


async def test_what_still_waits_at_the_timeout_is_refused() -> None:
    scheduler = make_scheduler()
    running = [hold(scheduler), hold(scheduler)]
    waiting = [hold(scheduler) for _ in range(3)]
    await settle()

    report = await scheduler.close(timeout=3)

    assert [await outcome(held.task) for held in running] == [CallAborted] * 2
    assert [await outcome(held.task) for held in waiting] == [SchedulerClosed] * 3
    assert not any(held.started for held in waiting)
    assert report == CloseReport(rejected=3, cancelled=2)


async def test_a_paused_kind_is_refused_at_the_timeout() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    waiting = hold(scheduler)
    await settle()

    assert await scheduler.close(timeout=3) == CloseReport(rejected=1)

    assert await outcome(waiting.task) is SchedulerClosed


async def test_the_constructors_close_timeout_holds_for_a_close_that_gives_none() -> None:
    lasted: list[float] = []
    for scheduler in (
        make_scheduler(),
        make_scheduler(close_timeout=7),
        make_scheduler(close_timeout=None),
    ):
        task = start(scheduler.submit("batch", for_seconds, 100))
        await settle()
        began = now()
        await scheduler.close()
        lasted.append(now() - began)
        await asyncio.wait([task])

    assert lasted == [20, 7, 100]


@pytest.mark.parametrize("timeout", [None, float("inf")])
async def test_a_close_without_bound_waits_as_long_as_it_takes(timeout: float | None) -> None:
    scheduler = make_scheduler(close_timeout=1)
    task = start(scheduler.submit("batch", for_seconds, 10_000))
    await settle()

    assert await scheduler.close(timeout=timeout) == CloseReport(finished=1)

    assert await task == 10_000


async def test_a_close_without_patience_cancels_in_the_next_pass() -> None:
    scheduler = make_scheduler()
    running, waiting = hold(scheduler, "batch"), hold(scheduler, "batch")
    await settle()
    began = now()

    report = await scheduler.close(timeout=0)

    assert now() == began
    assert report == CloseReport(rejected=1, cancelled=1)
    assert await outcome(running.task) is CallAborted
    assert await outcome(waiting.task) is SchedulerClosed


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), True, "5", float("-inf")], ids=repr)
async def test_an_impossible_timeout_is_refused_and_the_scheduler_stays_open(timeout: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(ConfigError, match="timeout must be"):
        await scheduler.close(timeout=timeout)

    await assert_whole(scheduler)


async def test_a_call_that_cleans_up_within_a_second_is_waited_for_and_not_abandoned() -> None:
    scheduler = make_scheduler()
    task = start(scheduler.submit("batch", cleans_up, 0.75))
    await settle()
    began = now()

    assert await scheduler.close(timeout=3) == CloseReport(cancelled=1)

    assert now() - began == 3.75
    assert await outcome(task) is CallAborted


async def test_a_call_that_swallows_its_cancel_is_abandoned_after_a_second_and_keeps_its_slot() -> None:
    scheduler = make_scheduler()
    stop = asyncio.Event()
    task = start(scheduler.submit("batch", deaf, stop))
    other = start(scheduler.submit("interactive", forever))
    await settle()
    began = now()

    report = await scheduler.close(timeout=3)

    assert now() - began == 4
    assert report == CloseReport(cancelled=1, abandoned=1)
    assert await outcome(other) is CallAborted
    assert scheduler.snapshot().batch_running == 1
    stop.set()
    assert await task == "done after all"
    assert account(scheduler, "batch").completed == 1
    assert await scheduler.close() == report


@pytest.mark.parametrize("timeouts", [(2, 9), (9, 2), (2, None), (None, 2), (2, 2)], ids=str)
async def test_of_two_closes_at_once_the_earlier_deadline_wins_and_both_report_the_same(
    timeouts: tuple[float | None, float | None],
) -> None:
    scheduler = make_scheduler()
    task = start(scheduler.submit("batch", forever))
    await settle()
    began = now()

    reports = await asyncio.gather(*[scheduler.close(timeout=timeout) for timeout in timeouts])

    assert now() - began == 2
    assert reports == [CloseReport(cancelled=1)] * 2
    assert await outcome(task) is CallAborted


async def test_a_second_close_may_shorten_the_first_and_never_prolong_it() -> None:
    scheduler = make_scheduler()
    task = start(scheduler.submit("batch", forever))
    await settle()
    began = now()
    first = start(scheduler.close(timeout=10))
    await asyncio.sleep(1)
    second = start(scheduler.close(timeout=3))
    await asyncio.sleep(1)
    third = start(scheduler.close(timeout=100))

    assert [await closing for closing in (first, second, third)] == [CloseReport(cancelled=1)] * 3
    assert now() - began == 4
    assert await outcome(task) is CallAborted


def _all_sorts(stop: asyncio.Event) -> list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]]:
    """Kind, function, arguments and options of calls that end in every way there is."""
    return [
        ("interactive", for_seconds, (1,), {}),
        ("interactive", forever, (), {"run_timeout": 2}),
        ("batch", deaf, (stop,), {}),
        ("batch", cleans_up, (0.5,), {"run_timeout": 5}),
        ("batch", for_seconds, (4,), {}),
        ("interactive", cleans_up, (0.75,), {"run_timeout": 50}),
        ("interactive", for_seconds, (2,), {}),
        ("interactive", for_seconds, (2,), {"queue_timeout": 0.5}),
        ("batch", for_seconds, (2,), {}),
        ("batch", for_seconds, (2,), {"queue_timeout": 1.5}),
        ("batch", forever, (), {"run_timeout": 1}),
    ]


@pytest.mark.parametrize("timeout", [0, 1, 2.5, 5, 5.5, 60, None])
@pytest.mark.parametrize("finish_queued", [(), ("interactive",), ("batch",), ("interactive", "batch")], ids=str)
async def test_the_report_adds_up_to_the_calls_that_were_there(timeout: float | None, finish_queued: Any) -> None:
    scheduler = make_scheduler(max_concurrency=6)
    stop = asyncio.Event()
    jobs = _all_sorts(stop)
    earlier = [start(scheduler.submit("batch", noop)) for _ in range(3)]
    await settle()
    tasks = [start(scheduler.submit(kind, job, *args, **options)) for kind, job, args, options in jobs]
    await settle()
    asyncio.get_running_loop().call_later(55, stop.set)

    report = await scheduler.close(timeout=timeout, finish_queued=finish_queued)

    assert report.finished + report.rejected + report.cancelled + report.abandoned == len(jobs)
    outcomes = [await outcome(task) for task in tasks]
    assert report.rejected == outcomes.count(SchedulerClosed) + outcomes.count(QueueTimeout)
    assert report.cancelled == outcomes.count(CallAborted)
    assert report.abandoned == (0 if timeout is None or timeout >= 55 else 1)
    assert report.finished == outcomes.count(RunTimeout) + outcomes.count(None) - report.abandoned
    assert all(task.done() for task in earlier)
    account(scheduler, "interactive")
    account(scheduler, "batch")


async def test_a_call_that_got_its_slot_and_has_not_woken_when_the_time_is_over_never_runs() -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    waiting = hold(scheduler)
    await settle()

    # In the next pass the first call's task hands its slot on, and close() cancels, in this order.
    first.release()
    closing = scheduler.close(timeout=0)
    closing.send(None)
    report = await scheduler.close()

    assert [await outcome(held.task) for held in (first, second, waiting)] == [None, CallAborted, CallAborted]
    assert not waiting.started
    assert report == CloseReport(finished=1, cancelled=2)
    assert account(scheduler, "interactive").cancelled == 2
    scheduler.check()
    closing.close()
