"""What the calls of the soak do while they have their slots.

A new way for a call to behave is one more function under `@way`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from llm_traffic_scheduler import checkpoint, current_slot
from tests.watched import own_task

if TYPE_CHECKING:
    from tests.benchmarks.soak_crowd import Crowd, Ticket

__all__ = ["SIMPLE", "WAYS", "Boom", "Work", "way"]

Work: TypeAlias = Callable[["Crowd", "Ticket"], Awaitable[None]]
WAYS: Final[dict[Work, int]] = {}


class Boom(Exception):
    """What a call raises."""


def way(weight: int) -> Callable[[Work], Work]:
    """What a call may do while it has its slot; `weight` says how often."""

    def register(work: Work) -> Work:
        WAYS[work] = weight
        return work

    return register


@way(12)
async def _sleep(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(1))


@way(2)
async def _return_at_once(crowd: Crowd, ticket: Ticket) -> None:
    pass


@way(2)
async def _look_at_the_slot(crowd: Crowd, ticket: Ticket) -> None:
    slot = current_slot()
    await asyncio.sleep(0)
    if (
        slot is None
        or slot is not current_slot()
        or (slot.kind, slot.label) != (ticket.kind, ticket.options.get("label"))
        or slot.tenant != ticket.options.get("tenant", slot.tenant)  # it may have that of a block around it
    ):
        crowd.blame("in a wrong slot", slot, ticket)


@way(2)
async def _fail(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(0.5))
    raise Boom


@way(1)
async def _fail_at_once(crowd: Crowd, ticket: Ticket) -> None:
    raise Boom


@way(2)
async def _clean_up(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(1))
    finally:
        await asyncio.sleep(crowd.some(0.5))


@way(2)
async def _run_on_when_cancelled(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(2))
    except asyncio.CancelledError:
        own_task().swallowed = True
        await asyncio.sleep(crowd.some(2))


@way(1)
async def _fail_when_cancelled(crowd: Crowd, ticket: Ticket) -> None:
    try:
        await asyncio.sleep(crowd.some(2))
    except asyncio.CancelledError:
        own_task().swallowed = True
        raise Boom from None


@way(1)
async def _hang_until_the_run_timeout(crowd: Crowd, ticket: Ticket) -> None:
    if "run_timeout" in ticket.options:
        await crowd.loop.create_future()


@way(2)
async def _end_and_cancel_whoever_gets_the_slot(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(1))
    crowd.loop.call_soon(_cancel_granted, crowd)


def _cancel_granted(crowd: Crowd) -> None:
    """Cancel those that have a slot and do not know it yet."""
    running = {info.label for info in crowd.scheduler.calls() if info.state == "running" and info.label}
    for ticket in list(crowd.live):
        if not ticket.called and ticket.options.get("label") in running:
            ticket.cancel()
            crowd.cancels["as it got its slot"] += 1


# Ways that a call may take that a thread has submitted: in a task that nobody has made for it.
SIMPLE: Final = (_sleep, _return_at_once, _look_at_the_slot, _fail, _fail_at_once, _clean_up)


# Calls inside of calls, and calls that give way


@way(2)
async def _call_another(crowd: Crowd, ticket: Ticket) -> None:
    await asyncio.sleep(crowd.some(0.2))
    await crowd.nest(ticket)
    await asyncio.sleep(crowd.some(0.2))


@way(2)
async def _gather_others(crowd: Crowd, ticket: Ticket) -> None:
    others = [task for _ in range(crowd.chance.randint(1, 3)) for task in crowd.child(ticket)]
    await asyncio.gather(*others, return_exceptions=True)


@way(1)
async def _leave_another_behind(crowd: Crowd, ticket: Ticket) -> None:
    crowd.child(ticket)
    await asyncio.sleep(crowd.some(0.5))


@way(1)
async def _call_another_beside_a_child(crowd: Crowd, ticket: Ticket) -> None:
    crowd.child(ticket)
    await asyncio.sleep(crowd.some(0.1))
    await crowd.nest(ticket)


@way(3)
async def _give_way(crowd: Crowd, ticket: Ticket) -> None:
    for _ in range(3):
        await asyncio.sleep(crowd.some(0.4))
        await checkpoint()
        crowd.expect(current_slot() is not None, "no slot after a checkpoint", ticket)


@way(2)
async def _release_the_slot(crowd: Crowd, ticket: Ticket) -> None:
    slot = current_slot()
    if slot is None:
        crowd.blame("no slot to release", ticket)
        return
    async with slot.released():
        await asyncio.sleep(crowd.some(0.5))
        crowd.expect(current_slot() is not slot, "a slot although it was released", ticket)
    crowd.expect(current_slot() is slot, "no slot after a release", ticket)
    await asyncio.sleep(crowd.some(0.5))


@way(1)
async def _gather_others_while_released(crowd: Crowd, ticket: Ticket) -> None:
    slot = current_slot()
    if slot is not None:
        async with slot.released():
            others = [task for _ in range(2) for task in crowd.child(ticket)]
            await asyncio.sleep(crowd.some(0.2))
        await asyncio.gather(*others, return_exceptions=True)
