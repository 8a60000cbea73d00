"""Calls inside of calls: promise 17. Nothing waits for itself, and a slot is given back once, whoever ends first."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CallQueued,
    CallStarted,
    QueueTimeout,
    RunTimeout,
    SchedulerMisuse,
    TrafficScheduler,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.surroundings import active, lineage
from tests.behaviour.doors import assert_whole, start
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, now, settle
from tests.unit.core.tracing import lines_run


def running_in(scheduler: TrafficScheduler) -> tuple[int, int]:
    snapshot = scheduler.snapshot()
    return snapshot.interactive_running, snapshot.batch_running


async def full(scheduler: TrafficScheduler, slots: int = 1) -> list[Any]:
    """Interactive calls in so many slots."""
    held = [hold(scheduler) for _ in range(slots)]
    await settle()
    return held


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_a_call_in_the_same_task_runs_in_the_slot_of_the_one_around_it(kind: Any) -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def child() -> tuple[int, int]:
        return running_in(scheduler)

    async def parent() -> tuple[int, int]:
        return await scheduler.submit("interactive", child)

    assert await scheduler.submit(kind, parent) == ((2, 0) if kind == "interactive" else (1, 1))
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_a_traffic_block_between_two_calls_does_not_part_them() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def child() -> tuple[int, int]:
        return running_in(scheduler)

    async def parent() -> tuple[int, int]:
        with traffic("batch"):
            return await scheduler.submit(None, child, queue_timeout=0)

    assert await scheduler.submit("interactive", parent) == (2, 0)
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_a_child_that_got_a_slot_of_its_own_wants_that_of_its_parent_no_more() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def parent() -> None:
        call = active.get()
        assert isinstance(call, Call)
        async with asyncio.TaskGroup() as children:
            for seconds in (9.0, 1.0):  # the first in the parent's slot, the second waits
                children.create_task(scheduler.submit("interactive", asyncio.sleep, seconds))
            await settle()
            assert call.nest().wanting
            other.release()
            await asyncio.sleep(0.5)
            assert running_in(scheduler) == (2, 0)
            assert not call.nest().wanting

    await scheduler.submit("interactive", parent)

    assert account(scheduler, "interactive").completed == 3
    await assert_whole(scheduler)


async def test_after_the_end_of_a_close_a_call_that_goes_on_submits_nothing_more() -> None:
    scheduler = make_scheduler()
    seen: list[str] = []

    async def stubborn() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(100)
        try:
            await scheduler.submit("interactive", noop)
        except Exception as error:
            seen.append(type(error).__name__)

    task = asyncio.create_task(scheduler.submit("interactive", stubborn))
    await settle()
    await scheduler.close(timeout=0)

    await task
    assert seen == ["SchedulerClosed"]


async def test_the_end_of_a_close_cancels_calls_that_share_a_task_once() -> None:
    scheduler = make_scheduler()
    seen: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            seen.append(f"{task.cancelling() if task else 0} cancel")
            raise

    async def outer() -> None:
        try:
            await scheduler.submit("interactive", inner)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    task = asyncio.create_task(scheduler.submit("interactive", outer))
    await settle()
    await scheduler.close(timeout=0)

    with pytest.raises(CallAborted):
        await task
    assert seen == ["1 cancel", "CancelledError"]


async def test_nested_calls_as_deep_as_one_likes_take_one_slot() -> None:
    scheduler = make_scheduler()

    async def down(depth: int) -> int:
        if not depth:
            return scheduler.snapshot().running
        return await scheduler.submit("batch", down, depth - 1)

    assert await asyncio.gather(*[scheduler.submit("batch", down, 40) for _ in range(5)]) == [1] * 5
    assert account(scheduler, "batch").completed == 5
    await assert_whole(scheduler)


async def test_parents_in_every_slot_whose_children_wait_for_slots_all_end() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    most = 0

    async def child() -> None:
        nonlocal most
        most = max(most, scheduler.snapshot().running)
        await asyncio.sleep(0.1)

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("interactive", child) for _ in range(6)])

    await asyncio.gather(*[scheduler.submit("interactive", parent) for _ in range(4)])

    assert now() == pytest.approx(0.6)  # one child at a time in each parent's slot
    assert most == 4
    assert account(scheduler, "interactive").completed == 4
    await assert_whole(scheduler)


async def test_a_child_task_takes_a_free_slot_if_it_may_and_is_then_a_call_like_any_other() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    recorder = Recorder(scheduler)

    async def child() -> int:
        return scheduler.snapshot().interactive_running

    async def parent() -> int:
        return await asyncio.create_task(scheduler.submit("interactive", child, label="child"))

    assert await scheduler.submit("interactive", parent, label="parent") == 2
    assert account(scheduler, "interactive").completed == 2
    assert scheduler.snapshot().interactive.rps == 0.2
    assert scheduler.snapshot().interactive.sample_count == 2
    assert recorder.names[:2] == ["CallStarted interactive parent", "CallStarted interactive child"]


async def test_a_call_in_a_lent_slot_is_no_arrival_no_sample_no_total_and_no_event() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    (other,) = await full(scheduler)
    before = scheduler.snapshot().interactive

    async def inner() -> None:
        await asyncio.sleep(1)

    async def parent() -> None:
        await scheduler.submit("interactive", inner, label="inner")
        await asyncio.gather(*[scheduler.submit("interactive", inner, label="inner") for _ in range(2)])

    await scheduler.submit("batch", parent, label="parent")

    assert scheduler.snapshot().interactive.rps == before.rps
    assert scheduler.snapshot().interactive.sample_count == 0
    assert account(scheduler, "interactive").submitted == 1
    assert account(scheduler, "batch").submitted == 1
    assert not [name for name in recorder.names if name.endswith("inner")]
    other.release()


async def test_interactive_calls_in_the_slot_of_an_interactive_one_are_no_traffic_of_their_own() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    (other,) = await full(scheduler)

    async def inner(give_way: bool) -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        if give_way:
            async with slot.released():
                other.release()
                await settle()

    async def parent() -> None:
        await scheduler.submit("interactive", inner, False)
        await asyncio.gather(*[scheduler.submit("interactive", inner, give_way) for give_way in (False, True)])

    await scheduler.submit("interactive", parent)

    # The one that held the other slot, and the parent.
    assert scheduler.snapshot().interactive.rps == 0.2
    assert scheduler.snapshot().interactive.sample_count == 2
    await assert_whole(scheduler)


async def test_waiting_children_are_listed_but_count_only_with_a_slot_of_their_own() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    (other,) = await full(scheduler)
    gate = asyncio.Event()

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("interactive", gate.wait, label=f"child {n}") for n in range(3)])

    task = asyncio.create_task(scheduler.submit("interactive", parent))
    await settle()
    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.interactive_queued, snapshot.totals["interactive"].submitted) == (2, 0, 2)
    assert [call.label for call in scheduler.calls() if call.state == "queued"] == ["child 1", "child 2"]
    assert snapshot.interactive.rps == 0.2

    other.release()
    await settle()
    assert scheduler.snapshot().totals["interactive"].submitted == 3
    assert scheduler.snapshot().interactive.rps == pytest.approx(0.3)
    gate.set()
    await task
    assert account(scheduler, "interactive").completed == 3
    await assert_whole(scheduler)


async def test_a_nested_call_of_the_parent_itself_waits_until_its_slot_is_back() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)
    order: list[str] = []

    async def step(name: str, seconds: float) -> None:
        order.append(f"{name} {now():g}")
        await asyncio.sleep(seconds)

    async def parent() -> None:
        child = asyncio.create_task(scheduler.submit("batch", step, "child", 2.0))
        await settle()
        await scheduler.submit("batch", step, "own", 1.0)
        await child

    await scheduler.submit("batch", parent)
    assert order == ["child 0", "own 2"]
    other.release()
    await other.task
    await assert_whole(scheduler)


@pytest.mark.parametrize("ends_first", ["parent", "child"])
async def test_a_lent_slot_is_given_back_once_whoever_ends_first(ends_first: str) -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)
    gates = {"parent": asyncio.Event(), "child": asyncio.Event()}
    seen: list[bool] = []
    tasks: list[asyncio.Task[Any]] = []

    async def child() -> None:
        await gates["child"].wait()
        seen.append(current_slot() is not None)

    async def parent() -> None:
        tasks.append(asyncio.create_task(scheduler.submit("batch", child)))
        await gates["parent"].wait()

    tasks.append(asyncio.create_task(scheduler.submit("batch", parent)))
    await settle()
    waiting = hold(scheduler)
    await settle()
    gates[ends_first].set()
    await settle()
    assert not waiting.started
    assert scheduler.snapshot().running == 2
    scheduler.check()

    gates["child" if ends_first == "parent" else "parent"].set()
    await settle()
    assert waiting.started
    assert seen == [True]
    waiting.release()
    other.release()
    await asyncio.gather(*tasks)
    assert account(scheduler, "batch").submitted == account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


async def test_current_slot_is_that_of_the_innermost_call_and_none_when_its_call_has_ended() -> None:
    scheduler = make_scheduler()
    seen: dict[str, str | None] = {}
    late: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    def label() -> str | None:
        slot = current_slot()
        return None if slot is None else slot.label

    async def afterwards() -> None:
        await gate.wait()
        seen["afterwards"] = label()

    async def inner() -> None:
        seen["inner"] = label()
        late.append(asyncio.create_task(afterwards()))

    async def outer() -> None:
        await scheduler.submit("batch", inner, label="inner")
        seen["outer"] = label()

    await scheduler.submit("batch", outer, label="outer")
    gate.set()
    await asyncio.gather(*late)
    assert seen == {"inner": "inner", "outer": "outer", "afterwards": None}
    assert current_slot() is None


async def test_a_task_that_outlives_its_parent_call_takes_slots_like_anybody() -> None:
    scheduler = make_scheduler()
    gate = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def background() -> None:
        await gate.wait()
        await scheduler.submit("interactive", noop)

    async def parent() -> None:
        tasks.append(asyncio.create_task(background()))

    await scheduler.submit("interactive", parent)
    gate.set()
    await asyncio.gather(*tasks)
    assert account(scheduler, "interactive").completed == 2


async def test_run_timeout_applies_to_a_nested_call_and_leaves_the_parent_alone() -> None:
    scheduler = make_scheduler()

    async def parent() -> str:
        with pytest.raises(RunTimeout):
            await scheduler.submit("batch", asyncio.sleep, 9, run_timeout=1)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return "went on"

    assert await scheduler.submit("batch", parent) == "went on"
    assert account(scheduler, "batch").completed == 1
    assert now() == 1.0
    await assert_whole(scheduler)


async def test_the_parents_run_timeout_ends_the_nested_call_too() -> None:
    scheduler = make_scheduler()
    seen: list[type[BaseException]] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(9)
        except BaseException as error:
            seen.append(type(error))
            raise

    with pytest.raises(RunTimeout):
        await scheduler.submit("batch", scheduler.submit, "batch", inner, run_timeout=1)

    assert seen == [asyncio.CancelledError]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert account(scheduler, "batch").timed_out == 1
    await assert_whole(scheduler)


async def test_an_error_of_a_nested_call_is_the_parents_to_handle() -> None:
    scheduler = make_scheduler()

    async def broken() -> None:
        raise ZeroDivisionError

    async def parent() -> None:
        with pytest.raises(ZeroDivisionError):
            await scheduler.submit("batch", broken)
        with pytest.raises(ZeroDivisionError):
            await asyncio.gather(scheduler.submit("batch", broken))

    await scheduler.submit("batch", parent)
    assert account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


async def test_a_full_queue_does_not_refuse_nested_calls() -> None:
    scheduler = make_scheduler(max_queued_batch=0)

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("batch", asyncio.sleep, 1) for _ in range(3)])

    await scheduler.submit("batch", parent)
    assert now() == 3.0


async def test_a_call_that_has_ended_is_no_unfinished_sample_although_its_slot_is_still_used() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=5.0)
    other, inner = hold(scheduler, observe=False), []

    async def parent() -> None:
        inner.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 60)))
        await asyncio.sleep(1)

    await settle()
    await scheduler.submit("interactive", parent)
    await asyncio.sleep(30)

    assert scheduler.snapshot().interactive_running == 2
    assert (scheduler.snapshot().pressure, scheduler.snapshot().interactive.sample_count) == (0.0, 0)
    other.release()
    await asyncio.gather(*inner)
    await assert_whole(scheduler)


@pytest.mark.parametrize("timeout", [0, 0.5])
async def test_a_queue_timeout_holds_for_a_nested_call_that_waits(timeout: float) -> None:
    scheduler = make_scheduler()

    async def parent() -> tuple[Any, Any]:
        first = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1))
        await settle()
        second = asyncio.create_task(scheduler.submit("batch", noop, queue_timeout=timeout))
        return await asyncio.gather(first, second, return_exceptions=True)

    _, second = await scheduler.submit("batch", parent)
    assert isinstance(second, QueueTimeout)
    assert account(scheduler, "batch").rejected == 1
    await assert_whole(scheduler)


async def test_a_cancelled_child_loses_its_place_and_the_next_gets_the_slot() -> None:
    scheduler = make_scheduler()
    ran: list[int] = []

    async def child(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(1)

    async def parent() -> None:
        tasks = [asyncio.create_task(scheduler.submit("batch", child, number)) for number in range(4)]
        await settle()
        tasks[0].cancel()  # uses the slot
        tasks[1].cancel()  # waits for it
        await asyncio.gather(*tasks, return_exceptions=True)

    await scheduler.submit("batch", parent)
    assert ran == [0, 2, 3]
    assert now() == 2.0
    await assert_whole(scheduler)


async def test_close_lets_nested_calls_of_running_ones_go_on_and_its_end_cancels_them() -> None:
    scheduler = make_scheduler()
    ended: list[str] = []

    async def child(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} cancelled")
            raise

    async def parent() -> None:
        await asyncio.sleep(1)
        await scheduler.submit("batch", child, "own", 1)
        await asyncio.gather(*[scheduler.submit("batch", child, f"child {n}", 2 + n) for n in range(2)])

    task = asyncio.create_task(scheduler.submit("batch", parent))
    await settle()
    report = await scheduler.close(timeout=5)
    with pytest.raises(CallAborted):
        await task
    assert ended == ["own", "child 0", "child 1 cancelled"]
    assert (report.finished, report.cancelled, report.abandoned) == (0, 1, 0)
    assert not armed_timers()


async def test_drain_and_close_from_inside_a_nested_call_are_refused() -> None:
    scheduler = make_scheduler()

    async def inner() -> None:
        with pytest.raises(SchedulerMisuse, match="wait for itself"):
            await scheduler.drain()
        with pytest.raises(SchedulerMisuse, match="wait for itself"):
            await asyncio.create_task(scheduler.close())

    await scheduler.submit("batch", scheduler.submit, "batch", inner)


async def test_slot_blocks_nest_like_calls() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)
    async with scheduler.slot("batch", label="outer"):
        async with scheduler.slot("batch", label="inner") as inner:
            assert inner.waited == 0.0
            assert current_slot() is inner
        assert scheduler.snapshot().running == 2
    assert scheduler.snapshot().running == 1
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_calls_of_another_scheduler_are_not_inside() -> None:
    first, second = make_scheduler(), make_scheduler()
    gate = asyncio.Event()
    task = asyncio.create_task(first.submit("interactive", second.submit, "interactive", gate.wait))
    await settle()
    assert (first.snapshot().running, second.snapshot().running) == (1, 1)
    gate.set()
    await task
    assert account(second, "interactive").completed == 1


async def test_a_child_that_waits_gets_whichever_comes_first_a_slot_of_its_own_or_a_lent_one() -> None:
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)
    others = await full(scheduler, 2)
    recorder = Recorder(scheduler)
    started: list[str] = []

    async def child(name: str) -> None:
        started.append(f"{name} {now():g}")
        await asyncio.sleep(10)

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("batch", child, f"c{n}", label=f"c{n}") for n in range(3)])

    task = asyncio.create_task(scheduler.submit("batch", parent))
    await asyncio.sleep(4)
    others[0].release()
    await task

    assert started == ["c0 0", "c1 4", "c2 10"]
    assert [event.label for event in recorder.of(CallStarted)][1:] == ["c1"]
    assert not [event for event in recorder.of(CallQueued) if event.label]
    others[1].release()
    await others[1].task
    await assert_whole(scheduler)


async def test_chains_of_background_tasks_keep_nothing_of_the_calls_before() -> None:
    scheduler = make_scheduler()
    depth: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    async def hop(left: int) -> None:
        depth.append(len([node for node in lineage(active.get()) if isinstance(node, Call)]))
        if left:
            tasks.append(asyncio.create_task(later(left - 1)))

    async def later(left: int) -> None:
        await settle()
        await scheduler.submit("batch", hop, left)

    await scheduler.submit("batch", hop, 10)
    while tasks:
        await tasks.pop()
    assert depth == [1] * 11


async def test_children_of_a_call_that_ended_wait_for_the_slot_of_its_own_host() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def parent() -> list[asyncio.Task[Any]]:
        children = [start(scheduler.submit("batch", asyncio.sleep, 1)) for _ in range(2)]
        await settle()
        return children

    async def grandparent() -> None:
        for child in await asyncio.create_task(scheduler.submit("batch", parent)):
            await child

    async with asyncio.timeout(100):
        await scheduler.submit("batch", grandparent)
    assert now() == 2.0
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_a_waiting_call_that_is_lent_a_slot_leaves_no_timer_behind() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)

    async def parent() -> None:
        first = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1))
        await settle()
        second = asyncio.create_task(scheduler.submit("batch", settle, queue_timeout=10))
        await first
        await second
        assert not armed_timers()

    await scheduler.submit("batch", parent)
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_the_end_of_close_reaches_a_call_that_was_lent_a_slot_and_has_not_woken() -> None:
    scheduler = make_scheduler()
    (other,) = await full(scheduler)
    children: list[asyncio.Task[Any]] = []

    async def child() -> None:
        await asyncio.sleep(1)
        assert scheduler._shutdown is not None
        asyncio.get_running_loop().call_soon(scheduler._shutdown._interrupt)

    async def parent() -> None:
        children.append(start(scheduler.submit("batch", child)))
        children.append(start(scheduler.submit("batch", asyncio.sleep, 100)))
        await asyncio.sleep(50)

    children.append(start(scheduler.submit("batch", parent)))
    await settle()
    close = asyncio.create_task(scheduler.close(timeout=50))
    await asyncio.wait([close, *children])
    other.release()
    assert isinstance(children[2].exception(), CallAborted)
    assert now() == 1.0


async def test_a_newcomer_and_a_look_cost_no_more_among_thousands_of_nested_calls_that_wait() -> None:
    costs = []
    for number in (10, 2000):
        scheduler, gate = make_scheduler(max_queued_batch=10), asyncio.Event()
        other = hold(scheduler)

        async def parent(scheduler: TrafficScheduler, gate: asyncio.Event, number: int) -> None:
            await asyncio.gather(*[scheduler.submit("batch", gate.wait) for _ in range(number)])

        agent = asyncio.create_task(scheduler.submit("batch", parent, scheduler, gate, number))
        await settle()
        newcomer = scheduler.submit("batch", noop)

        costs.append(lines_run(partial(newcomer.send, None)) + lines_run(scheduler.snapshot))
        newcomer.close()
        gate.set()
        other.release()
        await asyncio.gather(agent, other.task)

    assert costs[1] == pytest.approx(costs[0], abs=20)


async def test_a_call_inside_never_uses_the_slot_of_one_beyond_its_own_tasks_running_call() -> None:
    scheduler = make_scheduler()
    other = hold(scheduler)
    await settle()

    async def innermost() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(9)

    async def middle() -> None:  # in a slot of its own, which it lends to a child
        child = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 5))
        await settle()
        await scheduler.submit("interactive", innermost)
        await child

    async def outer() -> bool:
        child = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 2))
        await settle()
        other.release()
        await settle()
        with pytest.raises(RunTimeout):
            await scheduler.submit("interactive", middle, run_timeout=3)
        await child
        return current_slot() is not None

    assert await scheduler.submit("interactive", outer)
    await asyncio.sleep(10)
    assert account(scheduler, "interactive").timed_out == 1
    await assert_whole(scheduler)
