from __future__ import annotations

import asyncio
import math

import pytest

from llm_traffic_scheduler import QueueTimeout, current_slot, traffic
from llm_traffic_scheduler.adapters.held_slot import HeldSlot
from tests.support import account, hold, make_scheduler, settle


async def test_whoever_takes_a_slot_is_not_inside_of_it() -> None:
    scheduler = make_scheduler()
    with traffic("interactive"):
        held = await HeldSlot.take(scheduler, math.inf)
        assert current_slot() is None
        async with scheduler.slot():  # a call of its own, not one in the slot that is held
            assert scheduler.snapshot().running == 2
        held.give_back()

    assert scheduler.snapshot().running == 0


async def test_giving_back_counts_once_and_may_be_done_by_another_task() -> None:
    scheduler = make_scheduler()

    async def leave() -> None:
        held.give_back(ValueError("mine"))
        held.give_back()

    with traffic("batch"):
        held = await HeldSlot.take(scheduler, math.inf)
    await asyncio.create_task(leave())

    assert held.over
    assert account(scheduler, "batch").failed == 1
    scheduler.check()


async def test_a_slot_granted_to_a_request_that_is_cancelled_in_the_same_pass_goes_on() -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()

    async def take() -> None:
        with traffic("interactive"):
            await HeldSlot.take(scheduler, math.inf)

    leaver = asyncio.create_task(take())
    await settle()
    stayer = hold(scheduler)
    await settle()
    first.release()
    await asyncio.sleep(0)
    leaver.cancel()
    await settle()

    assert leaver.cancelled()
    assert stayer.started
    stayer.release()
    second.release()
    scheduler.check()


async def test_patience_shortens_the_wait_and_never_lengthens_it() -> None:
    scheduler = make_scheduler(interactive_queue_timeout=2)
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    began = asyncio.get_running_loop().time()

    with traffic("interactive"):
        for patience, ends, remedy in ((1, 1, "pool timeout of 1 s ended"), (5, 3, "raise queue_timeout")):
            with pytest.raises(QueueTimeout, match=f"2 of 2 slots are taken: .*{remedy}"):
                await HeldSlot.take(scheduler, patience)
            assert asyncio.get_running_loop().time() - began == pytest.approx(ends)

        scheduler.pause("interactive")
        with pytest.raises(QueueTimeout, match=r"until resume\('interactive'\): the client's pool timeout of 1 s"):
            await HeldSlot.take(scheduler, 1)

    for slot in held:
        slot.release()


async def test_a_step_that_raises_a_timeout_of_its_own_has_not_run_too_long() -> None:
    scheduler = make_scheduler(batch_run_timeout=5)

    async def step() -> None:
        raise TimeoutError("mine")

    with traffic("batch"):
        held = await HeldSlot.take(scheduler, math.inf)
    with pytest.raises(TimeoutError, match="mine"):
        await held.bounded(step())

    held.give_back()
