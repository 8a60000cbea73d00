"""Turns the core's decisions into futures and timers, for one event loop.

Floor: third. There is no dispatcher task, no lock and no polling: whoever changes something
settles it before returning, and one timer stands for everything that time alone can change.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import current_task
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import Context
from threading import get_ident
from typing import TYPE_CHECKING, Final

from . import nested, refusals, way_out
from .call import Call, Extras, Verdict
from .core.admission import GONE, QUEUED, RUNNING, Admission
from .core.drain_rate import DrainRate
from .core.metrics import FOLD_AT, SlidingWindowMetrics
from .idleness import IdleWaiters
from .listeners import Listeners
from .loop_clock import clock_of, future_maker
from .observation import tell_arrived, tell_ended
from .policies.base import Decision, LimitPolicy
from .policies.governor import Governor
from .settings import Settings
from .snapshot import Tally
from .surroundings import is_bulk
from .watchman import Watchman

if TYPE_CHECKING:
    from .preemption import Preemption

__all__ = ["LOOKUP_IS_DEAR", "Dispatcher"]

# Until 3.12 asking for the running loop costs a system call, for the process id: a quarter of a Semaphore's time.
LOOKUP_IS_DEAR: Final = sys.version_info < (3, 12)
_current_tasks: Final[Mapping[object, object]] = getattr(asyncio.tasks, "_current_tasks", {})

# A loop that sleeps longer than this may overflow its selector (uvloop #259); waking once a day costs nothing.
_LONGEST_SLEEP: Final = 86_400.0
_INFINITY: Final = float("inf")


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
        self.new_waiter: Callable[[], asyncio.Future[Verdict | None]] = future_maker(loop)
        self.abandoned, self.lateness = False, 0.0
        self.governor = Governor(
            policy,
            SlidingWindowMetrics(settings.window),
            on_fault=listeners.policy_fault,
            on_change=self._limit_changed,
        )
        self.admission: Admission[Call] = Admission(settings.limits, self.governor)
        self.governor.watch(self.admission)
        self.name = listeners.name
        self.tallies = tallies
        self.listeners = listeners
        self._interactive_tally, self._batch_tally = tallies["interactive"], tallies["batch"]
        self.rates = DrainRate(settings.window, self.clock(), self.ended())
        self.watchman = Watchman(self, self.clock())
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.idle_waiters = IdleWaiters()
        # Who waits here while holding a slot elsewhere, and what holds it, by where; see `circles.py`.
        self.crossing: dict[Dispatcher, OrderedDict[Call, Call]] = {}
        self.warned: set[Call] = set()  # those of them that have warned of a circle, and wait still
        # A timer would keep, and run in, the context of whichever call happened to arm it.
        self._context = Context()
        self.preemption: Preemption | None = None  # made for the first call that may be preempted
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
        self.count_arrival(call, call.submitted)
        bulk = call.parent is not None and is_bulk(call.parent)
        if (state := self.admission.offer_as(call, bulk)) == QUEUED and bulk:
            self.admission.aside[call] = None
        if state != RUNNING or self.attentive or self.admission.batch_queue.size:
            self.admitted(call)

    def count_arrival(self, call: Call, now: float) -> None:
        """The call is traffic from here on, if it is to be observed."""
        if call.observed:
            if now >= self.governor.slice_end:
                self.enter_slice(now)
            self.governor.fresh = False
            self.governor.window.pending.arrivals += 1
            if self.governor.observe is not None:
                tell_arrived(call, now)

    def admitted(self, call: Call) -> None:
        """What follows from `offer` where anybody waits or listens.

        Raises:
            QueueFull, QueueTimeout: the call can neither run nor wait.
        """
        now, admission = call.submitted, self.admission
        if call.state == RUNNING:
            self.listeners.started(call)
            self.settle(now)
        elif call.state == QUEUED:
            call.task = None
            call.waiter = self.new_waiter()
            if self.attentive or admission.timed:
                if admission.aside.get(call) is not True:
                    self.listeners.queued(call, admission.counts[1 if call.interactive else 3])
                self.settle(now)
        else:
            raise refusals.turned_away(self, call, now)

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

    def begin_with(self, call: Call, extras: Extras) -> bool:
        """What those that have extras need as they begin to run. True: it may be preempted, and run more than once.

        Raises:
            CallAborted: close() ran out of patience between the grant and the wake-up.
        """
        if extras.verdict is not None:
            self.reap(call)
            raise call.overruled()
        self.start_run_timer(call, extras)
        return extras.preemptible is not None

    def start_run_timer(self, call: Call, extras: Extras) -> None:
        """Interrupt the call when it has run as long as it may, if there is a bound."""
        if extras.run_left < _INFINITY:
            assert self.loop is not None
            extras.run_timer = self.loop.call_at(call.started_at + extras.run_left, call.interrupt, Verdict.TIMEOUT)

    # A call's way out

    def complete(self, call: Call) -> None:
        """Take the slot back from a call that succeeded, exactly once, and hand it on."""
        if call.state != RUNNING or call.extras is not None:
            call.settle_cancels()
            self.finish(call, "completed")
            return
        now = self.clock()
        if call.observed:
            # As `_succeeded` in `way_out.py`, one frame less.
            governor = self.governor
            if now >= governor.slice_end:
                self.enter_slice(now)
            governor.fresh, governor.bar = False, None
            latencies = governor.window.pending.latencies
            latencies.append(now - call.submitted)
            if len(latencies) >= FOLD_AT:
                governor.window.trim(now)
            if governor.observe is not None:
                tell_ended(call, now, "completed")
        if self.attentive:
            self.listeners.finished(call, "completed", now)
        call.task = None  # task -> exception -> traceback -> frame -> call would be a cycle
        admission = self.admission
        del (admission.interactive_running if call.interactive else admission.batch_running)[call]
        call.state = GONE
        tally = self._interactive_tally if call.interactive else self._batch_tally
        tally.completed += 1
        if admission.interactive_queue.size or admission.batch_queue.size or self.attentive:
            self.settle(now)

    # All other ways out, in a room of their own.
    fail = way_out.fail
    finish = way_out.finish
    let_go = way_out.let_go
    reap = way_out.reap
    post_reap = way_out.post_reap
    lose = way_out.lose
    leave_queue = way_out.leave_queue
    thinned = way_out.thinned

    def enter_slice(self, now: float) -> None:
        self.governor.roll(now)
        self.rates.mark(now, self.ended())
        if now >= self.watchman.due:
            self.watchman.look(now)

    # What follows from a change

    def settle(self, now: float) -> None:
        """Refuse whose time is over, start who may run, arm the timer, tell the listeners.

        A slot is counted to its next owner before that one wakes, so nobody can take it in between.
        """
        admission = self.admission
        if admission.timed:
            for call in admission.expire(now):
                refusals.refuse(self, call, Verdict.TIMEOUT, now)
            if now >= self.watchman.due:  # where no interactive call comes or goes, nobody enters slices
                self.watchman.look(now)
        for call in admission.fill(now):
            call.waiter.set_result(None)  # type: ignore[union-attr]
            if call.parent is not None:
                nested.take_own(self, call)
            if self.attentive:
                self.listeners.started(call)
        if admission.dropped:
            refusals.part_with_dropped(self, now)
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

    def ended(self) -> tuple[int, int]:
        """Calls that have had a slot and given it back, interactive and batch, since the scheduler was made."""
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
        if self.preemption is not None:
            self.preemption.look()
        if self.idle_waiters and self.admission.idle:
            self.idle_waiters.tell()
            self.look_after()
        self.listeners.flush()

    def look_after(self) -> None:
        """Note whether somebody has to hear of changes; for when listeners come or go."""
        preempts = self.preemption is not None and self.preemption.watching
        self.attentive = bool(preempts or self.listeners.callbacks or self.idle_waiters)

    def when_idle(self) -> asyncio.Future[None]:
        """A future that is done once nothing runs and nothing waits."""
        assert self.loop is not None
        waiter: asyncio.Future[None] = self.loop.create_future()
        if self.admission.idle:
            waiter.set_result(None)
        else:
            self.idle_waiters.add(waiter)
            self.attentive = True
        return waiter

    async def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        waiter = self.when_idle()
        try:
            await waiter
        finally:
            self.idle_waiters.discard(waiter)
            self.look_after()

    def _limit_changed(self, before: Decision, after: Decision) -> None:
        self.listeners.limit_changed(self.clock(), before, after)

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self.admission.check()
        self.governor.window.check()
        waits = self.admission.interactive_queue or self.admission.batch_queue
        assert self._timer is None or waits or self.abandoned, "a timer although nothing waits"
        if self.loop is not None and not self.abandoned:
            self.admission.check_conserving(self.clock())
