"""One stream in the world of `world.py`: whoever reads it, leaves it or closes it, and what became of it."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_traffic_scheduler import CallAborted, CallInfo, SchedulerError, SchedulerMisuse, Stream, StreamClosed
from llm_traffic_scheduler.stream_reading import Reading
from tests.property.world_jobs import ROUNDING, Boom
from tests.property.world_sources import Feed

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["Reader"]


@dataclass(eq=False)
class Reader:
    """One stream, those who read it, and what became of it.

    Attributes:
        stream: None once it was dropped; tasks that read it hold it still.
        tasks: all that deal with it, and how often each was cancelled from outside. Not those that have ended: the
            traceback of a cancelled one holds the stream.
        broken: tasks that have failed.
        turn: somebody asks for the slot or for an item.
        attempts: what became of those who asked for its slot and did not get it.
        fate: what ended it after it had its slot, as far as a reader has seen it.
        received: items.
        asked_at: when its slot was asked for.
        left_at: when it got its slot or its last item.
    """

    world: World
    feed: Feed
    options: dict[str, Any]
    stream: Stream[int] | None = None
    tasks: dict[asyncio.Task[None], int] = field(default_factory=dict)
    broken: list[BaseException] = field(default_factory=list)
    turn: bool = False
    attempts: Counter[str] = field(default_factory=Counter)
    fate: str = ""
    received: list[int] = field(default_factory=list)
    asked_at: float = math.nan
    left_at: float = math.nan

    def __post_init__(self) -> None:
        options = {**self.options, "label": self.name}
        self.stream = self.world.scheduler.stream(self.feed.kind, self.feed.source, **options)
        self.reading: Reading[int] = self.stream._reading
        self._handle = weakref.ref(self.stream)

    @property
    def name(self) -> str:
        return self.feed.name

    @property
    def open(self) -> bool:
        """It has a slot, or gives way."""
        return self.reading._started and not self.reading._over

    @property
    def lost(self) -> bool:
        """Nobody has it any more, and it is still there."""
        return self.stream is None and not self.tasks and self._handle() is not None

    @property
    def waits(self) -> bool:
        return self.turn and not self.reading._started

    @property
    def timers(self) -> int:
        """How many timers may stand for it."""
        bounds = (self.options["idle_timeout"], self.options.get("run_timeout"))
        if not self.open:
            return 0
        own = sum(bound is not None for bound in bounds) + (self.feed.clean_up == "takes long")
        return own + (self.feed.way == "makes calls") + (self._default_run_timeout is not None)

    @property
    def _default_run_timeout(self) -> float | None:
        return self.world.settings.get("interactive_run_timeout")

    # What is done to it

    def do(self, what: Callable[[Stream[int]], Coroutine[Any, Any, object]]) -> None:
        """In a task of its own."""
        if self.stream is not None:
            task = self.world.loop.create_task(self._care(what, self.stream), name=self.name)
            self.tasks[task] = 0
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        del self.tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(error)

    async def _care(self, what: Callable[[Stream[int]], Awaitable[object]], stream: Stream[int]) -> None:
        try:
            await what(stream)
        except (Boom, SchedulerError, SchedulerMisuse):
            pass
        # Whoever cancelled has been heard, and only they: our own cancels are taken back.
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == self.tasks[task]

    def cancel(self, which: int) -> None:
        """One of its tasks."""
        if self.tasks:
            task = list(self.tasks)[which % len(self.tasks)]
            self.tasks[task] += task.cancel()

    async def start(self, stream: Stream[int]) -> None:
        """Take the slot."""
        await self._ask(stream.start())

    async def read(self, stream: Stream[int], items: int) -> None:
        """So many items, then leave it."""
        for _ in range(items):
            item = await self._ask(anext(stream))
            if item is None:
                return
            self.received.append(item)

    async def read_and_close(self, stream: Stream[int], items: int) -> None:
        """So many items, in a block."""
        async with stream:
            await self.read(stream, items)
        self._see_gone()

    async def close(self, stream: Stream[int]) -> None:
        """Close it, whatever others do with it."""
        await stream.aclose()
        self._see_gone()

    async def _ask(self, asks: Awaitable[int | None]) -> int | None:
        """None at the end of the stream, or if it was started."""
        reading = self.reading
        if reading._over or reading._why is not None or self.turn:
            await self._ask_in_vain(asks)
            return None
        started, counts, cancels = reading._started, not self.world.closed, self._cancels()
        self.turn, self.asked_at = True, self.world.loop.time()
        try:
            return await asks
        except StopAsyncIteration:
            self._end("returned", started, counts)
            return None
        except BaseException as error:
            name = type(error).__name__
            if name in ("RunTimeout", "CallAborted", "StreamClosed") and self.feed.way != "swallows cancellation":
                assert self._cancels() == cancels, "an outer cancel was swallowed"
            elif name == "CancelledError":
                assert self._cancels() > cancels, "cancelled by nobody"
            self._end(name, started, counts)
            raise
        finally:
            self.turn = False
            self.left_at = self.world.loop.time()

    def _cancels(self) -> int:
        """Of this task. Nobody keeps the task: task -> exception -> traceback -> frame -> task would be a cycle."""
        task = asyncio.current_task()
        assert task is not None
        return self.tasks[task]

    async def _ask_in_vain(self, asks: Awaitable[int | None]) -> None:
        whole, busy = self.reading._whole, self.turn
        try:
            await asks
        except StopAsyncIteration:
            assert whole
        except SchedulerMisuse:
            assert busy
        except (StreamClosed, CallAborted):
            assert self.reading._why is not None
        else:
            assert not busy or self.reading._started, "two readers at once"

    def _end(self, name: str, started: bool, counts: bool) -> None:
        """Somebody was told that it ended, or that there is no slot."""
        if not self.reading._started:
            self.attempts[name] += counts
        elif started or name != "SchedulerClosed":
            assert not self.fate, "a stream ended twice"
            self.fate = name
            self._see_gone()
        self.world.trace.append((self.world.loop.time(), self.name, name))

    def _see_gone(self) -> None:
        """The slot is back at once."""
        assert self.name not in [info.label for info in self.world.scheduler.calls()]
        assert self.feed.closed == self.feed.opened

    # What must hold

    def check(self, info: CallInfo | None) -> None:
        """`info`: what the scheduler says of it."""
        now = self.world.loop.time()
        if self.reading._over or not (self.reading._started or self.turn):
            assert info is None, "it has ended, and holds a place or a slot"
            assert self.feed.opened == self.feed.closed
        elif self.open:
            assert info is not None, "it is open, and has no slot"
            assert info.state == "running" or self.feed.way == "gives way" or self._ending
            idle = self.options["idle_timeout"]
            if not self.turn and idle is not None and not self._ending:
                assert now <= self.left_at + idle + ROUNDING, "it was left, and nobody looked"
        elif info is not None:
            assert info.state in ("queued", "running")
            patience = self.options.get("queue_timeout")
            if info.state == "queued" and patience is not None:
                assert now <= self.asked_at + patience + ROUNDING, "nobody looked in time"
        assert self.feed.opened <= 1

    @property
    def _ending(self) -> bool:
        return self.reading._ending or self.reading._why is not None or self.feed.way == "swallows cancellation"

    def outcomes(self) -> Counter[str]:
        """What became of each attempt, at the end of the world."""
        return self.attempts + Counter([self._fate()] if self.reading._started else [])

    def _fate(self) -> str:
        if self.fate or self.feed.broke:
            return self.fate or "Boom"
        if self.feed.cut:  # by close() of the scheduler, whatever was the reason to close the stream
            return "CallAborted"
        why = self.reading._why
        assert why is not None
        return "idle" if isinstance(why, StreamClosed) and why.idle is not None else type(why).__name__
