"""Turns the core's decisions into futures and timers, for one event loop.

Floor: third. There is no dispatcher task, no lock and no polling: whoever changes something
settles it before returning, and one timer stands for everything that time alone can change.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
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
from .slot import Call, Verdict, enter, leave, running_task
from .snapshot import Tally

__all__ = ["Dispatcher"]

# A loop that sleeps longer than this may overflow its selector (uvloop #259); waking once a day costs nothing.
_LONGEST_SLEEP: Final = 86_400.0
_INFINITY: Final = float("inf")


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
        self._rates = {kind: DrainRate(settings.window, self.clock()) for kind in tallies}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._idle_waiters: list[asyncio.Future[None]] = []

    # A call's way in

    def admit(self, call: Call) -> None:
        """Start the call or let it wait.

        Raises:
            QueueFull, QueueTimeout: it can do neither.
        """
        now = call.submitted
        admission = self.admission
        if call.interactive and call.observed:
            self.governor.arrived(now)
        if admission.offer(call):
            self._started(call)
            if admission.batch_queue:  # the arrival may have moved the limit
                self.settle(now)
            return
        bound = admission.bound(call.interactive)
        queue = admission.interactive_queue if call.interactive else admission.batch_queue
        if bound is not None and len(queue) >= bound:
            raise self._turned_away(call, "queue_full", now)
        if call.deadline <= now:
            raise self._turned_away(call, "queue_timeout", now)
        assert self.loop is not None
        call.waiter = self.loop.create_future()
        admission.enqueue(call, now)
        if self._listeners:
            self._listeners.emit(CallQueued(now, call.kind, call.label, len(queue)))
        self.settle(now)

    async def granted(self, call: Call) -> None:
        """Wait for the slot.

        Raises:
            QueueTimeout, SchedulerClosed: the call was refused.
        Cancellation: the call leaves the queue, or passes its slot on if it had just been given one.
        """
        assert call.waiter is not None
        try:
            verdict = await call.waiter
        except GeneratorExit:
            self.post_reap(call)
            raise
        except BaseException:
            self.reap(call)
            raise
        if verdict is not None:
            raise self.refusal(call, verdict)
        if call.verdict is not None:  # close() ran out of patience between the grant and this wake-up
            self.reap(call)
            raise call.overruled()

    def begin(self, call: Call) -> None:
        """The call's code runs from here on, in this task."""
        loop = self.loop
        assert loop is not None
        task = asyncio.current_task(loop)
        if task is not None:
            call.task = task
            call.base = task.cancelling()
        enter(call)
        if call.run_timeout != _INFINITY:
            call.run_timer = loop.call_at(call.started_at + call.run_timeout, call.interrupt, Verdict.TIMEOUT)

    # A call's way out

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Take the slot back, exactly once, and hand it on."""
        if call.own_cancels:
            call.settle_cancels()
        leave(call)
        if call.state == RUNNING and not self.abandoned:
            self._release(call, outcome)

    def fail(self, call: Call, error: BaseException) -> bool:
        """Take the slot back from a call that ended with `error`; True if our own cancel decides what the caller sees.

        An outer cancel wins over ours, and a result or an exception of the call's own over both.
        """
        task = call.task
        if isinstance(error, GeneratorExit) and task is not running_task():
            # The garbage collector closes the coroutine, in whatever thread and context it happens to run.
            self.post_reap(call)
            return False
        cancelled = isinstance(error, asyncio.CancelledError)
        if call.own_cancels and call.settle_cancels() and cancelled:
            self.finish(call, "timed_out" if call.verdict is Verdict.TIMEOUT else "cancelled")
            return True
        self.finish(call, "cancelled" if cancelled else "failed")
        return False

    def reap(self, call: Call) -> None:
        """Take out a call whose caller has gone, wherever it stands."""
        if call.state == QUEUED and not self.abandoned:
            now = self.clock()
            self.admission.withdraw(call)
            self._leave_unstarted(call, now)
            self.settle(now)
        elif call.state == RUNNING and not self.abandoned:
            self._release(call, "cancelled")

    def post_reap(self, call: Call) -> None:
        """`reap` from the loop's next pass, from any thread."""
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self.reap, call)
        except RuntimeError:
            pass  # the loop is closed; the scheduler will count the call as cancelled when it moves to the next

    def _release(self, call: Call, outcome: Outcome) -> None:
        now = self.clock()
        admission = self.admission
        if call.interactive and call.observed:
            if outcome == "completed":
                self.governor.completed(now, max(0.0, now - call.submitted))
            else:
                self.governor.failed(now, max(0.0, now - call.submitted))
        admission.release(call)
        tally = self._tallies["interactive" if call.interactive else "batch"]
        setattr(tally, outcome, getattr(tally, outcome) + 1)
        if call.run_timer is not None:
            call.run_timer.cancel()
            call.run_timer = None
        call.task = None  # task -> exception -> traceback -> frame -> call would be a cycle
        call.slot = None
        if self._listeners:
            self._listeners.emit(self._finished(call, outcome, now))
        if admission.interactive_queue or admission.batch_queue or self._timer is not None:
            self.settle(now)
        else:
            self._after()

    def _leave_unstarted(self, call: Call, now: float) -> None:
        self._tallies[call.kind].cancelled += 1
        if call.interactive and call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        if self._listeners:
            self._listeners.emit(CallFinished(now, call.kind, call.label, "cancelled", now - call.submitted, 0.0))

    @staticmethod
    def _finished(call: Call, outcome: Outcome, now: float) -> CallFinished:
        first = None if call.first_token_at is None else call.first_token_at - call.submitted
        return CallFinished(
            now,
            call.kind,
            call.label,
            outcome,
            call.waited(now),
            max(0.0, now - call.started_at),
            first,
            call.token_count,
        )

    # What follows from a change

    def settle(self, now: float) -> None:
        """Refuse whose time is over, start who may run, arm the timer, tell the listeners.

        A slot is counted to its next owner before that one wakes, so nobody can take it in between. A waiter that was
        cancelled in this same pass and has not noticed yet passes it on here.
        """
        admission = self.admission
        for call in admission.expire(now):
            self._refuse(call, Verdict.TIMEOUT, now)
        started = deque(admission.fill(now))
        while started:
            call = started.popleft()
            waiter = call.waiter
            assert waiter is not None
            if waiter.done():
                admission.release(call)
                self._leave_unstarted(call, now)
                started.extend(admission.fill(now))
            else:
                waiter.set_result(None)
                self._started(call)
        self._arm(now)
        self._after()

    def _started(self, call: Call) -> None:
        tally = self._tallies["interactive" if call.interactive else "batch"]
        tally.started += 1
        if call.waiter is not None:
            self._rates[call.kind].mark(call.started_at, tally.started)
        if self._listeners:
            self._listeners.emit(CallStarted(call.started_at, call.kind, call.label, call.waited(call.started_at)))

    def _arm(self, now: float) -> None:
        due = self.admission.next_look(now)
        if due == _INFINITY:
            self.disarm()
            return
        due = min(due, now + _LONGEST_SLEEP)
        # An earlier timer stays: it looks again when it fires, which costs less than replacing it each time.
        if self._timer is None or due < self._due:
            self.disarm()
            assert self.loop is not None
            self._due = due
            self._timer = self.loop.call_at(due, self._tick)

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

    def _after(self) -> None:
        if self._idle_waiters and self.admission.idle:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
        if self._listeners:
            self._listeners.flush()

    def when_idle(self) -> asyncio.Future[None]:
        """A future that is done once nothing runs and nothing waits."""
        assert self.loop is not None
        waiter: asyncio.Future[None] = self.loop.create_future()
        if self.admission.idle:
            waiter.set_result(None)
        else:
            self._idle_waiters.append(waiter)
        return waiter

    async def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        waiter = self.when_idle()
        try:
            await waiter
        finally:
            if waiter in self._idle_waiters:
                self._idle_waiters.remove(waiter)

    def _limit_changed(self, before: Decision, after: Decision) -> None:
        if self._listeners:
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
        self._count_rejected(call, "queue_timeout" if verdict is Verdict.TIMEOUT else "closed", now)
        waiter.set_result(verdict)

    def _turned_away(self, call: Call, reason: RejectionReason, now: float) -> Rejected:
        call.state = GONE
        self._count_rejected(call, reason, now)
        self.settle(now)
        return self.refusal(call, Verdict.FULL if reason == "queue_full" else Verdict.TIMEOUT)

    def _count_rejected(self, call: Call, reason: RejectionReason, now: float) -> None:
        self._tallies[call.kind].rejected += 1
        if reason == "queue_timeout" and call.interactive and call.observed:
            self.governor.failed(now, max(0.0, now - call.submitted))
        if self._listeners:
            self._listeners.emit(CallRejected(now, call.kind, call.label, reason, max(0.0, now - call.submitted)))

    def refusal(self, call: Call, verdict: Verdict) -> Rejected:
        """What the refused call's caller gets; a fresh exception for each."""
        admission, kind, now = self.admission, call.kind, self.clock()
        queue = admission.interactive_queue if call.interactive else admission.batch_queue
        queued, bound = len(queue), admission.bound(call.interactive)
        retry_after = self._rates[kind].seconds_for(queued, now, self._tallies[kind].started)
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
            self._tallies[call.kind].cancelled += 1
            if call.run_timer is not None:
                call.run_timer.cancel()
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
