"""Turns the core's decisions into futures and timers, for one event loop.

Floor: third. There is no dispatcher task, no lock and no polling: whoever changes something
settles it before returning, and one timer stands for everything that time alone can change.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import current_task
from collections.abc import Callable, Mapping
from contextvars import Context
from threading import get_ident
from typing import Final

from .core.admission import GONE, QUEUED, RUNNING, Admission
from .core.drain_rate import DrainRate
from .core.metrics import SlidingWindowMetrics
from .errors import Rejected
from .events import Outcome
from .listeners import Listeners
from .loop_clock import clock_of, future_maker
from .policies.base import Decision, LimitPolicy
from .policies.governor import Governor
from .refusals import refusal
from .settings import Settings
from .slot import Call, Extras, Verdict, running_task
from .snapshot import Tally

__all__ = ["LOOKUP_IS_DEAR", "Dispatcher"]

# Until 3.12 asking for the running loop costs a system call, for the process id: a quarter of a Semaphore's time.
LOOKUP_IS_DEAR: Final = sys.version_info < (3, 12)
_current_tasks: Final[Mapping[object, object]] = getattr(asyncio.tasks, "_current_tasks", {})

# A loop that sleeps longer than this may overflow its selector (uvloop #259); waking once a day costs nothing.
_LONGEST_SLEEP: Final = 86_400.0
_INFINITY: Final = float("inf")
_SOMETIMES: Final = 511  # every 512th completion looks whether the window has much to fold


class Dispatcher:
    """Admission, governor and timers of one scheduler on one event loop.

    When the scheduler moves to another loop it makes a new dispatcher and abandons this one; calls keep
    the one they were submitted to (`Call.home`), so a late release can never touch the new one's slots.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        settings: Settings,
        policy: LimitPolicy,
        tallies: dict[str, Tally],
        listeners: Listeners,
    ) -> None:
        self.loop = loop
        self.thread = get_ident()  # that of the loop, whenever it is asked for
        self.clock: Callable[[], float] = (lambda: 0.0) if loop is None else clock_of(loop)
        self._new_waiter: Callable[[], asyncio.Future[Verdict | None]] = future_maker(loop)
        self.abandoned = False
        self.lateness = 0.0
        self.governor = Governor(
            policy,
            SlidingWindowMetrics(settings.window),
            on_fault=listeners.policy_fault,
            on_change=self._limit_changed,
        )
        self.admission: Admission[Call] = Admission(settings.limits, self.governor)
        self.governor.watch(self.admission)
        self._tallies = tallies
        self._listeners = listeners
        self._interactive_tally, self._batch_tally = tallies["interactive"], tallies["batch"]
        self._rates = DrainRate(settings.window, self.clock(), self._ended())
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        # A timer would keep, and run in, the context of whichever call happened to arm it.
        self._context = Context()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.attentive = False
        self.look_after()

    # A call's way in

    def is_here(self) -> bool:
        """This code runs on our loop, in a task. For where LOOKUP_IS_DEAR.

        False if the loop has moved to another thread and nobody has submitted there yet.
        """
        return get_ident() == self.thread and self.loop in _current_tasks

    def admit(self, call: Call) -> None:
        """Start the call or let it wait.

        Raises:
            QueueFull, QueueTimeout: it can do neither.
        """
        now = call.submitted
        if call.observed:
            if now >= self.governor.slice_end:
                self.enter_slice(now)
            self.governor.fresh = False
            self.governor.window.pending.arrivals += 1
        if self.admission.offer(call) != RUNNING or self.attentive or self.admission.batch_queue.size:
            self.admitted(call)

    def admitted(self, call: Call) -> None:
        """What follows from `offer` where anybody waits or listens.

        Raises:
            QueueFull, QueueTimeout: the call can neither run nor wait.
        """
        now, admission = call.submitted, self.admission
        if call.state == RUNNING:
            self._listeners.started(call)
            self.settle(now)
        elif call.state == QUEUED:
            call.task = None
            call.waiter = self._new_waiter()
            if self.attentive or admission.timed:
                self._listeners.queued(call, admission.counts[1 if call.interactive else 3])
                self.settle(now)
        else:
            raise self._turned_away(call, now)

    def quit(self, call: Call, error: BaseException) -> None:
        """The caller of a waiting call has left with `error`: out of the queue, or the slot it just got goes on."""
        if isinstance(error, GeneratorExit):
            self.post_reap(call)
        else:
            self.reap(call)

    def begin(self, call: Call) -> None:
        """The call's code runs from here on, in this task."""
        if call.extras is not None:
            self.begin_with(call, call.extras)
        task = call.task = current_task(self.loop)
        if task is not None:
            call.base = task.cancelling()

    def begin_with(self, call: Call, extras: Extras) -> None:
        """What those that have extras need as they begin to run.

        Raises:
            CallAborted: close() ran out of patience between the grant and the wake-up.
        """
        if extras.verdict is not None:
            self.reap(call)
            raise call.overruled()
        if extras.run_timeout < _INFINITY:
            assert self.loop is not None
            extras.run_timer = self.loop.call_at(call.started_at + extras.run_timeout, call.interrupt, Verdict.TIMEOUT)

    # A call's way out

    def complete(self, call: Call) -> None:
        """Take the slot back from a call that succeeded, exactly once, and hand it on."""
        if call.state != RUNNING:
            call.settle_cancels()
            return
        now = self.clock()
        tally = self._interactive_tally if call.interactive else self._batch_tally
        tally.completed = completed = tally.completed + 1
        if call.observed:
            governor = self.governor
            if now >= governor.slice_end:
                self.enter_slice(now)
            governor.fresh, governor.bar = False, None
            governor.window.pending.latencies.append(now - call.submitted)
            if not completed & _SOMETIMES:
                governor.window.trim(now)
        if call.extras is not None or self.attentive:
            self._conclude(call, "completed", now)
        call.task = None  # task -> exception -> traceback -> frame -> call would be a cycle
        admission = self.admission
        del (admission.interactive_running if call.interactive else admission.batch_running)[call]
        call.state = GONE
        if admission.interactive_queue.size or admission.batch_queue.size or self.attentive:
            self.settle(now)

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Take the slot back from a call that ended otherwise, exactly once, and hand it on."""
        if call.state != RUNNING:
            call.settle_cancels()
            return
        now = self.clock()
        if call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        self._tallies[call.kind].count(outcome)
        if call.extras is not None or self.attentive:
            self._conclude(call, outcome, now)
        call.task = None
        if self.admission.release(call) or self.attentive:
            self.settle(now)

    def _conclude(self, call: Call, outcome: Outcome, now: float) -> None:
        call.settle_cancels()
        self._listeners.finished(call, outcome, now)
        if call.extras is not None:
            call.extras.clear()

    def fail(self, call: Call, error: BaseException) -> bool:
        """Take the slot back from a call that ended with `error`; True if our own cancel decides what the caller sees.

        An outer cancel wins over ours, and a result or an exception of the call's own over both.
        """
        if isinstance(error, GeneratorExit) and call.task is not running_task():
            # The garbage collector closes the coroutine, in whatever thread and context it happens to run.
            self.post_reap(call)
            return False
        cancelled = isinstance(error, asyncio.CancelledError)
        ours = call.settle_cancels() and cancelled
        timed_out = ours and call.extras is not None and call.extras.verdict is Verdict.TIMEOUT
        self.finish(call, "timed_out" if timed_out else "cancelled" if cancelled else "failed")
        return ours

    def reap(self, call: Call) -> None:
        """Take out a call whose caller has gone, wherever it stands."""
        if self.abandoned:
            return
        if call.state == QUEUED:
            now = self.clock()
            self.admission.withdraw(call)
            self._leave_unstarted(call, now)
            # With every slot taken and no deadline about, one waiter less lets nobody start.
            if self.attentive or self.admission.timed or self._timer is not None:
                self.settle(now)
        elif call.state == RUNNING:
            self.finish(call, "cancelled")

    def post_reap(self, call: Call) -> None:
        """`reap` from the loop's next pass, from any thread."""
        assert self.loop is not None
        # A closed loop refuses; then the scheduler counts the call as cancelled when it moves to the next one.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.reap, call, context=self._context)

    def enter_slice(self, now: float) -> None:
        self.governor.roll(now)
        self._rates.mark(now, self._ended())

    def _leave_unstarted(self, call: Call, now: float) -> None:
        tally = self._tallies[call.kind]
        tally.cancelled += 1
        tally.never_started += 1
        if call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        call.started_at = now  # the end of its wait
        self._listeners.finished(call, "cancelled", now)

    # What follows from a change

    def settle(self, now: float) -> None:
        """Refuse whose time is over, start who may run, arm the timer, tell the listeners.

        A slot is counted to its next owner before that one wakes, so nobody can take it in between.
        """
        admission = self.admission
        if admission.timed:
            for call in admission.expire(now):
                self._refuse(call, Verdict.TIMEOUT, now)
        for call in admission.fill(now):
            call.waiter.set_result(None)  # type: ignore[union-attr]
            if self.attentive:
                self._listeners.started(call)
        while admission.dropped:
            self._leave_unstarted(admission.dropped.pop(), now)
        if admission.timed or self._timer is not None:
            self._arm(now)
        if self.attentive:
            self._attend()

    def _arm(self, now: float) -> None:
        due = self.admission.next_look(now)
        if due == _INFINITY:
            self.disarm()
        # An earlier timer stays: it looks again when it fires, which costs less than replacing it each time.
        elif self._timer is None or due < self._due:
            self.disarm()
            assert self.loop is not None
            self._due = min(due, now + _LONGEST_SLEEP)
            self._timer = self.loop.call_at(self._due, self._tick, context=self._context)

    def _ended(self) -> tuple[int, int]:
        return self._interactive_tally.started(0), self._batch_tally.started(0)

    def disarm(self) -> None:
        """No timer from here on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        # A loop whose clock is coarse fires early: what is due is due, or it would fire again and again.
        now = self.clock()
        self.lateness = max(0.0, now - self._due)
        self._timer = None
        self.settle(max(now, self._due))

    def _attend(self) -> None:
        if self._idle_waiters and self.admission.idle:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
            self.look_after()
        self._listeners.flush()

    def look_after(self) -> None:
        """Note whether somebody has to hear of changes; for when listeners come or go."""
        self.attentive = bool(self._listeners.callbacks or self._idle_waiters)

    def when_idle(self) -> asyncio.Future[None]:
        """A future that is done once nothing runs and nothing waits."""
        assert self.loop is not None
        waiter: asyncio.Future[None] = self.loop.create_future()
        if self.admission.idle:
            waiter.set_result(None)
        else:
            self._idle_waiters.append(waiter)
            self.attentive = True
        return waiter

    async def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        waiter = self.when_idle()
        try:
            await waiter
        finally:
            if waiter in self._idle_waiters:
                self._idle_waiters.remove(waiter)
                self.look_after()

    def _limit_changed(self, before: Decision, after: Decision) -> None:
        self._listeners.limit_changed(self.clock(), before, after)

    # Refusals

    def refuse_queued(self, kinds: frozenset[str]) -> int:
        """Refuse what waits of these kinds because the scheduler closes; returns how many."""
        now = self.clock()
        doomed = [call for call in self.admission.calls() if call.state == QUEUED and call.kind in kinds]
        for call in doomed:
            self.admission.withdraw(call)
            self._refuse(call, Verdict.CLOSED, now)
        self.settle(now)
        return len(doomed)

    def _refuse(self, call: Call, verdict: Verdict, now: float) -> None:
        waiter = call.waiter
        assert waiter is not None
        if waiter.done():  # cancelled in this pass; its own clean-up finds it gone
            self._leave_unstarted(call, now)
            return
        call.started_at = now  # the end of its wait
        self._count_rejected(call, verdict, now)
        waiter.set_result(verdict)

    def _turned_away(self, call: Call, now: float) -> Rejected:
        call.started_at = now
        bound = self.admission.bound(call.interactive)
        full = bound is not None and self._queued(call) >= bound
        verdict = Verdict.FULL if full else Verdict.TIMEOUT
        refusal = self.refusal(call, verdict)  # before a listener can change the numbers
        self._count_rejected(call, verdict, now)
        self.settle(now)
        return refusal

    def _queued(self, call: Call) -> int:
        return (self.admission.interactive_queue if call.interactive else self.admission.batch_queue).size

    def _count_rejected(self, call: Call, verdict: Verdict, now: float) -> None:
        self._tallies[call.kind].rejected += 1
        if verdict is Verdict.TIMEOUT and call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        self._listeners.rejected(call, verdict)

    def refusal(self, call: Call, verdict: Verdict) -> Rejected:
        """What the refused call's caller gets; a fresh exception for each."""
        queued, kind = self._queued(call), 0 if call.interactive else 1
        retry_after = self._rates.seconds_for(queued + 1, self.clock(), self._ended(), kind)
        return refusal(call, verdict, self.admission, queued, retry_after)

    # The end of the loop

    def abandon(self, *, wake: bool) -> None:
        """Count every call as cancelled and never touch anything again; the loop has gone.

        `wake`: the loop is not closed and may run again, so whoever waits there is cancelled.
        """
        self.abandoned = True
        self.disarm()
        calls = list(self.admission.calls())
        # Late timers of that loop find nothing to do.
        paused, self.admission = self.admission.paused, Admission(self.admission.limits, self.governor)
        self.admission.set_paused(paused, 0.0)
        self.governor.watch(self.admission)
        for call in calls:
            tally = self._tallies[call.kind]
            tally.cancelled += 1
            tally.never_started += call.state == QUEUED
            if call.extras is not None and call.extras.run_timer is not None:
                call.extras.run_timer.cancel()
            if wake and call.waiter is not None:
                call.waiter.cancel()
            call.state = GONE
        if wake:
            for waiter in self._idle_waiters:
                waiter.cancel()
        self._idle_waiters.clear()

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self.admission.check()
        self.governor.window.check()
        waits = self.admission.interactive_queue or self.admission.batch_queue
        assert self._timer is None or waits or self.abandoned, "a timer although nothing waits"
        if self.loop is not None and not self.abandoned:
            self.admission.check_conserving(self.clock())
