"""Turns the core's decisions into futures and timers, for one event loop.

Floor: third. There is no dispatcher task, no lock and no polling: whoever changes something
settles it before returning, and one timer stands for everything that time alone can change.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio import current_task
from collections.abc import Callable, Sequence
from typing import Final

from .core.admission import GONE, QUEUED, RUNNING, Admission
from .core.drain_rate import DrainRate
from .core.metrics import SlidingWindowMetrics
from .errors import QueueFull, QueueTimeout, Rejected, SchedulerClosed
from .events import CallFinished, CallQueued, CallRejected, CallStarted, LimitChanged, Outcome, RejectionReason
from .listeners import Listeners
from .policies.base import Decision, LimitPolicy
from .policies.governor import Governor
from .settings import Settings
from .slot import Call, Extras, Verdict, active, running_task
from .snapshot import Tally

__all__ = ["Dispatcher"]

# A loop that sleeps longer than this may overflow its selector (uvloop #259); waking once a day costs nothing.
_LONGEST_SLEEP: Final = 86_400.0
_INFINITY: Final = float("inf")
_REASONS: Final[dict[Verdict, RejectionReason]] = {
    Verdict.FULL: "queue_full",
    Verdict.TIMEOUT: "queue_timeout",
    Verdict.CLOSED: "closed",
}


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock that `loop`'s timers follow.

    `time.monotonic` has the same origin as the loops that ship with asyncio and uvloop, and is finer than
    uvloop's, which stands still within a pass. A loop that keeps its own time is asked.
    """
    own = type(loop)
    if own.__module__.partition(".")[0] == "uvloop" or getattr(own, "time", None) is asyncio.BaseEventLoop.time:
        return time.monotonic
    return loop.time


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
        self.clock: Callable[[], float] = (lambda: 0.0) if loop is None else clock_of(loop)
        self.abandoned = False
        self.lateness = 0.0
        self.governor = Governor(
            policy, SlidingWindowMetrics(settings.window), on_fault=listeners.policy_fault, on_change=self._limit_changed
        )
        self.admission: Admission[Call] = Admission(settings.limits, self.governor)
        self.governor.watch(self.admission)
        self._tallies = tallies
        self._listeners = listeners
        self._interactive_tally, self._batch_tally = tallies["interactive"], tallies["batch"]
        self._rates = DrainRate(settings.window, self.clock(), self._started())
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.attentive = False
        self.look_after()

    # A call's way in

    def admit(self, call: Call) -> None:
        """Start the call or let it wait.

        Raises:
            QueueFull, QueueTimeout: it can do neither.
        """
        now = call.submitted
        admission = self.admission
        if call.observed:
            governor = self.governor
            if now >= governor.slice_end:
                self._enter_slice(now)
            governor.fresh = False
            governor.window.arrived(now)
        state = admission.offer(call)
        if state == RUNNING:
            if self.attentive or admission.batch_queue.size:  # the arrival may have moved the limit
                self._tell_started(call)
                self.settle(now)
        elif state == QUEUED:
            call.waiter = self.loop.create_future()  # type: ignore[union-attr]
            if self.attentive or admission.timed:
                self._tell_queued(call)
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
        """The call's code runs from here on, in this task.

        Raises:
            CallAborted: close() ran out of patience between the grant and the wake-up.
        """
        task = current_task(self.loop)
        if task is not None:
            call.task = task
            call.base = task.cancelling()
        if call.extras is not None:
            self._begin_with(call, call.extras)
        call.token = active.set(call)

    def _begin_with(self, call: Call, extras: Extras) -> None:
        if extras.verdict is not None:
            self.reap(call)
            raise call.overruled()
        if extras.run_timeout < _INFINITY:
            assert self.loop is not None
            extras.run_timer = self.loop.call_at(call.started_at + extras.run_timeout, call.interrupt, Verdict.TIMEOUT)

    # A call's way out

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Take the slot back, exactly once, and hand it on."""
        if call.token is not None:
            try:
                active.reset(call.token)
            except ValueError:
                pass  # a slot() block left in another context; where it was entered, the call shows as gone
            call.token = None  # it holds the context
        if call.state != RUNNING or self.abandoned:
            return
        now = self.clock()
        admission = self.admission
        if call.observed:
            self._observe(call, outcome, now)
        if call.extras is not None or self.attentive:
            self._conclude(call, outcome, now)
        call.task = None  # task -> exception -> traceback -> frame -> call would be a cycle
        admission.release(call)
        tally = self._interactive_tally if call.interactive else self._batch_tally
        if outcome == "completed":
            tally.completed += 1
        else:
            tally.count(outcome)
        if admission.interactive_queue.size or admission.batch_queue.size or self.attentive:
            self.settle(now)

    def _conclude(self, call: Call, outcome: Outcome, now: float) -> None:
        call.settle_cancels()
        if self._listeners.callbacks:
            self._listeners.emit(_finished(call, outcome, now))
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
            self.settle(now)
        elif call.state == RUNNING:
            call.token = None  # of another context, if this is the garbage collector's doing
            self.finish(call, "cancelled")

    def post_reap(self, call: Call) -> None:
        """`reap` from the loop's next pass, from any thread."""
        assert self.loop is not None
        # A closed loop refuses; then the scheduler counts the call as cancelled when it moves to the next one.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.reap, call)

    def _observe(self, call: Call, outcome: Outcome, now: float) -> None:
        governor = self.governor
        if now >= governor.slice_end:
            self._enter_slice(now)
        if outcome == "completed":
            governor.fresh = False
            governor.window.completed(now, now - call.submitted)
        else:
            governor.failed(now, max(0.0, now - call.submitted))

    def _enter_slice(self, now: float) -> None:
        self.governor.roll(now)
        self._rates.mark(now, self._started())

    def _leave_unstarted(self, call: Call, now: float) -> None:
        tally = self._tallies[call.kind]
        tally.cancelled += 1
        tally.never_started += 1
        if call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        if self._listeners.callbacks:
            waited = max(0.0, now - call.submitted)
            self._listeners.emit(CallFinished(now, call.kind, call.label, "cancelled", waited, 0.0))

    # What follows from a change

    def settle(self, now: float) -> None:
        """Refuse whose time is over, start who may run, arm the timer, tell the listeners.

        A slot is counted to its next owner before that one wakes, so nobody can take it in between. A waiter that was
        cancelled in this same pass and has not noticed yet passes it on here.
        """
        admission = self.admission
        if admission.timed:
            for call in admission.expire(now):
                self._refuse(call, Verdict.TIMEOUT, now)
        started: Sequence[Call] = admission.fill(now)
        while started:
            passed_on = False
            for call in started:
                waiter = call.waiter
                if waiter.done():  # type: ignore[union-attr]
                    passed_on = True
                    admission.release(call)
                    self._leave_unstarted(call, now)
                else:
                    waiter.set_result(None)  # type: ignore[union-attr]
                    if self.attentive:
                        self._tell_started(call)
            started = admission.fill(now) if passed_on else ()
        if admission.timed or self._timer is not None:
            self._arm(now)
        if self.attentive:
            self._attend()

    def _tell_queued(self, call: Call) -> None:
        if self._listeners.callbacks:
            _, interactive_queued, _, batch_queued = self.admission.counts
            queued = interactive_queued if call.interactive else batch_queued
            self._listeners.emit(CallQueued(call.queued_at, call.kind, call.label, queued))

    def _tell_started(self, call: Call) -> None:
        if self._listeners.callbacks:
            self._listeners.emit(CallStarted(call.started_at, call.kind, call.label, call.waited(call.started_at)))

    def _arm(self, now: float) -> None:
        due = self.admission.next_look(now)
        if due == _INFINITY:
            self.disarm()
        # An earlier timer stays: it looks again when it fires, which costs less than replacing it each time.
        elif self._timer is None or due < self._due:
            self.disarm()
            assert self.loop is not None
            self._due = min(due, now + _LONGEST_SLEEP)
            self._timer = self.loop.call_at(self._due, self._tick)

    def _started(self) -> tuple[int, int]:
        interactive_running, _, batch_running, _ = self.admission.counts
        return self._interactive_tally.started(interactive_running), self._batch_tally.started(batch_running)

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
        if self._listeners.callbacks:
            self._listeners.emit(LimitChanged(self.clock(), before.limit, after.limit, after.pressure, after.reason))

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
        verdict = Verdict.TIMEOUT if call.deadline <= now and not self._full(call) else Verdict.FULL
        self._count_rejected(call, verdict, now)
        self.settle(now)
        return self.refusal(call, verdict)

    def _full(self, call: Call) -> bool:
        bound = self.admission.bound(call.interactive)
        queue = self.admission.interactive_queue if call.interactive else self.admission.batch_queue
        return bound is not None and len(queue) >= bound

    def _count_rejected(self, call: Call, verdict: Verdict, now: float) -> None:
        self._tallies[call.kind].rejected += 1
        if verdict is Verdict.TIMEOUT and call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        elif call.observed:
            self.governor.window.trim(now)
        if self._listeners.callbacks:
            waited = max(0.0, now - call.submitted)
            self._listeners.emit(CallRejected(now, call.kind, call.label, _REASONS[verdict], waited))

    def refusal(self, call: Call, verdict: Verdict) -> Rejected:
        """What the refused call's caller gets; a fresh exception for each."""
        admission, kind, now = self.admission, call.kind, self.clock()
        queue = admission.interactive_queue if call.interactive else admission.batch_queue
        queued, bound = len(queue), admission.bound(call.interactive)
        retry_after = self._rates.seconds_for(queued, now, self._started(), 0 if call.interactive else 1)
        state = f"{queued} {kind} calls wait, {admission.running} of {admission.limits.max_concurrency} slots are taken"
        if verdict is Verdict.FULL:
            assert bound is not None
            return QueueFull(
                f"the {kind} queue holds {queued} of {bound} calls: try again later or raise max_queued_{kind}",
                kind=kind,
                queued=queued,
                limit=bound,
                retry_after=retry_after,
            )
        waited = call.waited(call.started_at)
        if verdict is Verdict.TIMEOUT:
            return QueueTimeout(
                f"{call.title} got no slot within {waited:.3g} s; {state}: "
                "raise queue_timeout, or submit fewer calls at once",
                kind=kind,
                waited=waited,
                retry_after=retry_after,
            )
        return SchedulerClosed(f"{call.title} waited {waited:.3g} s when the scheduler was closed", kind=kind)

    # The end of the loop

    def abandon(self, *, wake: bool) -> None:
        """Count every call as cancelled and never touch anything again; the loop has gone.

        `wake`: the loop is not closed and may run again, so whoever waits there is cancelled.
        """
        self.abandoned = True
        self.disarm()
        for call in list(self.admission.calls()):
            tally = self._tallies[call.kind]
            tally.cancelled += 1
            tally.never_started += call.state == QUEUED
            if call.extras is not None and call.extras.run_timer is not None:
                call.extras.run_timer.cancel()
            if wake and call.waiter is not None:
                call.waiter.cancel()
            call.state = GONE
        for waiter in self._idle_waiters:
            if wake:
                waiter.cancel()

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self.admission.check()
        self.governor.window.check()
        waits = self.admission.interactive_queue or self.admission.batch_queue
        assert self._timer is None or waits or self.abandoned, "a timer although nothing waits"
        if self.loop is not None and not self.abandoned:
            self.admission.check_conserving(self.clock())


def _finished(call: Call, outcome: Outcome, now: float) -> CallFinished:
    slot = None if call.extras is None else call.extras.slot
    first = None if slot is None or slot.first_token_at is None else slot.first_token_at - call.submitted
    return CallFinished(
        now,
        call.kind,
        call.label,
        outcome,
        waited=max(0.0, call.started_at - call.submitted),
        ran=max(0.0, now - call.started_at),
        first_token=first,
        tokens=0 if slot is None else slot.token_count,
    )
