"""Calls from threads, for the part of the soak that runs in real time."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Final

from llm_traffic_scheduler import Kind
from tests.benchmarks.soak_crowd import KINDS, Crowd, Ticket
from tests.benchmarks.soak_ways import SIMPLE, Boom
from tests.ledger import COUNTED_AS

__all__ = ["thread_clients"]

CLIENTS: Final = 2  # of each kind


def thread_clients(crowd: Crowd) -> list[asyncio.Task[None]]:
    """They are at work until it is over, and then end by themselves."""
    return [crowd.loop.create_task(_client(crowd, kind)) for kind in KINDS for _ in range(CLIENTS)]


async def _client(crowd: Crowd, kind: Kind) -> None:
    while not crowd.over:
        label = {"label": f"{crowd.chance.random()}"}
        ticket = Ticket(kind, crowd.chance.choice(SIMPLE), crowd.options() | label, crowd.loop.time())
        seen = "returned"
        crowd.in_threads[kind] += 1
        try:
            await crowd.chance.choice((_by_future, _by_block))(crowd, ticket)
        except Exception as error:
            seen = type(error).__name__
            crowd.expect(
                seen in COUNTED_AS and seen != "SchedulerMisuse", "a call from a thread raised", ticket, repr(error)
            )
        crowd.in_threads[kind] -= 1
        crowd.submitted[kind] += 1
        crowd.count(ticket, seen)
        await asyncio.sleep(crowd.some(5))


async def _by_future(crowd: Crowd, ticket: Ticket) -> None:
    submit = partial(crowd.scheduler.submit_from_thread, ticket.kind, crowd.run, ticket, **ticket.options)
    await asyncio.wrap_future(await asyncio.to_thread(submit))


async def _by_block(crowd: Crowd, ticket: Ticket) -> None:
    seconds, fails = crowd.some(1), crowd.chance.random() < 0.2

    def work() -> None:
        with crowd.scheduler.slot_from_thread(ticket.kind, **ticket.options):
            threading.Event().wait(seconds)  # a client that waits for its answer
            if fails:
                raise Boom

    await asyncio.to_thread(work)
