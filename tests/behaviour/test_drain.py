"""drain() returns once the scheduler has been idle at any instant after the call, and refuses nobody.

Promise 24; and that drain, close and the rest go together in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llm_traffic_scheduler import CallAborted, QueueTimeout, SchedulerClosed, SchedulerMisuse, TrafficScheduler
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.support import armed_timers, hold, make_scheduler, noop, now, other_tasks, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_scheduler_that_is_idle_drains_without_giving_the_loop_a_turn() -> None:
    never_used, used = make_scheduler(), make_scheduler()
    await used.submit("batch", noop)

    for scheduler in (never_used, used):
        with pytest.raises(StopIteration):
            scheduler.drain().send(None)


@each_door
@each_kind
async def test_drain_waits_for_what_runs_and_what_waits(run: Door, kind: str) -> None:
    scheduler = make_scheduler()
    began = now()
    tasks = [start(run(scheduler, kind, asyncio.sleep, 2)) for _ in range(4)]
    await settle()

    await scheduler.drain()

    assert now() - began == (4 if kind == "interactive" else 8)
    assert all(task.done() for task in tasks)
    assert armed_timers() == []
    assert other_tasks() == set()


async def test_drain_returns_if_the_scheduler_was_idle_for_an_instant_although_it_is_busy_again() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    await settle()
    draining = start(scheduler.drain())
    await settle()
    refilled: list[bool] = []

    async def refill() -> None:
        await first.task  # woken in the very pass in which drain() is
        hold(scheduler, name="second")
        refilled.append(True)

    refilling = start(refill())
    await settle()
    first.release()
    await asyncio.wait([draining, refilling])

    assert draining.exception() is None
    assert scheduler.snapshot().running == len(refilled) == 1


async def test_drain_does_not_return_while_one_call_hands_over_to_the_next() -> None:
    scheduler = make_scheduler()
    current = hold(scheduler)
    await settle()
    draining = start(scheduler.drain())

    for _ in range(5):
        following = hold(scheduler)
        await settle()
        current.release()
        await settle()
        assert not draining.done()
        current = following
    current.release()

    await draining


@each_door
async def test_drain_refuses_nobody(run: Door) -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()
    draining = start(scheduler.drain())
    await settle()

    await run(scheduler, "interactive", noop)
    await run(scheduler, "batch", noop)

    held.release()
    await draining
    await assert_whole(scheduler)


async def test_two_drains_at_once_both_return() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()
    drains = [start(scheduler.drain()) for _ in range(2)]
    await settle()

    held.release()

    await asyncio.gather(*drains)


async def test_a_cancelled_drain_disturbs_neither_the_calls_nor_another_drain() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()
    leaver, stayer = start(scheduler.drain()), start(scheduler.drain())
    await settle()

    leaver.cancel()
    await settle()
    assert leaver.cancelled()
    assert not stayer.done()

    held.release()
    await stayer
    await assert_whole(scheduler)


async def test_a_drain_cancelled_in_the_pass_in_which_the_last_call_ends_disturbs_nobody() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()
    leaver, stayer = start(scheduler.drain()), start(scheduler.drain())
    await settle()
    held.task.add_done_callback(lambda _: leaver.cancel())

    held.release()

    await stayer
    assert await outcome(leaver) in (None, asyncio.CancelledError)
    await assert_whole(scheduler)


async def test_a_drain_cancelled_just_before_the_last_call_ends_disturbs_nobody() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)
    await settle()
    leaver, stayer = start(scheduler.drain()), start(scheduler.drain())
    await settle()

    # One pass from here: first the cancel, then the end of the call, and only then the leaver wakes.
    asyncio.get_running_loop().call_soon(leaver.cancel)
    held.release()

    await stayer
    assert await outcome(leaver) is asyncio.CancelledError
    assert await held.task
    await assert_whole(scheduler)


@pytest.mark.parametrize("ending", ["cancelled", "timed out", "refused"])
async def test_drain_returns_when_the_last_call_leaves_the_queue_without_running(ending: str) -> None:
    scheduler = make_scheduler()
    scheduler.pause("batch")
    waiting = hold(scheduler, "batch", queue_timeout=5)
    await settle()
    draining = start(scheduler.drain())
    await settle()
    assert not draining.done()

    if ending == "cancelled":
        waiting.cancel()
    elif ending == "refused":
        await scheduler.close(timeout=0)

    await draining
    expected = {"cancelled": asyncio.CancelledError, "timed out": QueueTimeout, "refused": SchedulerClosed}
    assert await outcome(waiting.task) is expected[ending]


async def test_drain_while_paused_returns_only_after_the_resume() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    waiting = hold(scheduler)
    await settle()
    draining = start(scheduler.drain())
    await asyncio.sleep(1_000)
    assert not draining.done()

    scheduler.resume("interactive")
    await settle()
    waiting.release()

    await draining


@each_door
async def test_drain_from_inside_a_slot_is_misuse(run: Door) -> None:
    scheduler = make_scheduler()

    async def job() -> None:
        with pytest.raises(SchedulerMisuse, match="would wait for itself"):
            await scheduler.drain()
        with pytest.raises(SchedulerMisuse, match="started outside"):
            await asyncio.create_task(scheduler.drain())

    await run(scheduler, "batch", job)
    await assert_whole(scheduler)


@each_door
async def test_drain_from_inside_another_schedulers_slot_is_no_misuse(run: Door) -> None:
    await run(make_scheduler(), "batch", make_scheduler().drain)


@each_door
async def test_a_child_task_may_drain_once_its_parents_call_has_ended(run: Door) -> None:
    scheduler = make_scheduler()
    gate = asyncio.Event()
    children: list[asyncio.Task[None]] = []

    async def child() -> None:
        await gate.wait()
        await scheduler.drain()

    async def job() -> None:
        children.append(asyncio.create_task(child()))

    await run(scheduler, "batch", job)
    gate.set()

    await children[0]


async def test_drain_and_close_wait_side_by_side() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler, "batch")
    await settle()
    draining, closing = start(scheduler.drain()), start(scheduler.close(timeout=3))

    assert await outcome(held.task) is CallAborted
    await draining
    assert (await closing).cancelled == 1
    await scheduler.drain()


async def _context_manager(scheduler: TrafficScheduler) -> None:
    async with scheduler:
        pass


async def _steer(scheduler: TrafficScheduler) -> None:
    scheduler.configure(max_concurrency=3)
    scheduler.pause("batch")
    scheduler.resume("batch")
    scheduler.configure(max_concurrency=2)


async def _look(scheduler: TrafficScheduler) -> None:
    scheduler.snapshot()
    scheduler.explain()
    scheduler.calls()


async def _slot(scheduler: TrafficScheduler) -> None:
    async with scheduler.slot("interactive"):
        await asyncio.sleep(0)


_ACTIONS: dict[str, Callable[[TrafficScheduler], Coroutine[Any, Any, Any]]] = {
    "submit": lambda scheduler: scheduler.submit("batch", asyncio.sleep, 0),
    "slot": _slot,
    "drain": lambda scheduler: scheduler.drain(),
    "close": lambda scheduler: scheduler.close(),
    "close at once": lambda scheduler: scheduler.close(timeout=0, finish_queued=()),
    "async with": _context_manager,
    "steer": _steer,
    "look": _look,
}


def _background(scheduler: TrafficScheduler) -> list[asyncio.Task[Any]]:
    return [start(scheduler.submit("batch", asyncio.sleep, 0.5)) for _ in range(2)]


whether_busy = pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
each_first = pytest.mark.parametrize("first", list(_ACTIONS))

_CLOSING = ("close", "close at once", "async with")
_CLEAR: dict[str, tuple[type[Exception], ...]] = {
    "submit": (SchedulerClosed, CallAborted),
    "slot": (SchedulerClosed, CallAborted),
    "async with": (SchedulerMisuse,),  # a closed scheduler stays closed
}


@whether_busy
@each_first
async def test_whatever_comes_after_it_gives_a_result_or_a_clear_error(first: str, busy: bool) -> None:
    for second in _ACTIONS:
        scheduler = make_scheduler()
        background = _background(scheduler) if busy else []
        await settle()
        began = now()

        endings = [await outcome(_ACTIONS[name](scheduler)) for name in (first, second)]

        refusals = {"submit": SchedulerClosed, "slot": SchedulerClosed, "async with": SchedulerMisuse}
        assert endings == [None, refusals.get(second) if first in _CLOSING else None], second
        assert now() - began <= 1, second
        await asyncio.wait([*background, start(noop())])
        scheduler.check()


@whether_busy
@each_first
async def test_whatever_comes_at_the_same_time_gives_a_result_or_a_clear_error(first: str, busy: bool) -> None:
    for second in _ACTIONS:
        scheduler = make_scheduler()
        background = _background(scheduler) if busy else []
        await settle()
        began = now()

        tasks = {name: start(_ACTIONS[name](scheduler)) for name in (first, second)}
        endings = {name: await outcome(task) for name, task in tasks.items()}

        for name, ending in endings.items():
            assert ending in _CLEAR.get(name, ()) or ending is None, second
        assert now() - began <= 2, second
        await asyncio.wait([*background, start(noop())])
        await settle()
        scheduler.check()
        snapshot = scheduler.snapshot()
        assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (0, 0, 0), second
        assert armed_timers() == [], second
        assert other_tasks() == set(), second
