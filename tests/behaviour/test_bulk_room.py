"""`map` and `as_completed` wait for room in a queue that has a bound, and take none from others: promise 21."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from llm_traffic_scheduler import CallQueued, QueueFull, QueueTimeout, SchedulerClosed, current_slot, traffic
from tests.behaviour.doors import assert_whole, each_kind, outcome, start
from tests.support import Recorder, account, hold, make_scheduler, now, settle


async def second(_: object = None) -> float:
    await asyncio.sleep(1.0)
    return now()


@each_kind
@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
async def test_no_more_of_its_calls_wait_than_the_bound_allows_and_none_is_refused(kind: Any, bound: int) -> None:
    bounds: dict[str, Any] = {f"max_queued_{kind}": bound}
    scheduler = make_scheduler(max_concurrency=4, batch_max_concurrency=3, **bounds)
    most = 0

    async def look(_: int) -> None:
        nonlocal most
        await asyncio.sleep(1.0)
        seen = scheduler.snapshot()
        most = max(most, seen.batch_queued, seen.interactive_queued)

    assert len([each async for each in scheduler.map(kind, look, range(24), buffer=12)]) == 24

    assert most == max(1, bound)
    assert now() == 24 / (3 if kind == "batch" else 4)  # no slot stood empty meanwhile
    assert account(scheduler, kind).rejected == 0
    scheduler.configure(max_queued_batch=None, max_queued_interactive=None)
    await assert_whole(scheduler)


@each_kind
async def test_others_are_not_refused_because_of_it_and_the_bound_holds_for_them(kind: Any) -> None:
    bounds: dict[str, Any] = {f"max_queued_{kind}": 2}
    scheduler = make_scheduler(**bounds)
    blockers = [hold(scheduler, "interactive"), hold(scheduler, kind)]
    everything = start(_list(scheduler.as_completed(kind, second, range(9), buffer=9)))
    await settle()

    others = [start(scheduler.submit(kind, second)) for _ in range(2)]
    await settle()
    with pytest.raises(QueueFull) as full:
        await scheduler.submit(kind, second)

    assert (full.value.queued, full.value.limit) == (2, 2)
    for blocker in blockers:
        blocker.release()
    assert [await outcome(other) for other in others] == [None, None]
    assert len(await everything) == 9
    await assert_whole(scheduler)


async def test_a_queue_that_others_keep_full_does_not_keep_it_out() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    blocker = hold(scheduler, "batch")
    other = start(scheduler.submit("batch", second))
    await settle()

    everything = start(_list(scheduler.map("batch", second, range(3))))
    await settle()
    late = start(scheduler.submit("batch", second))
    blocker.release()

    assert await everything == [2.0, 3.0, 4.0]
    assert await outcome(other) is None
    assert await outcome(late) is QueueFull
    await assert_whole(scheduler)


async def test_a_bound_that_is_set_while_it_runs_holds_for_what_comes_after() -> None:
    scheduler = make_scheduler()
    results = scheduler.map("batch", second, itertools.count(), buffer=8)
    await anext(results)

    scheduler.configure(max_queued_batch=2)
    for _ in range(12):
        await anext(results)
    assert scheduler.snapshot().batch_queued == 2
    scheduler.configure(max_queued_batch=None)
    for _ in range(12):
        await anext(results)
    assert scheduler.snapshot().batch_queued >= 6

    await results.aclose()
    await assert_whole(scheduler)


async def test_a_cancelled_item_leaves_the_line_and_passes_its_place_on() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    blocker = hold(scheduler, "batch")
    outcomes = scheduler.as_completed("batch", second, range(6), buffer=6, queue_timeout=10.0)
    everything = start(_list(outcomes))
    await settle()

    await asyncio.sleep(25.0)  # two have waited ten seconds each in the one place
    blocker.release()

    assert [type(each.error) for each in await everything] == [QueueTimeout] * 2 + [type(None)] * 4
    await assert_whole(scheduler)


@pytest.mark.parametrize("passes", range(6))
async def test_a_task_that_is_cancelled_around_its_turn_takes_no_place_with_it(passes: int) -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    blocker = hold(scheduler, "batch")
    before = asyncio.all_tasks()
    everything = start(_list(scheduler.as_completed("batch", second, range(6), buffer=6)))
    await settle()
    tasks = sorted(asyncio.all_tasks() - before - {everything}, key=lambda task: _number(task.get_name()))

    blocker.release()
    await settle(passes)
    for task in tasks[1:4]:
        task.cancel()

    assert len(await everything) == 6
    assert account(scheduler, "batch").rejected == 0
    await assert_whole(scheduler)


async def test_a_call_that_may_not_wait_has_a_queue_timeout_and_not_a_full_queue() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    hold(scheduler, "batch")
    other = start(scheduler.submit("batch", second))
    await settle()

    outcomes = [each async for each in scheduler.as_completed("batch", second, range(2), queue_timeout=0)]

    assert [type(each.error) for each in outcomes] == [QueueTimeout] * 2
    assert not other.done()


async def test_a_traffic_block_around_holds_for_calls_that_wait_for_room() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    blocker = hold(scheduler, "batch")
    ran: list[tuple[float, str | None]] = []

    async def note(number: float) -> None:
        slot = current_slot()
        assert slot is not None
        ran.append((number, slot.tenant))

    with traffic("batch", tenant="night", priority=-1, queue_timeout=2.0):
        outcomes = scheduler.as_completed(None, note, range(3), buffer=2)
    await settle()
    refused = await anext(outcomes)
    other = start(scheduler.submit("batch", note, 99))
    await settle()
    blocker.release()
    rest = await _list(outcomes)

    assert (type(refused.error), now()) == (QueueTimeout, 2.0)
    assert [each.error for each in rest] == [None, None]
    assert await outcome(other) is None
    assert ran[0] == (1, "night")
    assert sorted(ran, key=str) == [(1, "night"), (2, "night"), (99, None)]


async def test_close_refuses_those_in_the_queue_and_those_in_line() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    everything = start(_list(scheduler.as_completed("batch", second, range(5), buffer=5)))
    await settle()

    report = await scheduler.close()

    errors = [type(each.error) for each in await everything]
    assert sorted(errors, key=str) == sorted([type(None)] + [SchedulerClosed] * 4, key=str)
    assert (report.finished, report.rejected) == (1, 1)


async def test_listeners_hear_of_those_that_wait() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    recorder = Recorder(scheduler)

    await _list(scheduler.map("batch", second, range(3)))

    assert [type(event) for event in recorder.events].count(CallQueued) == 2


async def test_what_its_function_leaves_behind_is_turned_away_by_a_full_queue() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    left: list[asyncio.Task[Any]] = []

    async def straggler() -> None:
        await asyncio.sleep(10.0)
        assert current_slot() is None
        await scheduler.submit("batch", second)

    async def leave(_: int) -> None:
        left.append(start(straggler()))

    await _list(scheduler.map("batch", leave, range(1)))
    hold(scheduler, "batch")
    other = start(scheduler.submit("batch", second))
    await asyncio.sleep(10.0)

    assert await outcome(left[0]) is QueueFull
    assert not other.done()


async def test_preemptible_calls_wait_for_room_too() -> None:
    scheduler = make_scheduler(max_queued_batch=1)

    assert await _list(scheduler.map("batch", second, range(4), preemptible=True)) == [1.0, 2.0, 3.0, 4.0]
    await assert_whole(scheduler)


async def _list(results: Any) -> list[Any]:
    return [each async for each in results]


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
