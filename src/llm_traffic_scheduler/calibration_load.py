"""Calls at one rate, sent when they are due, and what became of them.

Floor: third.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Sequence
from typing import Final

from .calibration_plan import Plan, Progress, seconds_named
from .core.load_curve import CalibrationPoint, Stopped
from .errors import ConfigError
from .loop_clock import clock_of

__all__ = ["Load"]

_LONGEST_ERROR: Final = 200


class Load:
    """Sends one call at each of `dues`, in seconds from its start, ascending; never waits for one before the next.

    It stops sending when the backend throttles, or when `max_unfinished` calls are unfinished: to send later would
    close the loop.
    Cancellation: every call is cancelled, and awaited even through further cancellation.
    """

    def __init__(self, plan: Plan, rate: float, dues: Sequence[float], tell: Progress | None = None) -> None:
        self._plan, self._rate, self._dues = plan, rate, dues
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._start = self._clock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spans: list[tuple[float, float]] = []  # of calls that have ended: sent, ended
        self._latencies: list[float] = []
        self._failures = self._throttled = self._sent = self._most = 0
        self._retry_after: float | None = None
        self._last_error: str | None = None
        self._stopped: Stopped | None = None
        self._seconds = plan.seconds_per_rate
        self._fault: BaseException | None = None
        # No more calls shall go out; nothing is left to wait for.
        self._halt, self._over = self._loop.create_future(), self._loop.create_future()

    async def run(self) -> CalibrationPoint:
        """Return when every call has ended.

        Raises:
            ConfigError: `call` returned what cannot be awaited, or a stream.
            BaseException: what `is_throttled` raised, or `call` if that is no `Exception`.
        """
        try:
            await self._send_all()
            if self._tasks:
                await self._over
        finally:
            await _put_away(self._tasks)
        if self._fault is not None:
            raise self._fault
        return self._point()

    async def _send_all(self) -> None:
        for due in self._dues:
            if (delay := due - self._now()) > 0:
                await asyncio.wait((self._halt,), timeout=delay)
            elif self._sent % 64 == 0:
                await asyncio.sleep(0)  # late: the calls that were sent have to run all the same
            if len(self._tasks) >= self._plan.max_unfinished and not self._halt.done():
                self._stop("unfinished")
            if self._halt.done():
                return
            self._send(due)
        self._seconds = max(self._seconds, self._now())

    def _send(self, due: float) -> None:
        task = self._loop.create_task(self._one(due))
        self._sent += 1
        self._tasks.add(task)
        self._most = max(self._most, len(self._tasks))
        task.add_done_callback(self._ended)
        if self._tell is not None:
            text = f"{self._rate:g} calls/s: {self._sent} of {len(self._dues)} sent, {len(self._tasks)} unfinished"
            self._tell(self._sent / len(self._dues), text)

    async def _one(self, due: float) -> None:
        sent = self._now()
        limit = asyncio.timeout(self._plan.call_timeout)
        try:
            async with limit:
                await self._answer()
        except Exception as error:
            self._failed(error, f"no answer within call_timeout ({self._plan.call_timeout:g} s)" * limit.expired())
        except asyncio.CancelledError as error:
            self._failed(error, "CancelledError of its own")
        else:
            self._latencies.append(self._now() - due)
        self._spans.append((sent, self._now()))

    async def _answer(self) -> None:
        awaitable = self._plan.call()
        name = getattr(self._plan.call, "__qualname__", type(self._plan.call).__name__)
        if not inspect.isawaitable(awaitable):
            self._break(ConfigError(f"{name} returned {type(awaitable).__name__}, which cannot be awaited"))
            return
        answer = await awaitable
        if hasattr(type(answer), "__anext__"):
            self._break(ConfigError(f"{name} returned a stream: read it to its end, so that the answer is timed"))

    def _failed(self, error: BaseException, text: str) -> None:
        self._failures += 1
        line = " ".join("".join(traceback.format_exception_only(error)).split())
        self._last_error = text or line[:_LONGEST_ERROR]
        if not isinstance(error, Exception):
            return
        answer = self._plan.is_throttled(error)
        if answer is None or answer is False:
            return
        if not isinstance(answer, int | float):
            raise ConfigError(f"is_throttled must return a bool, seconds to wait or None, got {answer!r}")
        self._throttled += 1
        if (wait := seconds_named(answer)) is not None:
            self._retry_after = max(wait, self._retry_after or 0.0)
        self._stop("throttled")

    def _stop(self, why: Stopped) -> None:
        """Send no more; what was sent may end."""
        if not self._halt.done():
            self._halt.set_result(None)
            if self._sent < len(self._dues):
                self._stopped = why
                self._seconds = max(self._now(), 1e-9)

    def _break(self, fault: BaseException) -> None:
        """Send no more, wait for nothing, and raise `fault`."""
        self._fault = self._fault or fault
        for waiter in (self._halt, self._over):
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._break(fault)
        all_sent = self._halt.done() or self._sent == len(self._dues)
        if not self._tasks and all_sent and not self._over.done():
            self._over.set_result(None)

    def _now(self) -> float:
        return self._clock() - self._start

    def _point(self) -> CalibrationPoint:
        unfinished = math.fsum(max(0.0, min(ended, self._seconds) - sent) for sent, ended in self._spans)
        return CalibrationPoint(
            rate=self._rate,
            seconds=self._seconds,
            calls=self._sent,
            failures=self._failures,
            throttled=self._throttled,
            retry_after=self._retry_after,
            latencies=tuple(sorted(self._latencies)),
            mean_unfinished=unfinished / self._seconds,
            max_unfinished=self._most,
            stopped=self._stopped,
            last_error=self._last_error,
        )


async def _put_away(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel `tasks` and wait for all of them; being cancelled meanwhile is told only when they have ended."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while tasks:
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
