"""`checkpoint()`: who gives way, to whom, and where it comes back. Promise 19."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import Decision, FixedPolicy, SchedulerMisuse, Slot, checkpoint, current_slot
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.giving_way import Steps, gauges, people, three_slots
from tests.support import Law, account, hold, make_scheduler, now, settle


async def test_without_need_a_checkpoint_returns_at_once_without_a_pass_of_the_loop() -> None:
    scheduler = three_slots()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(passed.append, 1)
        await checkpoint()
        assert not passed

    passed: list[int] = []
    await scheduler.submit("batch", work)
    await checkpoint()  # outside of a slot: nothing


async def test_a_batch_call_makes_room_for_waiting_people_and_comes_back() -> None:
    scheduler = three_slots()
    first, second = Steps(scheduler), Steps(scheduler)
    held = await people(scheduler, 2)
    assert [each.started for each in held] == [True, False]

    await asyncio.sleep(1.5)
    assert held[1].started
    assert gauges(scheduler) == (2, 0, 1, 1)
    assert account(scheduler, "batch").started == 2
    held[1].release()
    await settle()
    assert gauges(scheduler) == (1, 0, 2, 0)

    await asyncio.gather(first.task, second.task)
    assert sorted([first.done, second.done]) == [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]
    assert account(scheduler, "batch").completed == 2
    held[0].release()
    await held[0].task
    await assert_whole(scheduler)


async def test_fewer_than_the_minimum_never_give_way() -> None:
    scheduler = make_scheduler()
    steps = Steps(scheduler)
    held = await people(scheduler, 2)
    assert await steps.task == [1.0, 2.0, 3.0]
    assert held[1].started
    for each in held:
        each.release()


async def test_more_batch_calls_than_the_limit_allows_give_way() -> None:
    limit = 2
    scheduler = make_scheduler(max_concurrency=4, policy=Law(lambda now, signals: Decision(limit)))
    calls = [Steps(scheduler) for _ in range(2)]
    await asyncio.sleep(0.5)
    limit = 1
    await asyncio.sleep(1)
    assert gauges(scheduler)[2:] == (1, 1)
    await asyncio.gather(*[call.task for call in calls])
    assert now() == 5.0
    await assert_whole(scheduler)


async def test_an_interactive_call_never_gives_way_at_a_checkpoint() -> None:
    scheduler = make_scheduler()
    steps = [Steps(scheduler, kind="interactive") for _ in range(2)]
    (waiting,) = await people(scheduler, 1)
    await asyncio.gather(*[each.task for each in steps])
    assert [each.done for each in steps] == [[1.0, 2.0, 3.0]] * 2
    waiting.release()


@pytest.mark.parametrize("paused", ["interactive", "batch"])
async def test_nobody_gives_way_to_calls_that_are_paused_or_while_it_could_not_come_back(paused: Any) -> None:
    scheduler = three_slots()
    steps = [Steps(scheduler) for _ in range(2)]
    held = await people(scheduler, 1)
    scheduler.pause(paused)
    held += await people(scheduler, 1)
    await asyncio.gather(*[each.task for each in steps])
    assert now() == 3.0
    scheduler.resume(paused)
    for each in held:
        each.release()


async def test_should_yield_says_what_a_checkpoint_would_do() -> None:
    scheduler = three_slots()
    slots: list[Slot] = []

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        slots.append(slot)
        await asyncio.sleep(2)

    tasks = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(2)]
    held = await people(scheduler, 1)
    assert not any(slot.should_yield for slot in slots)
    held += await people(scheduler, 1)
    assert all(slot.should_yield for slot in slots)
    await asyncio.gather(*tasks)
    assert not any(slot.should_yield for slot in slots)
    for each in held:
        each.release()


async def test_a_lent_slot_is_not_the_guests_to_give_and_should_yield_says_so() -> None:
    scheduler = three_slots()
    slots: list[Slot] = []

    async def inner() -> float:
        slot = current_slot()
        assert slot is not None
        slots.append(slot)
        await asyncio.sleep(1)
        await slot.checkpoint()
        return now()

    async def parent() -> float:
        return await asyncio.create_task(scheduler.submit("batch", inner))

    held = [*await people(scheduler, 1), hold(scheduler, "batch")]
    task = start(scheduler.submit("batch", parent))
    await settle()
    held += await people(scheduler, 1)

    assert not slots[0].should_yield
    assert await task == 1.0

    for each in held:
        each.release()
    await scheduler.drain()
    await assert_whole(scheduler)


async def test_people_that_wait_ask_nothing_of_a_slot_that_has_ended_or_while_they_are_paused() -> None:
    scheduler = three_slots()
    async with scheduler.slot("batch") as ended:
        pass
    slots: list[Slot | None] = []

    async def work() -> None:
        slots.append(current_slot())
        await asyncio.sleep(2)

    tasks = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(2)]
    held = await people(scheduler, 2)
    assert ended.should_yield is False
    assert [slot.should_yield for slot in slots if slot is not None] == [True, True]

    scheduler.pause("interactive")
    assert [slot.should_yield for slot in slots if slot is not None] == [False, False]

    scheduler.resume("interactive")
    await asyncio.gather(*tasks)
    for each in held:
        each.release()


async def test_interactive_work_gives_way_to_nobody() -> None:
    scheduler = three_slots()

    async def chat() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        assert gauges(scheduler) == (1, 1, 2, 0)
        assert slot.should_yield is False
        await slot.checkpoint()
        assert gauges(scheduler) == (1, 1, 2, 0)

    held = [hold(scheduler, "batch") for _ in range(2)]
    task = asyncio.create_task(scheduler.submit("interactive", chat))
    await settle()
    held += await people(scheduler, 1)
    await task
    for each in held:
        each.release()


async def test_a_checkpoint_in_a_slot_that_is_lent_gives_nothing_up() -> None:
    scheduler = three_slots()

    async def child() -> float:
        await asyncio.sleep(1)
        await checkpoint()
        return now()

    async def parent() -> float:
        return await asyncio.create_task(scheduler.submit("batch", child))

    tasks = [asyncio.create_task(scheduler.submit("batch", parent)) for _ in range(2)]
    held = await people(scheduler, 2)
    assert gauges(scheduler) == (1, 1, 2, 0)

    assert await asyncio.gather(*tasks) == [1.0, 1.0]
    assert account(scheduler, "batch").completed == 2  # a child that gave way would count
    for each in held:
        each.release()
    await asyncio.gather(*(each.task for each in held))
    await assert_whole(scheduler)


async def test_a_checkpoint_while_a_child_uses_the_slot_gives_nothing_up() -> None:
    scheduler = three_slots()

    async def parent() -> float:
        child = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 2))
        await asyncio.sleep(1)
        await checkpoint()
        assert gauges(scheduler)[2] == 2
        at = now()
        await child
        return at

    tasks = [asyncio.create_task(scheduler.submit("batch", parent)) for _ in range(2)]
    held = await people(scheduler, 2)
    assert gauges(scheduler) == (1, 1, 2, 0)

    assert await asyncio.gather(*tasks) == [1.0, 1.0]
    for each in held:
        each.release()
    await asyncio.gather(*(each.task for each in held))
    await assert_whole(scheduler)


async def test_who_gave_way_comes_back_before_those_that_came_later() -> None:
    scheduler = three_slots()
    first = Steps(scheduler, label="first")
    second = Steps(scheduler, label="second")
    held = await people(scheduler, 2)
    later = Steps(scheduler, steps=1, label="later")
    await asyncio.sleep(1.5)
    assert [call.label for call in scheduler.calls() if call.state == "queued"] == ["first", "later"]
    held[1].release()
    await asyncio.gather(first.task, second.task, later.task)
    assert first.done[0] < later.done[0]
    held[0].release()


async def test_the_wait_is_exempt_from_the_bound_of_the_queue_and_leaves_room_in_it() -> None:
    scheduler = three_slots(max_queued_batch=1)
    steps = [Steps(scheduler) for _ in range(2)]
    held = await people(scheduler, 2)
    await asyncio.sleep(0.5)
    waiting = hold(scheduler, "batch")
    await asyncio.sleep(1)
    assert gauges(scheduler) == (2, 0, 1, 2)
    for each in held:
        each.release()
    await asyncio.gather(*[each.task for each in steps])
    waiting.release()
    await waiting.task
    await assert_whole(scheduler)


async def test_a_checkpoint_belongs_to_the_calls_own_task() -> None:
    scheduler = three_slots()

    async def work() -> None:
        with pytest.raises(SchedulerMisuse, match="belongs to the task"):
            await asyncio.create_task(checkpoint())
        slot = current_slot()
        assert slot is not None
        with pytest.raises(SchedulerMisuse, match="belongs to the task"):
            await asyncio.create_task(inside(slot))

    async def inside(slot: Slot) -> None:
        async with slot.released():
            pass

    await scheduler.submit("batch", work)


async def test_a_nested_call_in_the_same_task_gives_up_the_slot_they_share() -> None:
    scheduler = three_slots()

    async def inner() -> float:
        await asyncio.sleep(1)
        await checkpoint()
        return now()

    tasks = [
        asyncio.create_task(scheduler.submit("batch", scheduler.submit, "batch", inner, run_timeout=1.5))
        for _ in range(2)
    ]
    held = await people(scheduler, 3)
    await asyncio.sleep(5)
    assert gauges(scheduler) == (3, 0, 0, 1)
    held[1].release()
    assert sorted(await asyncio.gather(*tasks)) == [1.0, 5.0]
    for each in held:
        each.release()
    await asyncio.gather(*[each.task for each in held])
    await assert_whole(scheduler)


async def test_children_that_gave_way_to_a_falling_limit_go_on_in_the_slot_of_their_parent() -> None:
    """Else the parent would hold the last slot of the limit, and wait for those that wait for it."""
    scheduler = make_scheduler(max_concurrency=4, batch_max_concurrency=3)

    async def child() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            await checkpoint()

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("batch", child) for _ in range(2)])

    task = asyncio.create_task(scheduler.submit("batch", parent))
    await settle()
    assert gauges(scheduler) == (0, 0, 3, 0)
    scheduler.configure(policy=FixedPolicy(1))
    await asyncio.sleep(1.5)
    assert gauges(scheduler) == (0, 0, 1, 2)
    assert sorted(info.state for info in scheduler.calls()) == ["queued", "running", "running"]
    await task
    assert now() == 5.0  # one second of both together, then each its two
    assert account(scheduler, "batch").completed == 3
    await assert_whole(scheduler)


async def test_child_tasks_see_no_slot_while_the_call_in_it_is_in_a_checkpoint() -> None:
    scheduler = three_slots()
    seen: list[object] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append(current_slot())

    async def inner() -> None:
        task = asyncio.create_task(child())
        await settle()
        await checkpoint()
        await task

    others = [hold(scheduler, "batch"), hold(scheduler)]
    outer = asyncio.create_task(scheduler.submit("batch", lambda: scheduler.submit("batch", inner)))
    others += [hold(scheduler)]
    await asyncio.sleep(2)
    for held in others:
        held.release()
    await outer
    assert seen == [None]
    await assert_whole(scheduler)
