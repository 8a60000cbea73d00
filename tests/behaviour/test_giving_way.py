"""`checkpoint()` and `released()`: promise 19."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    CallFinished,
    Decision,
    FixedPolicy,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    Slot,
    TrafficScheduler,
    checkpoint,
    current_slot,
    released,
)
from tests.behaviour.doors import assert_whole, start
from tests.support import (
    Held,
    Law,
    Recorder,
    account,
    armed_timers,
    hold,
    make_scheduler,
    noop,
    now,
    other_tasks,
    settle,
)


class Steps:
    """A batch call that does steps of a second each, with a checkpoint in between."""

    def __init__(self, scheduler: TrafficScheduler, *, steps: int = 3, kind: Any = "batch", **options: Any) -> None:
        self.scheduler = scheduler
        self.left = steps
        self.done: list[float] = []
        self.task = asyncio.create_task(scheduler.submit(kind, self.run, **options))

    async def run(self) -> list[float]:
        for _ in range(self.left):
            await asyncio.sleep(1)
            await checkpoint()
            self.done.append(now())
        return self.done


def gauges(scheduler: TrafficScheduler) -> tuple[int, int, int, int]:
    snapshot = scheduler.snapshot()
    return (
        snapshot.interactive_running,
        snapshot.interactive_queued,
        snapshot.batch_running,
        snapshot.batch_queued,
    )


async def people(scheduler: TrafficScheduler, number: int) -> list[Held]:
    held = [hold(scheduler) for _ in range(number)]
    await settle()
    return held


def three_slots(**settings: Any) -> TrafficScheduler:
    return make_scheduler(max_concurrency=3, batch_max_concurrency=2, **settings)


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


async def test_a_slot_that_is_given_up_starts_who_waits_although_nothing_else_happens() -> None:
    scheduler = make_scheduler()
    waiting: list[Held] = []

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        async with slot.released():
            await settle()
            assert waiting[0].started
            waiting[0].release()

    other = hold(scheduler)
    task = asyncio.create_task(scheduler.submit("interactive", work))
    await settle()
    waiting += await people(scheduler, 1)
    assert not waiting[0].started
    await task
    other.release()


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


async def test_time_without_a_slot_counts_in_no_timeout() -> None:
    scheduler = three_slots()
    first = Steps(scheduler, run_timeout=3.5, queue_timeout=0.5)
    second = Steps(scheduler, run_timeout=3.5)
    held = await people(scheduler, 3)
    await asyncio.sleep(10)
    assert gauges(scheduler)[2:] == (0, 1)
    assert scheduler.snapshot().overdue == 0
    held[1].release()
    assert await first.task == [10.0, 11.0, 12.0]
    await second.task
    for each in held:
        each.release()


async def test_the_run_timeout_goes_on_where_it_stopped() -> None:
    scheduler = three_slots()
    first, second = Steps(scheduler, steps=9, run_timeout=3.5), Steps(scheduler, steps=9, run_timeout=3.5)
    held = await people(scheduler, 3)
    await asyncio.sleep(10)
    held[1].release()
    outcomes = await asyncio.gather(first.task, second.task, return_exceptions=True)
    assert [type(each) for each in outcomes] == [RunTimeout, RunTimeout]
    assert (first.done[-1], now()) == (12.0, 12.5)
    for each in held:
        each.release()
    await asyncio.gather(*[each.task for each in held])
    await assert_whole(scheduler)
    assert not armed_timers()


async def test_waited_adds_up_over_all_waits() -> None:
    scheduler = three_slots()
    waits: list[float] = []

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        await checkpoint()
        waits.append(slot.waited)

    tasks = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(2)]
    held = await people(scheduler, 3)
    await asyncio.sleep(3)
    held[1].release()
    await asyncio.gather(*tasks)
    assert sorted(waits) == [0.0, 2.0]
    for each in held:
        each.release()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_cancelled_in_a_checkpoint_the_call_has_no_slot_and_gives_none_back(goes_on: bool) -> None:
    scheduler = three_slots()

    async def work() -> str:
        await asyncio.sleep(1)
        try:
            await checkpoint()
        except asyncio.CancelledError:
            assert current_slot() is None
            if not goes_on:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        return "went on"

    tasks = [asyncio.create_task(scheduler.submit("batch", work)) for _ in range(2)]
    held = await people(scheduler, 3)
    await asyncio.sleep(1.5)
    assert account(scheduler, "batch").completed == 1
    left = next(task for task in tasks if not task.done())
    left.cancel()
    await settle()
    assert left.cancelled() != goes_on
    assert gauges(scheduler) == (3, 0, 0, 0)
    assert account(scheduler, "batch").cancelled == 1
    assert account(scheduler, "batch").started == 2
    for each in held:
        each.release()
    await asyncio.gather(*[each.task for each in held])
    await assert_whole(scheduler)


async def test_a_cancel_that_meets_the_way_back_leaves_the_slot_to_the_next() -> None:
    scheduler = three_slots()
    steps = [Steps(scheduler) for _ in range(2)]
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    waiting = hold(scheduler, "batch")
    await settle()
    held[1].release()
    await asyncio.sleep(0)
    for each in steps:
        each.task.cancel()
    await settle()
    assert waiting.started
    waiting.release()
    held[0].release()
    await asyncio.gather(*[each.task for each in steps], return_exceptions=True)
    await assert_whole(scheduler)


async def test_close_waits_for_who_gave_way_and_its_end_cancels_it() -> None:
    scheduler = three_slots()
    steps = [Steps(scheduler, steps=50) for _ in range(2)]
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    assert gauges(scheduler) == (2, 0, 1, 1)
    report = await scheduler.close(timeout=2)
    assert (report.rejected, report.cancelled, report.abandoned) == (0, 4, 0)
    for each in steps:
        with pytest.raises(CallAborted):
            await each.task
    assert all(each.task.done() for each in held)
    assert not armed_timers()
    assert not other_tasks()


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


async def test_after_its_end_a_slot_has_nothing_to_give_up() -> None:
    scheduler = make_scheduler()
    async with scheduler.slot("batch") as slot:
        pass
    await slot.checkpoint()
    async with slot.released():
        pass
    assert not slot.should_yield
    await assert_whole(scheduler)


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


async def test_released_always_gives_the_slot_up_and_comes_back_to_the_old_place() -> None:
    scheduler = make_scheduler()
    order: list[str] = []

    async def agent(name: str) -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            assert current_slot() is None
            order.append(f"{name} without {now():g}")
            await asyncio.sleep(1)
        order.append(f"{name} back {now():g}")
        assert current_slot() is slot
        await asyncio.sleep(1)

    tasks = [asyncio.create_task(scheduler.submit("batch", agent, name)) for name in "abc"]
    await settle()
    assert gauges(scheduler) == (0, 0, 0, 3)
    assert [call.state for call in scheduler.calls()] == ["released"] * 3
    assert account(scheduler, "batch").started == 3
    await asyncio.gather(*tasks)
    assert order == [
        "a without 0", "b without 0", "c without 0", "a back 1", "b back 2", "c back 3",
    ]  # fmt: skip
    assert account(scheduler, "batch").completed == 3
    await assert_whole(scheduler)


async def test_an_interactive_call_is_released_too() -> None:
    scheduler = make_scheduler()
    async with scheduler.slot("interactive") as slot:
        async with slot.released():
            assert gauges(scheduler) == (0, 1, 0, 0)
        assert gauges(scheduler) == (1, 0, 0, 0)
    await assert_whole(scheduler)


async def test_a_call_made_while_released_is_one_of_its_own() -> None:
    scheduler = make_scheduler()
    async with scheduler.slot("batch") as slot, slot.released():
        await scheduler.submit("batch", noop)
    assert account(scheduler, "batch").completed == 2


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_error_in_the_block_comes_out_with_the_slot_back_and_a_cancel_without(error: Any) -> None:
    scheduler = make_scheduler()

    async def agent() -> str:
        slot = current_slot()
        assert slot is not None
        try:
            async with slot.released():
                raise error
        except (ZeroDivisionError, asyncio.CancelledError):
            return f"{gauges(scheduler)} {current_slot() is slot}"

    with_slot = error is ZeroDivisionError
    assert await scheduler.submit("batch", agent) == ("(0, 0, 1, 0) True" if with_slot else "(0, 0, 0, 0) False")
    totals = account(scheduler, "batch")
    assert (totals.completed, totals.cancelled) == ((1, 0) if with_slot else (0, 1))
    await assert_whole(scheduler)


async def test_drain_and_close_wait_for_who_is_released() -> None:
    scheduler = make_scheduler()

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            with pytest.raises(SchedulerMisuse, match="wait for itself"):
                await scheduler.drain()
            await asyncio.sleep(3)

    task = asyncio.create_task(scheduler.submit("batch", agent))
    await settle()
    await scheduler.drain()
    assert now() == 3.0
    await task

    task = asyncio.create_task(scheduler.submit("batch", agent))
    await settle()
    report = await scheduler.close(timeout=1)
    assert report.cancelled == 1
    with pytest.raises(CallAborted):
        await task


async def test_a_lent_slot_is_released_to_the_next_child_and_asked_for_again() -> None:
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]
    order: list[str] = []

    async def agent(name: str) -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            order.append(f"{name} without {now():g}")
            await asyncio.sleep(1)
        order.append(f"{name} back {now():g}")
        await asyncio.sleep(1)

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("batch", agent, name) for name in "ab"])

    await scheduler.submit("batch", parent)
    assert order == ["a without 0", "b without 0", "a back 1", "b back 2"]
    assert account(scheduler, "batch").completed == 3  # whoever gives a slot up counts from then on
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_a_lent_slot_is_released_and_given_back_by_a_call_of_a_tenant() -> None:
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]

    async def agent() -> str:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(1)
        return "went on"

    async def parent() -> str:
        return await asyncio.create_task(scheduler.submit("batch", agent, tenant="acme", priority=3))

    assert await scheduler.submit("batch", parent) == "went on"
    other.release()
    await other.task
    await assert_whole(scheduler)


async def test_released_while_a_child_uses_the_slot_leaves_it_to_that_one() -> None:
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]

    async def parent() -> None:
        child = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1))
        await settle()
        slot = current_slot()
        assert slot is not None
        await slot.checkpoint()
        async with slot.released():
            assert scheduler.snapshot().running == 2
        await child

    await scheduler.submit("batch", parent)
    other.release()


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


async def test_calls_with_every_slot_lend_them_to_what_they_submitted_while_released() -> None:
    scheduler = make_scheduler()

    async def parent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            others = await people(scheduler, 1)
            child = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 1))
            asyncio.get_running_loop().call_later(1, others[0].release)
            await settle()
        await child

    async with asyncio.timeout(100):
        await asyncio.gather(*[scheduler.submit("interactive", parent) for _ in range(2)])
    assert now() == 2.0
    await assert_whole(scheduler)


@pytest.mark.parametrize("where", ["checkpoint", "released"])
async def test_cancelled_without_a_slot_the_nested_call_has_none_either(where: str) -> None:
    """It goes on, and may submit: that takes the slot of whoever is around and has one."""
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)
    seen: list[object] = []

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        await settle(3)
        try:
            if where == "checkpoint":
                await checkpoint()
            else:
                async with slot.released():
                    await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append(current_slot())
        await scheduler.submit("batch", noop)

    scheduler.configure(policy=FixedPolicy(2))
    others = [hold(scheduler, "batch")]
    task = asyncio.create_task(scheduler.submit("batch", lambda: scheduler.submit("batch", inner, run_timeout=50)))
    if where == "checkpoint":
        others += await people(scheduler, 2)
    await settle()
    assert task.cancel()
    await settle()
    assert seen == [None]
    for held in others:
        held.release()
    await asyncio.wait([task, *(held.task for held in others)])
    assert now() == 0.0
    assert not armed_timers()
    totals = account(scheduler, "batch")
    assert (totals.completed, totals.cancelled) == (2, 1)
    await assert_whole(scheduler)


async def test_cancelled_without_a_slot_its_code_is_inside_of_no_call_any_more() -> None:
    scheduler = make_scheduler()

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        try:
            async with slot.released():
                await asyncio.sleep(100)
        finally:
            closing = asyncio.create_task(scheduler.close())
            await settle()
            with pytest.raises(SchedulerClosed):
                await scheduler.submit("batch", noop)
            await closing

    task = asyncio.create_task(scheduler.submit("batch", scheduler.submit, "batch", inner))
    await settle()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert account(scheduler, "batch").cancelled == 1
    scheduler.check()


async def test_a_run_timeout_that_the_code_has_outlived_does_not_strike_again_after_a_checkpoint() -> None:
    scheduler = three_slots()

    async def work() -> str:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(100)
        await checkpoint()
        await asyncio.sleep(5)
        return f"done at {now():g}"

    other = hold(scheduler, "batch")
    task = asyncio.create_task(scheduler.submit("batch", work, run_timeout=1))
    held = await people(scheduler, 2)
    await asyncio.sleep(2)
    assert gauges(scheduler) == (2, 0, 1, 1)
    for each in (other, *held):
        each.release()

    assert await task == "done at 7"
    await assert_whole(scheduler)


async def test_a_call_that_began_late_has_the_rest_of_its_run_timeout_when_its_slot_is_back() -> None:
    scheduler = make_scheduler()
    await asyncio.sleep(10)

    async def work() -> float:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        async with slot.released():
            await asyncio.sleep(30)
        await asyncio.sleep(3.5)
        return now()

    assert await scheduler.submit("interactive", work, run_timeout=5) == 44.5
    await assert_whole(scheduler)


async def test_time_without_a_slot_counts_in_no_run_timeout_of_those_that_share_it() -> None:
    scheduler = make_scheduler()

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        async with slot.released():
            await asyncio.sleep(10)
        assert slot.waited == 0.0
        await asyncio.sleep(5)

    with pytest.raises(RunTimeout):
        await scheduler.submit("batch", lambda: scheduler.submit("batch", inner, run_timeout=2), run_timeout=4)
    assert now() == 12.0
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


async def test_close_refuses_no_call_that_comes_back_from_a_lent_slot() -> None:
    """Refused, it would have gone on without a slot; its end cancels it like any that has started."""
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(2)
        assert current_slot() is slot

    async def parent() -> None:
        children = [start(scheduler.submit("batch", agent))]
        await asyncio.sleep(1)
        children.append(start(scheduler.submit("batch", asyncio.sleep, 100)))
        await asyncio.sleep(100)

    task = start(scheduler.submit("batch", parent))
    await settle()
    report = await scheduler.close(timeout=5, finish_queued=())
    assert now() == 5.0
    assert (report.rejected, report.cancelled, report.abandoned) == (0, 3, 0)
    other.release()
    await asyncio.wait([task])
    totals = account(scheduler, "batch")
    assert (totals.cancelled, totals.rejected) == (2, 0)
    assert not armed_timers()


async def test_drain_waits_for_a_call_that_gave_a_lent_slot_up() -> None:
    scheduler = make_scheduler()
    other = (await people(scheduler, 1))[0]
    ended: list[float] = []
    tasks: list[asyncio.Task[Any]] = []

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(3)
        ended.append(now())

    async def parent() -> None:
        tasks.append(start(scheduler.submit("batch", agent)))
        await settle()

    await scheduler.submit("batch", parent)
    other.release()
    await scheduler.drain()
    assert ended == [3.0]
    await assert_whole(scheduler)


@pytest.mark.parametrize("nested", [False, True])
async def test_a_call_that_never_waited_and_ends_without_its_slot_is_told_of(nested: bool) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    slots: list[Slot] = []

    async def agent() -> None:
        slot = current_slot()
        assert slot is not None
        slots.append(slot)
        async with slot.released():
            await asyncio.sleep(100)

    async def parent() -> None:
        await (scheduler.submit("batch", agent) if nested else agent())

    task = asyncio.create_task(scheduler.submit("batch", parent, label="a"))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recorder.names == ["CallStarted batch a", "CallFinished batch a"]
    (finished,) = recorder.of(CallFinished)
    assert (finished.outcome, finished.waited, finished.ran) == ("cancelled", 0.0, 0.0)
    assert slots[0].waited == 0.0
    await assert_whole(scheduler)


async def test_released_of_the_module_is_that_of_the_current_slot_and_nothing_outside_of_one() -> None:
    scheduler = make_scheduler()

    async def work() -> tuple[int, int, int, int]:
        async with released(), released():
            return gauges(scheduler)

    assert await scheduler.submit("batch", work) == (0, 0, 0, 1)
    async with released():
        pass
    await assert_whole(scheduler)


async def test_a_call_that_comes_back_is_not_in_the_numbers_of_a_full_queue() -> None:
    scheduler = make_scheduler(max_queued_batch=1, policy=FixedPolicy(1))

    async def agent() -> None:
        async with released():
            await asyncio.sleep(1)

    back = start(scheduler.submit("batch", agent))
    await settle()
    other = hold(scheduler, "batch")
    await asyncio.sleep(2)
    with pytest.raises(QueueTimeout):  # there was room to wait: it had no time to
        await scheduler.submit("batch", noop, queue_timeout=0)

    waiting = start(scheduler.submit("batch", noop))
    await settle()
    with pytest.raises(QueueFull, match="holds 1 of 1 calls") as refusal:
        await scheduler.submit("batch", noop)

    assert (refusal.value.queued, refusal.value.limit) == (1, 1)
    other.release()
    await asyncio.gather(back, waiting)
    await assert_whole(scheduler)


async def test_close_in_the_pass_in_which_a_call_has_its_slot_back_aborts_it() -> None:
    scheduler = three_slots()
    stays, steps = hold(scheduler, "batch"), Steps(scheduler)
    held = await people(scheduler, 2)
    await asyncio.sleep(1.5)
    assert gauges(scheduler) == (2, 0, 1, 1)
    closing = start(scheduler.close(timeout=5.0))
    await settle()
    held[1].release()
    await asyncio.sleep(0)
    assert gauges(scheduler) == (1, 0, 2, 0)
    assert scheduler._shutdown is not None
    scheduler._shutdown._interrupt()  # as its timer does, before the call knows of its slot
    await settle()

    with pytest.raises(CallAborted):
        await steps.task
    assert steps.task.cancelling() == 0
    with pytest.raises(CallAborted):
        await stays.task
    await closing
