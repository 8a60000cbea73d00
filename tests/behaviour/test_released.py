"""`released()`: the slot is free while the block runs, and comes back after it. Promise 19."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import FixedPolicy, QueueFull, QueueTimeout, current_slot, released
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.giving_way import gauges, people
from tests.support import Held, account, hold, make_scheduler, noop, now, settle


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


async def test_after_its_end_a_slot_has_nothing_to_give_up() -> None:
    scheduler = make_scheduler()
    async with scheduler.slot("batch") as slot:
        pass
    await slot.checkpoint()
    async with slot.released():
        pass
    assert not slot.should_yield
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
