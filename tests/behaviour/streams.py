"""Sources of streams in all three forms, for the tests of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import assert_whole
from tests.support import armed_timers, other_tasks, settle

__all__ = ["QUICK", "Words", "assert_over", "cancelling", "each_form", "read"]

QUICK: Final = 0.001  # seconds


class Words:
    """A backend that sends numbers, one every `each` seconds; counts what is opened and closed.

    Attributes:
        hangs: seconds that its clean-up takes.
        fails_at: raises ValueError in place of this item.
    """

    def __init__(self, count: int = 3, each: float = 1.0, *, hangs: float = 0.0, fails_at: int = -1) -> None:
        self.count = count
        self.each = each
        self.hangs = hangs
        self.fails_at = fails_at
        self.opened = self.closed = self.sent = 0
        self.seen: Callable[[], object] = lambda: None  # called by the source before each item

    async def generator(self) -> AsyncIterator[int]:
        self.opened += 1
        try:
            for number in range(self.count):
                await asyncio.sleep(self.each)
                self.seen()
                if number == self.fails_at:
                    raise ValueError(number)
                self.sent += 1
                yield number
        finally:
            await self.clean_up()

    async def clean_up(self) -> None:
        try:
            if self.hangs:
                await asyncio.sleep(self.hangs)
        finally:
            self.closed += 1

    async def coroutine(self) -> AsyncIterator[int]:
        return _Response(self)

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[AsyncIterator[int]]:
        response = _Response(self)
        try:
            yield response
        finally:
            await response.close()


class _Response(AsyncIterator[int]):
    """As an SDK's: an iterator with a `close`."""

    def __init__(self, words: Words) -> None:
        words.opened += 1
        self._words = words
        self._next = 0

    async def __anext__(self) -> int:
        words, number = self._words, self._next
        if number == words.count:
            raise StopAsyncIteration
        await asyncio.sleep(words.each)
        words.seen()
        if number == words.fails_at:
            raise ValueError(number)
        self._next += 1
        words.sent += 1
        return number

    async def close(self) -> None:
        await self._words.clean_up()


each_form: Final = pytest.mark.parametrize("form", ["generator", "coroutine", "manager"])


async def read(stream: AsyncIterator[Any]) -> list[Any]:
    """All of it."""
    return [item async for item in stream]


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def assert_over(scheduler: TrafficScheduler, words: Words) -> None:
    """What was opened is closed, and nothing is left."""
    await settle()
    assert words.opened == words.closed
    assert other_tasks() == set()
    assert cancelling() == 0
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        assert armed_timers() == []
    await assert_whole(scheduler)
