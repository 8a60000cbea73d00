"""Calls inside of calls: promise 17. Nothing waits for itself, and a slot is given back once, whoever ends first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import CallQueued, CallStarted, RunTimeout, TrafficScheduler, current_slot, traffic
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.surroundings import active
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.nested import full
from tests.support import Recorder, account, hold, make_scheduler, noop, now, settle


def running_in(scheduler: TrafficScheduler) -> tuple[int, int]:
    snapshot = scheduler.snapshot()
    return snapshot.interactive_running, snapshot.batch_running


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
