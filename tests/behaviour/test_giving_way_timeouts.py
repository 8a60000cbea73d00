"""Timeouts of calls that give their slot up: the time without one counts in none. Promises 13 and 19."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import RunTimeout, checkpoint, current_slot
from tests.behaviour.doors import assert_whole
from tests.behaviour.giving_way import Steps, gauges, people, three_slots
from tests.support import armed_timers, hold, make_scheduler, now


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
