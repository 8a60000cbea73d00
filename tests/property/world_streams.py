"""All streams of the world of `world.py`, and what is done to them, step by step from outside.

Each stream is labelled. What a step does to one says `which`; a step that finds none to do it to does nothing.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from llm_traffic_scheduler import CallInfo
from tests.property.world_jobs import Boom, Kind
from tests.property.world_reader import Reader
from tests.property.world_sources import Feed

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["PREFIX", "Readers"]

PREFIX = "stream-"


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
