"""Sources of streams in the world of `world.py`, which behave in every way a source can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_traffic_scheduler import checkpoint, current_slot
from tests.property.world_jobs import Boom, Kind

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["LONGEST_CLEAN_UP", "Feed"]

LONGEST_CLEAN_UP = 0.5  # seconds


@dataclass(eq=False)
class Feed:
    """A source that sends what it is told to.

    Attributes:
        sent: items that it has handed out.
        broke: its clean-up has raised.
        cut: its clean-up is going on, or was cancelled.
        aside: it is in a `checkpoint()`, or has lost its slot there.
    """

    world: World
    name: str
    kind: Kind
    form: str
    way: str
    clean_up: str
    told: list[str] = field(default_factory=list)
    over: bool = False
    opened: int = 0
    closed: int = 0
    sent: int = 0
    broke: bool = False
    cut: bool = False
    aside: bool = False

    def __post_init__(self) -> None:
        self._news = asyncio.Event()

    def tell(self, what: str) -> None:
        """Let it send an item, end, or fail, as soon as it is asked."""
        self.told.append(what)
        self._news.set()

    def end(self) -> None:
        """Let it end, whatever else it was told."""
        self.over = True
        self._news.set()

    @property
    def at_work(self) -> bool:
        """It is open, and what it runs in must have a slot."""
        return self.opened > self.closed and not self.aside

    def source(self) -> Any:
        """What `stream` is given."""
        return getattr(self, f"_{self.form}")()

    async def _generator(self) -> AsyncIterator[int]:
        self._open()
        try:
            while (item := await self._next()) is not None:
                yield item
        finally:
            await self.close()

    async def _coroutine(self) -> AsyncIterator[int]:
        self._open()
        if self.way == "is no source":
            self.closed += 1
            return None  # type: ignore[return-value]
        return Response(self)

    @asynccontextmanager
    async def _manager(self) -> AsyncIterator[AsyncIterator[int]]:
        self._open()
        try:
            if self.way == "fails as it is opened":
                raise Boom
            yield Response(self)
        finally:
            await self.close()

    def _open(self) -> None:
        self._judge()
        self.opened += 1

    def _judge(self) -> None:
        slot = current_slot()
        assert slot is not None
        assert (slot.kind, slot.label) == (self.kind, self.name)

    async def _next(self) -> int | None:
        self._judge()
        if self.over:
            return None
        try:
            verdict = await self._verdict()
        except asyncio.CancelledError:
            if self.way == "turns cancellation into an error":
                raise Boom from None
            if self.way != "swallows cancellation":
                raise
            verdict = "item"
        if verdict == "error":
            raise Boom
        self.sent += verdict == "item"
        return self.sent - 1 if verdict == "item" else None

    async def _verdict(self) -> str:
        if self.way == "makes calls":
            await self.world.scheduler.submit(self.kind, asyncio.sleep, 0.25)
        elif self.way == "gives way":
            self.aside = True
            await checkpoint()
            self.aside = False
        while not self.told and not self.over:
            self._news.clear()
            await self._news.wait()
        return self.told.pop(0) if self.told else "end"

    async def close(self) -> None:
        """Its clean-up; a slot is held until that has ended."""
        try:
            if self.clean_up.startswith("takes"):
                self.cut = True
                await asyncio.sleep(0 if self.clean_up == "takes a pass" else LONGEST_CLEAN_UP)
                self.cut = False
            elif self.clean_up == "fails":
                self.broke = True
                raise Boom
        finally:
            self.closed += 1


class Response(AsyncIterator[int]):
    """As an SDK's."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __anext__(self) -> int:
        if (item := await self._feed._next()) is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        if self._feed.form == "coroutine":  # the manager closes by itself
            await self._feed.close()
