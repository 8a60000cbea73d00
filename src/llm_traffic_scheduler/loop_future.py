"""How a thread waits for an event loop that may end before it answers.

Floor: third.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Final, TypeVar

from .errors import SchedulerMisuse

__all__ = ["LoopFuture", "Visit"]

_LOOK_EVERY: Final = 0.25  # seconds
# A loop stands still for microseconds between two `run_until_complete`, as at the end of `asyncio.run`.
_LOOKS_UNTIL_GONE: Final = 4

T = TypeVar("T")


class Visit:
    """Which loop a thread has turned to, and how messages name the two."""

    __slots__ = ("call", "loop", "process", "scheduler")

    def __init__(self, loop: asyncio.AbstractEventLoop, scheduler: str, call: str) -> None:
        self.loop = loop
        self.scheduler = scheduler
        self.call = call
        self.process = os.getpid()

    @property
    def here(self) -> bool:
        """This code runs on that loop, so waiting for it would be for ever."""
        return asyncio._get_running_loop() is self.loop

    @property
    def closed(self) -> bool:
        """That loop will never run again, in this process."""
        return self.loop.is_closed() or self.process != os.getpid()

    def gone(self, how: str = "") -> SchedulerMisuse:
        """What a thread is told that waits in vain."""
        return SchedulerMisuse(
            f"the event loop of scheduler {self.scheduler!r} {how or ('was closed' if self.closed else 'stopped')} "
            f"before {self.call} was over: let the threads end before the loop does, "
            "for example by `await asyncio.to_thread(thread.join)`"
        )


class LoopFuture(Future[T]):
    """What a thread waits for that the loop will bring.

    Like any future of `concurrent.futures`, but waiting for it ends when the loop does, and is refused where
    it would never end.
    """

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self.visit = visit

    def result(self, timeout: float | None = None) -> T:
        """What the call returned; raises what it raised. See `submit_from_thread`."""
        try:
            self._watch(timeout)
            return super().result(0)
        except CancelledError:
            raise self._cancelled_error() from None
        finally:
            del self  # future -> exception -> traceback -> frame -> future would be a cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, None if it returned. See `submit_from_thread`."""
        try:
            self._watch(timeout)
            return super().exception(0)
        except CancelledError:
            raise self._cancelled_error() from None
        finally:
            del self

    def _cancelled_error(self) -> CancelledError:
        return CancelledError(
            f"{self.visit.call} was cancelled, by its future or on the loop, which cancels what is left when it ends"
        )

    def _watch(self, timeout: float | None) -> None:
        """Return once this is done, which an end of the loop makes it, or the time is over."""
        if self.done():
            return
        visit = self.visit
        if visit.here:
            raise SchedulerMisuse(
                f"waiting for {visit.call} on the thread of scheduler {visit.scheduler!r}'s own event loop would be "
                "for ever: write `await asyncio.wrap_future(future)`, or `await scheduler.submit(...)` at once"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        looks = 0
        while deadline is None or time.monotonic() < deadline:
            patience = _LOOK_EVERY if deadline is None else min(_LOOK_EVERY, max(0.0, deadline - time.monotonic()))
            if concurrent.futures.wait([self], patience).done:
                return
            looks = 0 if visit.loop.is_running() else looks + 1
            if visit.closed or looks == _LOOKS_UNTIL_GONE:
                with suppress(InvalidStateError):
                    self.set_exception(visit.gone())
