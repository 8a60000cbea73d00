"""Who may say that the backend asks us to wait, where, and of which scheduler: `Slot.throttled()`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from llm_traffic_scheduler import Decision, Signals, Slot, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import run_virtual
from tests.behaviour.threads import bound_scheduler
from tests.behaviour.throttled import BATCH_MAX, BATCH_MIN, crowd, plain, throttle
from tests.support import Law, hold, noop, settle


async def test_after_the_slots_end_it_says_nothing() -> None:
    scheduler = plain()
    async with scheduler.slot("interactive") as slot:
        pass
    held = hold(scheduler)
    await settle()

    slot.throttled(5)

    assert scheduler.snapshot().reason != "throttled"
    held.release()


async def test_a_call_may_say_so_where_it_waits_without_its_slot() -> None:
    scheduler = plain()

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            slot.throttled(5)
            assert scheduler.snapshot().reason == "throttled"

    await scheduler.submit("interactive", work)


async def test_a_call_in_a_lent_slot_says_so_for_its_scheduler() -> None:
    scheduler = plain()

    await scheduler.submit("interactive", throttle, scheduler, 5)

    assert scheduler.snapshot().reason == "throttled"


async def test_a_call_whose_slot_another_one_uses_still_has_ended() -> None:
    scheduler = plain()
    slots: list[Slot] = []
    tasks: list[asyncio.Task[None]] = []
    for _ in range(7):
        hold(scheduler)
    await settle()

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        slots.append(slot)
        tasks.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 5)))
        await settle()

    await scheduler.submit("interactive", work)
    assert scheduler.snapshot().interactive_running == 8  # its own slot is still in use

    slots[0].throttled(5)

    assert scheduler.snapshot().reason != "throttled"
    await asyncio.gather(*tasks)


async def test_it_acts_on_the_scheduler_of_the_slot_only() -> None:
    outer, inner = plain(), plain()
    async with outer.slot("interactive") as slot:
        await inner.submit("interactive", throttle, inner, 5)
        assert outer.snapshot().reason != "throttled"
        assert inner.snapshot().reason == "throttled"

        async with inner.slot("interactive"):
            slot.throttled(20)

    await asyncio.sleep(5)
    assert outer.snapshot().reason == "throttled"
    assert inner.snapshot().reason != "throttled"


@pytest.mark.asyncio(loop_factories=["virtual", "debug", "real", "uvloop"])
async def test_a_thread_says_so_on_the_loop() -> None:
    threads: set[int] = set()

    def answer(at: float, signals: Signals) -> Decision:
        if signals.batch_queued:  # and no reader asks
            threads.add(threading.get_ident())
        return Decision(signals.batch_min, valid_until=signals.throttled_until)

    scheduler = await bound_scheduler(
        max_concurrency=8, batch_max_concurrency=BATCH_MAX, batch_min_concurrency=BATCH_MIN, policy=Law(answer)
    )
    batch = crowd(scheduler)
    await settle()

    def work() -> None:
        with scheduler.slot_from_thread("interactive"):
            slot = current_slot()
            assert slot is not None
            slot.throttled(1000)

    await asyncio.to_thread(work)

    assert scheduler._home.governor.throttled_until > asyncio.get_running_loop().time() + 900
    assert threads == {threading.get_ident()}
    for call in batch:
        call.release()
    await asyncio.gather(*(call.task for call in batch))


def test_another_loop_starts_without_it() -> None:
    scheduler = plain()
    run_virtual(throttle(scheduler, 1e9))

    async def again() -> str:
        await scheduler.submit("interactive", noop)
        return scheduler.snapshot().reason

    assert run_virtual(again()) != "throttled"


Say = Callable[[TrafficScheduler], Awaitable[None]]


async def fails(scheduler: TrafficScheduler) -> None:
    async def work() -> None:
        await throttle(scheduler, 5)
        raise RuntimeError("429")

    with pytest.raises(RuntimeError):
        await scheduler.submit("interactive", work)


async def is_cancelled(scheduler: TrafficScheduler) -> None:
    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        slot.throttled(5)
        await asyncio.Event().wait()

    task = asyncio.create_task(scheduler.submit("interactive", work))
    await settle()
    task.cancel()
    await settle()


@pytest.mark.parametrize("say", [fails, is_cancelled])
async def test_the_wish_outlives_the_call_that_was_told(say: Say) -> None:
    scheduler = plain()

    await say(scheduler)

    assert scheduler.snapshot().running == 0
    assert scheduler.snapshot().reason == "throttled"
