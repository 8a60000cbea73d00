"""What a policy hears of interactive calls inside of others: nothing of those in a lent slot."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_traffic_scheduler import current_slot
from tests.behaviour.doors import start
from tests.heard import Heard
from tests.support import hold, make_scheduler, noop, settle


async def test_a_call_in_a_lent_slot_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        slot.first_token()
        async with slot.released():
            await asyncio.sleep(1)

    await scheduler.submit("interactive", scheduler.submit, "interactive", inner)

    assert heard.names == ["Arrived", "completed"]
    heard.check()


async def test_a_call_inside_that_gets_a_slot_of_its_own_at_once_is_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def outer() -> None:
        await asyncio.sleep(1)
        await asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 2))

    await scheduler.submit("interactive", outer)

    first, inner, done, last = heard.told
    assert [at for at, _ in heard.told] == [0.0, 1.0, 3.0, 3.0]
    assert inner[1].call == done[1].call != first[1].call == last[1].call
    heard.check()


async def test_a_call_inside_that_waits_arrives_when_it_gets_a_slot_of_its_own_and_lives_from_its_submit() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    other = hold(scheduler, observe=False)
    await settle()
    opened = asyncio.Event()

    async def outer() -> None:
        # The first child has the slot that is lent, the second waits.
        children: list[asyncio.Task[Any]] = [asyncio.create_task(scheduler.submit("interactive", opened.wait))]
        await settle()
        children.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 2)))
        await asyncio.sleep(5)
        assert heard.names == ["Arrived"]
        other.release()
        await asyncio.sleep(3)
        opened.set()
        await asyncio.gather(*children)

    await scheduler.submit("interactive", outer)

    assert heard.names == ["Arrived", "Arrived", "completed", "completed"]
    (_, _), (arrived_at, _), (ended_at, ended), _ = heard.told
    assert (arrived_at, ended_at, ended.latency) == (5.0, 7.0, 7.0)  # type: ignore[union-attr]
    heard.check()


async def test_a_call_inside_that_leaves_before_it_gets_a_slot_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    hold(scheduler, observe=False)
    await settle()

    async def outer() -> None:
        lent = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 10))
        await settle()
        leaver = asyncio.create_task(scheduler.submit("interactive", noop))
        late = start(scheduler.submit("interactive", noop, queue_timeout=1))
        await settle()
        leaver.cancel()
        await asyncio.sleep(2)
        assert late.done()
        lent.cancel()

    await scheduler.submit("interactive", outer)

    assert heard.names == ["Arrived", "completed"]
    heard.check()


async def test_a_call_that_ends_before_its_guest_has_ended_once() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    hold(scheduler, observe=False)
    await settle()
    tasks = []

    async def outer() -> None:
        tasks.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 10)))
        await settle()

    await scheduler.submit("interactive", outer)
    assert heard.names == ["Arrived", "completed"]
    await asyncio.gather(*tasks)

    assert heard.names == ["Arrived", "completed"]
    heard.check()
