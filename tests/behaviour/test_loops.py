"""One scheduler, several event loops: it moves to the running one when its own is closed or stands still.

Promise 25. What became of the old loop's calls: test_loop_ends.py. Forks: test_forks.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import CloseReport, PressurePolicy, SchedulerMisuse, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual
from tests.behaviour.doors import Door, assert_whole, each_door, start
from tests.behaviour.left_behind import Left
from tests.support import account, hold, make_scheduler, noop, settle

AT_IMPORT = TrafficScheduler(max_concurrency=2, name="made at import")


@pytest.fixture
def two_loops() -> Iterator[tuple[VirtualTimeLoop, VirtualTimeLoop]]:
    loops = (VirtualTimeLoop(), VirtualTimeLoop())
    yield loops
    for loop in loops:
        loop.close()


def test_a_scheduler_is_made_and_looked_at_outside_of_any_loop() -> None:
    assert AT_IMPORT.snapshot().running == 0
    assert AT_IMPORT.calls() == ()
    assert "0 of 2 slots" in AT_IMPORT.explain()
    assert current_slot() is None
    AT_IMPORT.configure(batch_queue_timeout=600)
    AT_IMPORT.check()

    run_virtual(assert_whole(AT_IMPORT))


@each_door
@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, VirtualTimeLoop])
def test_a_scheduler_works_in_several_runs_one_after_another(
    run: Door, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    scheduler = make_scheduler()

    async def contention() -> int:
        tasks = [start(run(scheduler, "interactive", settle)) for _ in range(6)]
        await asyncio.gather(*tasks)
        await assert_whole(scheduler)
        return scheduler.snapshot().interactive.sample_count

    counts = []
    for _ in range(3):
        with asyncio.Runner(loop_factory=make_loop) as runner:
            counts.append(runner.run(contention()))

    assert counts == [9, 9, 9]  # the window starts afresh, six calls and three of assert_whole
    assert scheduler.snapshot().totals["interactive"].completed == 27  # the totals do not


@each_door
def test_after_a_run_that_ended_in_the_middle_of_everything_all_slots_are_there(run: Door) -> None:
    scheduler = make_scheduler()

    async def ends_early() -> None:
        for kind in ("interactive", "batch") * 3:
            start(run(scheduler, kind, asyncio.Event().wait, run_timeout=60, queue_timeout=60)).get_name()
        await settle()

    run_virtual(ends_early())

    totals = [account(scheduler, kind).cancelled for kind in ("interactive", "batch")]
    assert totals == [3, 3]
    run_virtual(assert_whole(scheduler))


@each_door
def test_late_ends_in_a_loop_that_stood_still_change_nothing(
    run: Door, two_loops: tuple[VirtualTimeLoop, VirtualTimeLoop]
) -> None:
    scheduler = make_scheduler()
    left = Left(scheduler, run)

    async def meanwhile() -> list[Any]:
        tasks = [hold(scheduler), hold(scheduler)]
        await settle()
        return tasks

    _, second = two_loops
    held = second.run_until_complete(meanwhile())
    before = scheduler.snapshot()
    endings = left.finish()

    assert endings == [None, None] + [asyncio.CancelledError] * 4
    assert scheduler.snapshot() == before
    assert (before.running, before.totals["interactive"].cancelled, before.totals["batch"].cancelled) == (2, 4, 2)

    async def go_on() -> None:
        for call in held:
            call.release()
        await assert_whole(scheduler)

    second.run_until_complete(go_on())


def test_late_timers_of_a_loop_that_stood_still_change_nothing(
    two_loops: tuple[VirtualTimeLoop, VirtualTimeLoop],
) -> None:
    scheduler = make_scheduler()
    first, second = two_loops

    async def begin() -> list[asyncio.Task[Any]]:
        options: dict[str, Any] = {"queue_timeout": 5, "run_timeout": 5}
        tasks = [start(scheduler.submit("interactive", asyncio.Event().wait, **options)) for _ in range(4)]
        tasks.append(start(scheduler.close(timeout=7)))
        await settle()
        return tasks

    async def later(tasks: list[asyncio.Task[Any]]) -> None:
        await asyncio.sleep(20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    tasks = first.run_until_complete(begin())
    second.run_until_complete(scheduler.drain())
    before = scheduler.snapshot()
    first.run_until_complete(later(tasks))

    assert scheduler.snapshot().totals == before.totals
    assert account(scheduler, "interactive").cancelled == 4


@pytest.mark.parametrize("timeout", [3, None])
def test_a_close_whose_scheduler_moved_on_returns_when_its_loop_goes_on(
    timeout: float | None, two_loops: tuple[VirtualTimeLoop, VirtualTimeLoop]
) -> None:
    scheduler = make_scheduler()
    first, second = two_loops

    async def begin() -> asyncio.Task[CloseReport]:
        hold(scheduler)
        await settle()
        closing: asyncio.Task[CloseReport] = start(scheduler.close(timeout=timeout))
        await settle()
        return closing

    closing = first.run_until_complete(begin())
    second.run_until_complete(scheduler.drain())

    report = first.run_until_complete(closing)
    assert report == CloseReport(finished=1)
    assert second.run_until_complete(scheduler.close()) == report


def test_window_and_policy_start_afresh_on_another_loop_and_settings_pauses_and_listeners_stay() -> None:
    scheduler = TrafficScheduler(max_concurrency=4, policy=PressurePolicy(rps_threshold=1, smoothing=5))
    events: list[Any] = []
    scheduler.add_listener(events.append)

    async def busy() -> float:
        for _ in range(40):
            await scheduler.submit("interactive", asyncio.sleep, 0.1)
        scheduler.configure(interactive_queue_timeout=7)
        scheduler.pause("batch")
        return scheduler.snapshot().pressure

    async def look() -> tuple[float, int, int, frozenset[str]]:
        await scheduler.submit("interactive", noop, observe=False)
        snapshot = scheduler.snapshot()
        return snapshot.pressure, snapshot.interactive.sample_count, snapshot.batch_limit, snapshot.paused

    assert run_virtual(busy()) > 1
    told = len(events)
    assert run_virtual(look(), start=1_000_000.0) == (0.0, 0, 3, frozenset({"batch"}))
    assert len(events) > told


@pytest.mark.parametrize("clocks", [(0.0, 1e9), (1e9, 0.0)], ids=["forward", "backward"])
def test_a_loop_with_another_clock_is_no_jump_in_time(clocks: tuple[float, float]) -> None:
    scheduler = make_scheduler(interactive_queue_timeout=5)

    async def use() -> float:
        blockers = [hold(scheduler), hold(scheduler)]
        await settle()
        waiting = hold(scheduler)
        await asyncio.sleep(4)
        assert not waiting.task.done()
        for held in (*blockers, waiting):
            held.release()
        await waiting.task
        return scheduler.snapshot().interactive.p99

    for clock in clocks:
        assert run_virtual(use(), start=clock) == pytest.approx(4.0, rel=0.01)


def _in_a_second_loop(call: Callable[[], Coroutine[Any, Any, Any]]) -> list[BaseException | None]:
    """How `call()` ends in a loop of its own, in another thread, while this one stands where it is."""
    endings: list[BaseException | None] = []

    def work() -> None:
        try:
            asyncio.run(call())
        except BaseException as error:
            endings.append(error)
        else:
            endings.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return endings


@pytest.mark.parametrize("name", ["submit", "slot", "drain", "close"])
async def test_a_second_running_loop_is_misuse_while_the_first_is_busy(name: str) -> None:
    scheduler = make_scheduler(name="chat")
    held = hold(scheduler)
    await settle()

    async def slot() -> None:
        async with scheduler.slot("batch"):
            pass

    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "submit": lambda: scheduler.submit("batch", noop),
        "slot": slot,
        "drain": scheduler.drain,
        "close": scheduler.close,
    }
    (error,) = _in_a_second_loop(calls[name])

    assert isinstance(error, SchedulerMisuse)
    assert str(error).startswith("scheduler 'chat' is in use on another running event loop: ")
    assert scheduler.snapshot().running == 1
    held.release()
    await assert_whole(scheduler)  # and it is not closed


async def test_an_idle_scheduler_moves_to_a_second_running_loop_and_back() -> None:
    scheduler = make_scheduler()
    await scheduler.submit("interactive", noop)

    assert _in_a_second_loop(lambda: scheduler.submit("interactive", noop)) == [None]
    await assert_whole(scheduler)

    assert account(scheduler, "interactive").completed == 2 + 3
