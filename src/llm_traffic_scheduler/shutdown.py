"""How a scheduler ends: refuse, finish, cancel, report.

Floor: third. `drain` and `close` are methods of `TrafficScheduler`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

from .call import Call, Verdict
from .core import checks
from .core.admission import GONE, LENT_ON, QUEUED
from .dispatcher import Dispatcher
from .errors import ConfigError
from .nested import guests_elsewhere
from .refusals import refuse_queued
from .snapshot import CloseReport, Tally
from .work import Kind, kind_name

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["Shutdown", "close", "drain"]

GRACE: Final = 1.0
"""Seconds that cancelled calls get to end before they are reported as abandoned."""

ALL_KINDS: Final = frozenset({"interactive", "batch"})


class Shutdown:
    """One close of one scheduler, however many times `close()` is called.

    It goes on by itself, by the loop's timers, also if whoever called `close()` is cancelled meanwhile.
    """

    def __init__(self, dispatcher: Dispatcher, tallies: dict[str, Tally]) -> None:
        self.report: CloseReport | None = None
        self.over = False  # patience has run out: calls inside of others are refused too
        self._dispatcher = dispatcher
        self._tallies = tallies
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._interrupted: list[Call] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._ended_before = self._ended()
        self._rejected_before = self._rejected()
        if dispatcher.admission.idle or dispatcher.loop is None:
            self._finish()
        else:
            dispatcher.when_idle().add_done_callback(self._idle)

    def refuse(self, kinds: frozenset[str], *, nested_too: bool = False) -> None:
        """Turn away what waits of these kinds."""
        if self._open():
            refuse_queued(self._dispatcher, kinds, nested_too=nested_too)

    def bound(self, deadline: float) -> None:
        """Cancel what still runs at `deadline`; the earliest one given holds."""
        if deadline < self._deadline and self._open() and not self._interrupted:
            self._deadline = deadline
            self._arm(deadline, self._interrupt)

    async def done(self) -> CloseReport:
        """Wait for the end and say what became of the calls.

        Cancellation: the close goes on.
        """
        if self._open():
            assert self._dispatcher.loop is not None
            waiter = self._dispatcher.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        assert self.report is not None
        return self.report

    def _arm(self, when: float, callback: Callable[[], None]) -> None:
        assert self._dispatcher.loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._dispatcher.loop.call_at(when, callback)

    def _open(self) -> bool:
        """Something is still to be done here. Not if the loop that was to do it has gone."""
        if self._dispatcher.abandoned:
            self._finish()
        return self.report is None

    def _interrupt(self) -> None:
        if not self._open():
            return
        self.over = True
        started = [call for call in self._dispatcher.admission.calls() if call.state != QUEUED or call.gave_way_once]
        self._interrupted = [call for call in started if call.state != LENT_ON]
        if self.report is None:
            self._arm(self._dispatcher.clock() + GRACE, self._finish)
        for call in dict.fromkeys([*self._interrupted, *guests_elsewhere(started)]):
            call.interrupt(Verdict.CLOSED)
        # Last, so that what a call inside of another is told is not taken by the other's code for an error.
        self.refuse(ALL_KINDS, nested_too=True)

    def _idle(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.cancelled() or self._dispatcher.abandoned:
            self._finish()

    def _finish(self) -> None:
        if self.report is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        cancelled = sum(call.state in (GONE, LENT_ON) for call in self._interrupted)
        self.report = CloseReport(
            finished=self._ended() - self._ended_before - cancelled,
            rejected=self._rejected() - self._rejected_before,
            cancelled=cancelled,
            abandoned=len(self._interrupted) - cancelled,
        )
        for waiter in self._waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    def _ended(self) -> int:
        return sum(tally.ended - tally.rejected for tally in self._tallies.values())

    def _rejected(self) -> int:
        return sum(tally.rejected for tally in self._tallies.values())


async def drain(scheduler: TrafficScheduler) -> None:
    """Return once the scheduler has been idle at any instant after the call; new work is not refused.

    Raises:
        SchedulerMisuse: called from inside a slot, which would wait for itself.
    Cancellation: harmless.
    """
    scheduler._outside_a_slot("drain")
    await scheduler._on(asyncio.get_running_loop()).wait_idle()


async def close(
    scheduler: TrafficScheduler,
    *,
    timeout: float | EllipsisType | None = ...,
    finish_queued: Iterable[Kind] | Kind = ("interactive",),
) -> CloseReport:
    """Refuse new calls and those that wait, except of the kinds in `finish_queued`; let the rest end.

    After `timeout` seconds (left out: `close_timeout`; None: no bound) what still runs is cancelled and its callers
    get CallAborted; what has not ended a second later is reported as abandoned. Called twice: the earlier
    deadline holds.

    Raises:
        ConfigError: `timeout` is below 0, or `finish_queued` names what is no kind; nothing was closed.
        SchedulerMisuse: called from inside a slot, which would wait for itself.
    Cancellation: the close goes on.
    """
    scheduler._outside_a_slot("close")
    given = scheduler._settings.close_timeout if timeout is ... else timeout
    patience = checks.timeout("timeout", given)
    if not patience >= 0:
        raise ConfigError(f"timeout must be at least 0 seconds or None, got {given!r}")
    kinds: Iterable[Any] = (finish_queued,) if isinstance(finish_queued, str) else finish_queued
    kept = frozenset(kind_name(kind) for kind in kinds) - scheduler._home.admission.paused
    home = scheduler._on(asyncio.get_running_loop())
    if scheduler._shutdown is None:
        scheduler._shutdown, scheduler._never_plain = Shutdown(home, scheduler._tallies), True
    scheduler._shutdown.refuse(ALL_KINDS - kept)
    if patience < math.inf:
        scheduler._shutdown.bound(home.clock() + patience)
    return await scheduler._shutdown.done()
