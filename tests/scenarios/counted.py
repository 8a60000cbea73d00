"""A scheduler that counts what happens inside the jobs, and what each submit came to.

The scheduler's own figures are what the scenarios put to the test, so these are kept beside them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from llm_traffic_scheduler import (
    CallAborted,
    CallStarted,
    Event,
    Kind,
    Rejected,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    Slot,
    TrafficScheduler,
    current_slot,
)
from llm_traffic_scheduler.call_options import CallOptions

__all__ = ["Counted"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NOWHERE: Final = "nowhere"
"""What a call is counted as that was refused at the door for its arguments, or by a closed scheduler."""


class Counted(TrafficScheduler):
    """A `TrafficScheduler` of which the stage knows the truth.

    Attributes:
        inside: jobs that are between their first and their last line now, by kind.
        most: the most there were at a time, and the most batch jobs.
        begun: calls of `coro_fn`, and blocks of `slot()` entered.
        endings: what each call came to, as its caller saw it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.inside = {"interactive": 0, "batch": 0}
        self.most = self.most_batch = 0
        self.highest_cap = self.snapshot().max_concurrency
        self.opened = self.begun = 0
        self.endings: Counter[str] = Counter()

    async def submit(
        self, kind: Kind | None, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[CallOptions]
    ) -> T:
        entry = _Entry(self, kind)
        try:
            counted = entry.counted(coro_fn) if callable(coro_fn) else coro_fn
            result: T = await super().submit(kind, counted, *args, **options)
        except BaseException as error:
            entry.settle(error)
            raise
        entry.settle(None)
        return result

    def slot(self, kind: Kind | None = None, /, **options: Unpack[CallOptions]) -> AbstractAsyncContextManager[Slot]:
        return _CountedSlot(self, kind, super().slot(kind, **options))

    def configure(self, **changes: Any) -> None:
        super().configure(**changes)
        self.highest_cap = max(self.highest_cap, self.snapshot().max_concurrency)

    @property
    def closed(self) -> bool:
        """`close()` has been called."""
        return self._shutdown is not None

    @contextmanager
    def presence(self, kind: Kind | None) -> Iterator[None]:
        """One job more is inside."""
        slot = current_slot()
        if slot is not None and is_lent(slot):  # its caller is counted already
            yield
            return
        name = str(kind) if slot is None else slot.kind
        self.inside[name] += 1
        self.most = max(self.most, sum(self.inside.values()))
        self.most_batch = max(self.most_batch, self.inside["batch"])
        try:
            yield
        finally:
            self.inside[name] -= 1

    def watch_starts(self) -> None:
        """Assert from now on, at each start, that the limits of that moment hold.

        A listener makes the scheduler take other ways than without one; let some loops do without.
        """
        self.add_listener(self._started)
        self.broken_starts: list[str] = []

    def _started(self, event: Event) -> None:
        if not isinstance(event, CallStarted):
            return
        seen = self.snapshot()
        if seen.running > seen.max_concurrency:
            self.broken_starts.append(f"{seen.running} run of {seen.max_concurrency}")
        if event.kind == "batch" and seen.batch_running > seen.batch_limit:
            self.broken_starts.append(f"{seen.batch_running} batch calls run of {seen.batch_limit}")


def is_lent(slot: Slot) -> bool:
    """A nested call in the slot of another, which counts nowhere."""
    nesting = slot._call.nesting
    return nesting is not None and nesting.lender is not None


class _Entry:
    """One call: begun at most once, settled exactly once."""

    def __init__(self, scheduler: Counted, kind: Kind | None) -> None:
        self._scheduler = scheduler
        self._kind = kind
        self._late = scheduler.closed
        self._begun = self._settled = self._lent = False
        scheduler.opened += 1

    def counted(self, coro_fn: Callable[[*Ts], Awaitable[T]]) -> Callable[[*Ts], Awaitable[T]]:
        """`coro_fn`, counted; what it raises or returns that is no awaitable goes through as it is."""

        def work(*args: *Ts) -> Awaitable[T]:
            self.begin()
            value = coro_fn(*args)
            return self._inside(value) if inspect.isawaitable(value) else value

        return work

    async def _inside(self, awaitable: Awaitable[T]) -> T:
        with self._scheduler.presence(self._kind):
            try:
                return await awaitable
            finally:
                del awaitable  # a failed task would hold this frame, which holds it

    def begin(self) -> None:
        assert not self._begun, "called twice"
        self._begun = True
        slot = current_slot()
        self._lent = slot is not None and is_lent(slot)
        self._scheduler.begun += 1

    def settle(self, error: BaseException | None) -> None:
        assert not self._settled, "settled twice"
        self._settled = True
        self._scheduler.endings[self._ending(error)] += 1

    def _ending(self, error: BaseException | None) -> str:
        if self._lent:
            return NOWHERE
        if error is None:
            return "completed"
        if isinstance(error, asyncio.CancelledError | CallAborted):
            return "cancelled"
        if self._begun:
            return "timed_out" if isinstance(error, RunTimeout) else "failed"
        if isinstance(error, GeneratorExit):
            return "cancelled"
        if isinstance(error, SchedulerClosed) and self._late:
            return NOWHERE
        if isinstance(error, Rejected):
            return "rejected"
        assert isinstance(error, ValueError | TypeError | SchedulerMisuse), f"refused with {error!r}"
        return NOWHERE


class _CountedSlot:
    """`slot()`, counted."""

    def __init__(self, scheduler: Counted, kind: Kind | None, slot: AbstractAsyncContextManager[Slot]) -> None:
        self._scheduler, self._kind, self._slot = scheduler, kind, slot

    async def __aenter__(self) -> Slot:
        self._entry = _Entry(self._scheduler, self._kind)
        try:
            slot = await self._slot.__aenter__()
        except BaseException as error:
            self._entry.settle(error)
            raise
        self._entry.begin()
        self._presence = self._scheduler.presence(self._kind)
        self._presence.__enter__()
        return slot

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._presence.__exit__(None, None, None)
        try:
            swallowed = await self._slot.__aexit__(exc_type, error, traceback)
        except BaseException as raised:
            self._entry.settle(raised)
            raise
        self._entry.settle(error)
        return swallowed
