"""Streams in the world of `world.py`: sources that behave in every way a source can, and whoever reads and leaves them.

Each stream is labelled. What a step does to one says `which`; a step that finds none to do it to does nothing.
"""

from __future__ import annotations

import asyncio
import gc
import math
import warnings
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from llm_traffic_scheduler import (
    CallAborted,
    CallInfo,
    SchedulerError,
    SchedulerMisuse,
    Stream,
    StreamClosed,
    checkpoint,
    current_slot,
)
from llm_traffic_scheduler.stream_reading import Reading
from tests.property.world_jobs import ROUNDING, Boom, Kind

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["LONGEST_CLEAN_UP", "PREFIX", "Feed", "Reader", "Readers"]

PREFIX = "stream-"
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


class Readers:
    """All of a world. Every method that begins with `do_` is a step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[Reader] = []
        self._collected: set[Reader] = set()
        # A source that swallows a cancel may leave a cycle of asyncio's own (future -> exception -> traceback -> frame)
        # with the stream in it. When that is found must not depend on what ran before.
        gc.disable()
        self._warned = warnings.catch_warnings(record=True)
        self.warnings = self._warned.__enter__()
        warnings.simplefilter("error")
        warnings.simplefilter("always", ResourceWarning)

    def dispose(self) -> None:
        self._warned.__exit__(None, None, None)
        gc.enable()

    def do_stream(
        self, times: int, form: str, kind: Kind, way: str, clean_up: str, first: str, sends: int, **options: Any
    ) -> None:
        for _ in range(times):
            feed = Feed(self._world, f"{PREFIX}{len(self.all)}", kind, form, way, clean_up, ["item"] * sends)
            self.all.append(reader := Reader(self._world, feed, options))
            if first == "start":
                reader.do(reader.start)
            elif first == "read":
                reader.do(partial(reader.read, items=2))

    def do_episode(self, roomy: bool, read: int, ends: str, **arguments: Any) -> None:
        """A stream that is read, and ended in this way; `roomy`: all that is there ends before."""
        if roomy:
            self._world.scheduler.resume(arguments["kind"])
            self._make_room()
        self.do_stream(times=1, first="nothing", **arguments)
        reader = self.all[-1]
        reader.do(partial(reader.read, items=read))
        self._world.do_pass(3)
        if ends in ("end", "error", "item"):
            reader.feed.tell(ends)
        elif ends == "left":
            reader.cancel(0)
        elif ends == "closed":
            reader.do(reader.close)
        elif ends == "idle":
            self._until_idle(reader)
        else:
            self._drop(reader)
        quick = reader.feed.way == "sends" and reader.feed.clean_up != "takes long"
        self._world.do_pass(10 if quick else 2)
        if ends == "closed" and quick:
            assert not reader.tasks, "whoever closes it waits for its reader"

    def _make_room(self) -> None:
        for job in self._world.jobs:
            job.gate.set()
        for reader in self.all:
            reader.feed.end()
            if reader.open and not reader.turn:
                reader.do(reader.close)
        self._world.do_pass(3)

    def do_start(self, which: int) -> None:
        for reader in self._one(which, lambda reader: not reader.reading._started):
            reader.do(reader.start)

    def do_read(self, which: int, items: int, block: bool) -> None:
        wanted = partial(self._one, which, lambda reader: reader.stream is not None)
        for reader in wanted(lambda reader: reader.open and not reader.turn):
            read = reader.read_and_close if block else reader.read
            reader.do(partial(read, items=items))

    def do_feed(self, which: int, what: str, soon: bool) -> None:
        wanted = partial(self._one, which, lambda reader: not reader.reading._over)
        for reader in wanted(lambda reader: reader.turn and reader.feed.at_work):
            self._world._at(soon, partial(reader.feed.tell, what))

    def do_aclose(self, which: int) -> None:
        for reader in self._one(which, lambda reader: reader.open or reader.waits):
            reader.do(reader.close)

    def do_leave(self, which: int, soon: bool) -> None:
        """A reader is cancelled."""
        for reader in self._one(which, lambda reader: bool(reader.tasks)):
            self._world._at(soon, partial(reader.cancel, which))

    def do_idle(self, which: int) -> None:
        """Until the moment at which one has been left too long."""
        for reader in self._one(which, lambda reader: reader.open and reader.options["idle_timeout"] is not None):
            self._until_idle(reader)

    def _until_idle(self, reader: Reader) -> None:
        due = reader.left_at + (reader.options["idle_timeout"] or 0.0)
        if not reader.turn and self._world.loop.time() < due:
            self._world.loop.call_at(due, self._world.loop.stop)
            self._world.loop.run_forever()

    def do_drop(self, which: int) -> None:
        wanted = partial(self._one, which, lambda reader: reader.stream is not None)
        for reader in wanted(lambda reader: reader.open and not reader.turn):
            self._drop(reader)

    def _drop(self, reader: Reader) -> None:
        before = len(self.warnings)
        lost = reader.open and reader.reading._why is None and not reader.tasks
        reader.stream = None
        if lost:
            if reader.lost:
                gc.collect()
            assert len(self.warnings) == before + 1

    def _one(
        self, which: int, fits: Callable[[Reader], bool], rather: Callable[[Reader], bool] = lambda _: True
    ) -> list[Reader]:
        """One that fits; if there are any, one of those that we would `rather`."""
        fitting = [reader for reader in self.all if fits(reader)]
        found = [reader for reader in fitting if rather(reader)] or fitting
        return [found[which % len(found)]] if found else []

    def check(self, infos: tuple[CallInfo, ...]) -> None:
        if lost := {reader for reader in self.all if reader.lost} - self._collected:
            gc.collect()
            self._collected |= lost
        by_name = {info.label: info for info in infos if (info.label or "").startswith(PREFIX)}
        for reader in self.all:
            reader.check(by_name.pop(reader.name, None))
            assert not reader.broken
        assert not by_name
        assert len(self.warnings) <= len(self.all)
        assert all("dropped before its end" in str(warning.message) for warning in self.warnings)

    @property
    def timers(self) -> int:
        return sum(reader.timers for reader in self.all)

    def inside(self, kind: Kind) -> int:
        return sum(reader.feed.kind == kind and reader.feed.at_work for reader in self.all)

    def forgives(self, error: object) -> bool:
        """The loop was told of an error in a clean-up that nobody waited for."""
        return isinstance(error, Boom) and any(reader.feed.broke for reader in self.all)

    # The end

    def end(self) -> list[asyncio.Task[None]]:
        """Let everything end; returns whom to wait for."""
        for reader in self.all:
            reader.feed.end()
            reader.do(reader.close)
        return [task for reader in self.all for task in reader.tasks]

    def check_end(self) -> None:
        for reader in self.all:
            assert not reader.open
            assert reader.received == list(range(reader.feed.sent)), "an item was lost"

    def outcomes(self, kind: Kind) -> Counter[str]:
        return sum((reader.outcomes() for reader in self.all if reader.feed.kind == kind), Counter[str]())

    def started(self, kind: Kind) -> int:
        return sum(reader.feed.kind == kind and reader.reading._started for reader in self.all)

    def heard_of(self) -> set[str]:
        return {reader.name for reader in self.all if reader.outcomes()}
