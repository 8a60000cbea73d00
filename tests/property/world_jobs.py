"""What runs in the world of `world.py`: calls that behave in every way a call can, and a law of the user's own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llm_traffic_scheduler import (
    CallAborted,
    Decision,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    Signals,
    current_slot,
)

if TYPE_CHECKING:
    from tests.property.world import World

__all__ = ["KINDS", "ROUNDING", "Boom", "Headroom", "Job", "Kind"]

Kind = Literal["interactive", "batch"]
KINDS: tuple[Kind, Kind] = ("interactive", "batch")
ROUNDING = 1e-9


class Boom(Exception):
    """What a job raises."""


@dataclass(frozen=True)
class Headroom:
    """So many calls in all, interactive ones first."""

    total: int

    def advance(self, now: float, signals: Signals) -> None:
        """It learns nothing."""

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(self.total - signals.interactive_running - signals.interactive_queued)


@dataclass(eq=False)
class Job:
    """One call: how it comes, what it does, and what became of it.

    Attributes:
        patience: seconds of an `asyncio.timeout` around the call, None without one.
        scarred: its task has swallowed a cancel before the call, so `cancelling()` is not 0 when the call begins.
        calls: how often its function was called.
        at_work: it runs.
        stops: how often it ended because we had told it to stop.
        cancels: how often its task was cancelled from outside.
        submitted: it came before the scheduler was closed.
        outcome: what its caller saw: "returned" or the name of an error; empty as long as it has not ended.
    """

    world: World
    name: str
    kind: Kind
    way: str
    through: str
    lasts: float
    patience: float | None
    scarred: bool
    labelled: bool
    options: dict[str, Any]
    task: asyncio.Task[None] = field(init=False)
    verdict: BaseException | None = None
    calls: int = 0
    at_work: bool = False
    stops: int = 0
    cancels: int = 0
    submitted: bool = False
    outcome: str = ""
    arrived: float = math.nan
    began: float = math.nan
    run_timeout: float | None = None

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        if self.labelled:
            self.options = {**self.options, "label": self.name}
        if self.through == "slot":
            self.options = {**self.options, "preemptible": False}
        self.task = self.world.loop.create_task(self._caller(), name=self.name)

    @property
    def alive(self) -> bool:
        return not self.task.done()

    @property
    def preemptible(self) -> bool:
        """It may be called again, twice."""
        return self.kind == "batch" and bool(self.options.get("preemptible"))

    @property
    def timers(self) -> int:
        """How many timers may stand for it: of its sleep, its own `asyncio.timeout`, and its run timeout."""
        if not self.alive:
            return 0
        runs = self.calls > 0
        return (
            (self.patience is not None)
            + (runs and self.way in ("sleeps", "streams"))
            + (runs and self.way == "reads a stream")
            + (runs and self.run_timeout is not None)
        )

    @property
    def queue_deadline(self) -> float:
        """When it will be refused if it still waits; infinity if never."""
        patience = self.options.get("queue_timeout")
        return math.inf if patience is None or self.calls else self.arrived + patience

    @property
    def run_deadline(self) -> float:
        """When it will be cancelled if it still runs; infinity if never."""
        return math.inf if self.run_timeout is None or not self.calls else self.began + self.run_timeout

    @property
    def told_to_stop(self) -> bool:
        """A cancel of the scheduler's own is under way."""
        return self.alive and self.task.cancelling() > self.cancels

    def cancel(self) -> None:
        if self.task.cancel():
            self.cancels += 1

    async def _caller(self) -> None:
        """The code around the call."""
        if self.scarred:
            self.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        scope = asyncio.timeout(self.patience)
        try:
            async with scope:
                await self._observed(scope)
        except (Boom, RunTimeout, CallAborted, QueueFull, QueueTimeout, SchedulerClosed, SchedulerMisuse):
            pass
        except TimeoutError:
            assert scope.expired()
        # Whoever cancelled has been heard, and only they: our own cancels are taken back.
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == self.cancels

    async def _observed(self, scope: asyncio.Timeout) -> None:
        """The call, and what its caller sees of it."""
        self.submitted = not self.world.closed
        self.arrived = self.world.loop.time()
        default = self.world.settings.get("interactive_run_timeout") if self.kind == "interactive" else None
        given = self.options.get("run_timeout")
        self.run_timeout = default if given is None else given
        cancelled_before = self.cancels
        outcome = "returned"
        try:
            await self._call()
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            assert not self.outcome, "a call ended twice"
            self.outcome = outcome
            assert current_slot() is None
            now = self.world.loop.time()
            self.world.trace.append((now, self.name, outcome))
            outer_cancel = self.cancels > cancelled_before or scope.expired()
            assert outer_cancel or outcome != "CancelledError"
            if outcome in ("RunTimeout", "CallAborted"):
                assert not outer_cancel, "an outer cancel was swallowed"
            if outcome == "RunTimeout":
                assert self.run_timeout is not None
                assert now - self.began >= self.run_timeout - ROUNDING

    async def _call(self) -> None:
        scheduler = self.world.scheduler
        if self.through == "slot":
            async with scheduler.slot(self.kind, **self.options) as slot:
                assert current_slot() is slot
                assert slot.kind == self.kind
                await self._run()
        elif self.way == "raises before it awaits":
            await scheduler.submit(self.kind, self._raise, **self.options)
        elif self.way == "returns nothing to await":
            not_async: Any = self._count
            await scheduler.submit(self.kind, not_async, **self.options)
        else:
            assert await scheduler.submit(self.kind, self._run, **self.options) == self.name

    def _count(self) -> None:
        self.calls += 1
        self.began = self.world.loop.time()

    def _raise(self) -> Any:
        self._count()
        raise Boom

    async def _run(self) -> str:
        self._count()
        self.world.enter(self)
        self.at_work = True
        try:
            await self._work()
        except asyncio.CancelledError:
            self.stops += self.told_to_stop
            if self.told_to_stop and self.preemptible and self.world.told is not None:
                self.world.told.may_start_again(self.name)
            raise
        finally:
            self.at_work = False
            self.world.inside[self.kind] -= 1
        if self.verdict is not None:
            raise self.verdict
        return self.name

    async def _work(self) -> None:
        slot = current_slot()
        assert slot is not None
        if self.way == "sleeps":
            await asyncio.sleep(self.lasts)
        elif self.way == "streams":
            slot.first_token()
            await asyncio.sleep(self.lasts)
            slot.tokens(3)
        elif self.way == "is throttled":
            slot.throttled(self.lasts)
            await self.gate.wait()
        elif self.way == "reads a stream":
            async with self.world.scheduler.stream(self.kind, self._words) as words:
                assert [word async for word in words] == ["a", "b"]
        elif self.way == "waits":
            await self.gate.wait()
        elif self.way == "swallows cancellation":
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    continue
        elif self.way == "turns cancellation into an error":
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                raise Boom from None

    async def _words(self) -> AsyncIterator[str]:
        yield "a"
        await self.gate.wait()
        yield "b"
