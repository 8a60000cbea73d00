"""Streams in the soak: calls that are the source of one, read at a reader's pace, and left in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from llm_traffic_scheduler import Kind, Stream, StreamClosed
from tests.benchmarks.soak_ways import Boom

if TYPE_CHECKING:
    from tests.benchmarks.soak_crowd import Crowd, Ticket

__all__ = ["ENDINGS", "FORMS", "read_stream"]

ENDINGS: Final = ("read", "read", "read", "fails", "left", "closed", "late", "only started")
FORMS: Final = ("generator", "coroutine", "manager")


async def read_stream(crowd: Crowd, kind: Kind, ticket: Ticket, **options: Any) -> None:
    """The ticket's call is the first item; then others, unless somebody has had enough.

    Raises:
        StreamClosed: it was left, closed or too slow; whoever leaves it is told nothing by the scheduler.
        Whatever the call raises.
    """
    ending, form = crowd.chance.choice(ENDINGS), crowd.chance.choice(FORMS)
    idle = crowd.some(0.2) if ending == "late" else None
    words = _Words(crowd, lambda: crowd.run(ticket), ending == "fails")
    stream = crowd.scheduler.stream(kind, getattr(words, form), idle_timeout=idle, **options)
    try:
        async with stream:
            if ending == "only started":
                await stream.start()
            else:
                await _read(crowd, stream, ending)
    except BaseException as error:
        why = stream._reading._why
        idled = isinstance(why, StreamClosed) and why.idle is not None
        crowd.late_readers[kind] += idled and not (isinstance(error, StreamClosed) and error.idle is not None)
        raise
    if ending in ("left", "only started"):
        raise StreamClosed("a reader has left")


async def _read(crowd: Crowd, stream: Stream[int], ending: str) -> None:
    if ending == "closed":
        closer = crowd.loop.create_task(_close_later(crowd, stream))
        closer.add_done_callback(lambda done: done.cancelled() or done.exception())
    async for number in stream:
        await asyncio.sleep(crowd.some(0.5))
        if number and ending == "left":
            return


async def _close_later(crowd: Crowd, stream: Stream[int]) -> None:
    await asyncio.sleep(crowd.some(1))
    await stream.aclose()


class _Words:
    """A source of three items."""

    def __init__(self, crowd: Crowd, work: Callable[[], Awaitable[None]], fails: bool) -> None:
        self._crowd, self._work, self._fails = crowd, work, fails

    async def generator(self) -> AsyncIterator[int]:
        await self._work()
        try:
            for number in range(3):
                yield number
                await asyncio.sleep(self._crowd.some(0.2))
                if self._fails:
                    raise Boom
        finally:
            await asyncio.sleep(0)

    async def coroutine(self) -> AsyncIterator[int]:
        return self.generator()

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[AsyncIterator[int]]:
        try:
            yield self.generator()
        finally:
            await asyncio.sleep(self._crowd.some(0.1))
