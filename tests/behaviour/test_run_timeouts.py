"""`run_timeout` bounds the run, and the slot stays taken until the call has really ended.

Promise 13, its second half.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import CallFinished, ConfigError, RunTimeout
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, now, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


async def forever() -> None:
    await asyncio.Event().wait()


@each_door
@each_kind
async def test_a_call_that_runs_too_long_ends_with_run_timeout_at_that_instant(run: Door, kind: str) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    began = now()

    with pytest.raises(RunTimeout) as caught:
        await run(scheduler, kind, forever, run_timeout=2.5, label="summary")

    assert now() - began == 2.5
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert str(caught.value).startswith(f"{kind} call 'summary' of scheduler 'default' ran longer than 2.5 s")
    assert [(event.outcome, event.ran) for event in recorder.of(CallFinished)] == [("timed_out", 2.5)]
    assert account(scheduler, kind).timed_out == 1
    await assert_whole(scheduler)


@each_door
async def test_the_time_in_the_queue_does_not_count(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    task = start(run(scheduler, "interactive", asyncio.sleep, 1.5, run_timeout=2))
    await asyncio.sleep(100)
    for held in blockers:
        held.release()

    await task
    assert account(scheduler, "interactive").completed == 3


@each_door
async def test_the_run_timeout_of_a_call_that_waited_begins_with_its_slot(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    task = start(run(scheduler, "interactive", forever, run_timeout=2))
    await asyncio.sleep(100)
    released = now()
    for held in blockers:
        held.release()

    with pytest.raises(RunTimeout):
        await task
    assert now() - released == 2


@each_door
async def test_a_call_that_ends_in_time_leaves_no_timer(run: Door) -> None:
    scheduler = make_scheduler()

    await run(scheduler, "interactive", noop, run_timeout=60)
    await run(scheduler, "batch", asyncio.sleep, 1, run_timeout=60)
    with pytest.raises(ZeroDivisionError):
        await run(scheduler, "batch", _divide_by_zero, run_timeout=60)

    assert armed_timers() == []


async def _divide_by_zero() -> float:
    return 1 / 0


@each_door
async def test_the_constructors_run_timeouts_hold_for_calls_that_give_none(run: Door) -> None:
    scheduler = make_scheduler(interactive_run_timeout=1, batch_run_timeout=3)
    began = now()

    async def lasts(kind: str, **options: float) -> float:
        before = now()
        with pytest.raises(RunTimeout):
            await run(scheduler, kind, forever, **options)
        return now() - before

    assert await lasts("interactive") == 1
    assert await lasts("batch") == 3
    assert await lasts("batch", run_timeout=0.5) == 0.5
    scheduler.configure(batch_run_timeout=2)
    assert await lasts("batch") == 2
    assert now() - began == 6.5


@each_door
async def test_an_infinite_run_timeout_overrides_the_constructors(run: Door) -> None:
    scheduler = make_scheduler(batch_run_timeout=3)

    await run(scheduler, "batch", asyncio.sleep, 100, run_timeout=float("inf"))

    assert account(scheduler, "batch").completed == 1


@each_door
@pytest.mark.parametrize("value", [0, -1, -0.0, float("nan"), float("-inf"), True, "5", object()], ids=repr)
async def test_an_impossible_run_timeout_is_refused_at_the_door(run: Door, value: Any) -> None:
    scheduler = make_scheduler()
    called: list[None] = []

    async def job() -> None:
        called.append(None)

    with pytest.raises(ConfigError, match="run_timeout must be"):
        await run(scheduler, "batch", job, run_timeout=value)

    assert called == []
    assert account(scheduler, "batch").submitted == 0


@each_door
async def test_the_slot_stays_taken_until_a_timed_out_call_has_cleaned_up(run: Door) -> None:
    scheduler = make_scheduler()
    began = now()

    async def careful() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(5)

    task = start(run(scheduler, "batch", careful, run_timeout=1, label="careful"))
    await asyncio.sleep(3)
    during = scheduler.snapshot()
    states = [call.state for call in scheduler.calls()]

    with pytest.raises(RunTimeout):
        await task
    assert now() - began == 6
    assert (during.batch_running, during.overdue, states) == (1, 1, ["overdue"])
    assert scheduler.snapshot().overdue == 0
    await assert_whole(scheduler)


async def _answers_late() -> str:
    try:
        await forever()
    except asyncio.CancelledError:
        await asyncio.sleep(1)
    return "a late answer"


async def _fails_late() -> str:
    try:
        await forever()
    except asyncio.CancelledError:
        raise ConnectionError("the backend hung up") from None
    return ""


async def _gives_up_by_itself() -> str:
    try:
        await forever()
    except asyncio.CancelledError:
        raise TimeoutError("the client's own") from None
    return ""


@each_door
@each_kind
async def test_a_result_that_comes_in_spite_of_the_timeout_stands(run: Door, kind: str) -> None:
    scheduler = make_scheduler()

    assert await run(scheduler, kind, _answers_late, run_timeout=1) == "a late answer"

    assert account(scheduler, kind).completed == 1
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("job, expected", [(_fails_late, ConnectionError), (_gives_up_by_itself, TimeoutError)])
async def test_an_exception_of_the_calls_own_stands_in_spite_of_the_timeout(
    run: Door, job: Callable[[], Awaitable[str]], expected: type[Exception]
) -> None:
    scheduler = make_scheduler()

    with pytest.raises(expected) as caught:
        await run(scheduler, "batch", job, run_timeout=1)

    assert type(caught.value) is expected
    assert account(scheduler, "batch").failed == 1
    await assert_whole(scheduler)


@each_door
async def test_a_timeout_error_of_the_calls_own_is_no_run_timeout(run: Door) -> None:
    scheduler = make_scheduler()

    async def impatient() -> None:
        async with asyncio.timeout(1):
            await forever()

    with pytest.raises(TimeoutError) as caught:
        await run(scheduler, "interactive", impatient, run_timeout=2)

    assert type(caught.value) is TimeoutError
    assert account(scheduler, "interactive").failed == 1
    assert armed_timers() == []


@each_door
async def test_a_call_that_ignores_its_timeout_shows_as_overdue_and_blocks_only_its_own_slot(run: Door) -> None:
    scheduler = make_scheduler()
    stop = asyncio.Event()

    async def deaf() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    task = start(run(scheduler, "batch", deaf, run_timeout=1, label="deaf"))
    await asyncio.sleep(10)
    await run(scheduler, "interactive", noop)
    waiting = start(run(scheduler, "batch", noop))
    await settle()
    snapshot = scheduler.snapshot()

    assert (snapshot.overdue, snapshot.batch_running, snapshot.batch_queued) == (1, 1, 1)
    assert "1 past its run timeout runs on" in scheduler.explain()
    stop.set()
    await asyncio.gather(task, waiting)
    await assert_whole(scheduler)


@each_door
async def test_a_call_is_overdue_from_the_instant_of_its_timeout(run: Door) -> None:
    scheduler = make_scheduler()
    started = now()
    overdue: list[tuple[float, int]] = []

    async def watched() -> None:
        await asyncio.sleep(0.5)
        overdue.append((now() - started, scheduler.snapshot().overdue))
        try:
            await forever()
        finally:
            await asyncio.sleep(0.5)
            overdue.append((now() - started, scheduler.snapshot().overdue))

    with pytest.raises(RunTimeout):
        await run(scheduler, "batch", watched, run_timeout=1)

    assert overdue == [(0.5, 0), (1.5, 1)]


@each_door
async def test_a_call_whose_time_is_over_before_it_wakes_still_ends_by_its_timeout(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    task = start(run(scheduler, "batch", forever, run_timeout=1e-9))
    await settle()
    for held in blockers:
        held.release()

    with pytest.raises(RunTimeout):
        await task
    await assert_whole(scheduler)


async def test_a_timed_out_call_that_has_not_ended_keeps_others_out() -> None:
    scheduler = make_scheduler()
    inside: set[int] = set()
    most = 0

    async def slow_to_go(number: int) -> None:
        nonlocal most
        inside.add(number)
        most = max(most, len(inside))
        try:
            await forever()
        finally:
            await asyncio.sleep(0.3)
            inside.remove(number)

    calls = [scheduler.submit("interactive", slow_to_go, number, run_timeout=0.2) for number in range(12)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {RunTimeout}
    assert most == 2
    await assert_whole(scheduler)


async def test_run_timeouts_are_fresh_for_each_call_and_survive_pickling() -> None:
    scheduler = make_scheduler()
    errors: list[RunTimeout] = []

    for _ in range(2):
        with pytest.raises(RunTimeout) as caught:
            await scheduler.submit("batch", forever, run_timeout=1)
        errors.append(caught.value)

    assert errors[0] is not errors[1]
    copy = pickle.loads(pickle.dumps(errors[0]))
    assert (type(copy), str(copy)) == (RunTimeout, str(errors[0]))
