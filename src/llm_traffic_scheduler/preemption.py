"""How a running batch call is stopped for interactive ones that wait, and run again.

Floor: third. Whom to stop, and whether that is worth its price, `core/preemption.py` says.

Nobody looks as long as no call may be preempted. Then every change is looked at; if an interactive call waits, a
callback of the loop decides in the next pass, when what was about to end has ended, and cancels from there.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError, current_task
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from types import CoroutineType
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from . import nested
from .call import Call, Extras, Verdict
from .circles import watch_for_circles
from .core.admission import RUNNING
from .core.preemption import PER_CALL, PER_DECISION, BatchTime, choose, wanted
from .stream_sources import refuse_stream
from .surroundings import active, leave
from .work import check_awaitable

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["Preemptible", "Preemption", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# To look back at what has run meanwhile costs a step for each call that runs, so nobody stops looking at once.
_LINGER: Final = 1.0


class Preemptible:
    """What is kept of one call that may be preempted, beside the call itself.

    Attributes:
        times: that it has been.
    """

    __slots__ = ("_desk", "_had", "_since", "times")

    def __init__(self) -> None:
        self.times = 0
        self._desk: Preemption | None = None
        self._had = 0.0  # seconds with a slot in this run, until `_since`
        self._since: float | None = None  # None: it has no slot, or does not know of it yet

    def begin(self, desk: Preemption, now: float) -> None:
        """Its function is called."""
        self._desk, self._had, self._since = desk, 0.0, now

    def had(self, now: float) -> float | None:
        """Seconds that this run has had a slot; None while it has given it up."""
        return None if self._since is None else self._had + now - self._since

    def step_aside(self, now: float) -> None:
        """It gives its slot up for a while."""
        self._had, self._since = self.had(now) or self._had, None

    def go_on(self, now: float) -> None:
        """It has its slot back."""
        self._since = now

    def over(self) -> None:
        """Its run has ended, by whatever way."""
        desk, self._desk, self._since = self._desk, None, None
        if desk is not None:
            desk.forget(self)


class Preemption:
    """Who may be preempted on one loop, who has been told to stop, and what it has cost.

    Attributes:
        watching: every change has to be looked at.
    """

    __slots__ = ("_called", "_empty_since", "_home", "_running", "_stopping", "_time", "watching")

    def __init__(self, home: Dispatcher) -> None:
        self._home = home
        self._time = BatchTime()
        self._running: dict[Preemptible, Call] = {}  # whose function runs, and may be stopped; the newest last
        self._stopping: set[Preemptible] = set()  # those of the last decision that have not ended
        self._called = False  # the callback is on its way
        self._empty_since = 0.0
        self.watching = False

    def enter(self, call: Call, preemptible: Preemptible) -> None:
        """The call's function is called now."""
        now = self._home.clock()
        preemptible.begin(self, now)
        if preemptible.times < PER_CALL:
            self._running[preemptible] = call
            if not self.watching:
                self._time.recall(now, [each.started_at for each in self._home.admission.batch_running])
                self.watching = True
                self._home.look_after()
            self.look()

    def forget(self, preemptible: Preemptible) -> None:
        """The run has ended."""
        self._stopping.discard(preemptible)
        if self._running.pop(preemptible, None) is not None and not self._running:
            self._empty_since = self._home.clock()

    def lose(self, seconds: float) -> None:
        """So much of a run was for nothing."""
        now = self._home.clock()
        self._time.advance(now, len(self._home.admission.batch_running))
        self._time.lose(now, seconds)

    def look(self) -> None:
        """Something has changed: keep count, and see to it that somebody decides if that may be needed."""
        home = self._home
        now, admission = home.clock(), home.admission
        if not self._running and now - self._empty_since > _LINGER:
            self.watching = False
            home.look_after()
            return
        self._time.advance(now, len(admission.batch_running))
        if self._running and admission.interactive_queue.ready and not (self._called or self._stopping):
            self._called = True
            assert home.loop is not None
            with contextlib.suppress(RuntimeError):  # a closed loop
                home.loop.call_soon(self._decide, context=home._context)

    def _decide(self) -> None:
        """Stop those that have to make room."""
        self._called = False
        home = self._home
        now, admission = home.clock(), home.admission
        if admission.paused:
            return  # who may not start needs no room, and who may not start again keeps his
        live = (call for call in admission.waiting(True) if not call.left)
        numbers = wanted(
            waiting=min(admission.interactive_queue.ready, sum(1 for _ in islice(live, PER_DECISION))),
            running=admission.running,
            batch_running=len(admission.batch_running),
            max_concurrency=admission.limits.max_concurrency,
            batch_min=admission.limits.batch_min,
        )
        if numbers:
            for preemptible in choose(self._candidates(now), numbers, self._time.left(now)):
                self._stopping.add(preemptible)
                self._running[preemptible].interrupt(Verdict.PREEMPTED)

    def _candidates(self, now: float) -> Iterator[tuple[Preemptible, float]]:
        """Who may be stopped and what it would lose, the newest first."""
        for preemptible, call in reversed(self._running.items()):
            lost = preemptible.had(now)
            if lost is not None and _may_stop(call):
                yield preemptible, lost


def _may_stop(call: Call) -> bool:
    """The call has a slot of its own, it is no part of another, and nobody else is about to end it.

    What it has called in its own task ends with it; a child task would go on in the slot.
    """
    extras, nesting, task = call.extras, call.nesting, call.task
    if extras is None or extras.verdict is not None:
        return False
    if nesting is not None and nesting.lender is not None:
        return False
    if any(guest.task is not task for guest in nested.guests([call])):
        return False
    if nested.host_of(call.parent, call.home) is not None:
        return False
    return task is not None and task.cancelling() <= call.base


async def run(call: Call, extras: Extras, coro_fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    """As `submit` runs a function in a slot; and again, in the old place, each time that it is preempted."""
    home, preemptible = call.home, extras.preemptible
    assert preemptible is not None
    if home.preemption is None:
        home.preemption = Preemption(home)
    while True:
        call.task, token = current_task(home.loop), active.set(call)
        call.base = 0 if call.task is None else call.task.cancelling()
        home.preemption.enter(call, preemptible)
        try:
            awaitable = coro_fn(*args)
            if type(awaitable) is not CoroutineType:
                check_awaitable(awaitable, coro_fn)
            result = await awaitable
            if hasattr(type(result), "__anext__"):
                await refuse_stream(result, coro_fn)
        except BaseException as error:
            leave(call, token)
            awaitable = None  # a failed task in it would hold this frame, which holds it
            if not _runs_again(call, extras, error):
                if home.fail(call, error):
                    raise call.overruled() from error
                raise
        else:
            leave(call, token)
            home.complete(call)
            return result
        await _make_room(call, extras, preemptible)
        home.begin_with(call, extras)


def _runs_again(call: Call, extras: Extras, error: BaseException) -> bool:
    """The run was stopped to make room, and for no other reason; the caller does not cancel, and nothing stands."""
    stopped = isinstance(error, CancelledError) and extras.verdict is Verdict.PREEMPTED and call.state == RUNNING
    return stopped and call.settle_cancels()


async def _make_room(call: Call, extras: Extras, preemptible: Preemptible) -> None:
    """Give the slot up for a run that was stopped, and return when there is one for the next run.

    Raises:
        CallAborted: close() has no more patience.
    Cancellation: the call ends without a slot.
    """
    home = call.home
    now = home.clock()
    _count(call, preemptible, now)
    extras.stop_timer()
    extras.verdict = extras.slot = None
    if call.nesting is not None and call.nesting.guest is not None:
        # A call of a child task uses the slot still. It would have to be lent on to nobody: rather begin at once.
        extras.run_left = extras.run_timeout + now - call.started_at
        return
    waited, call.queued_at = call.waited(now), now
    extras.waited_before, extras.run_left = waited, extras.run_timeout
    call.waiter = home.new_waiter()
    home.admission.give_up(call)
    home.admission.come_back(call, now)
    home.settle(now)
    if call.parent is not None:
        watch_for_circles(call)
    try:
        await call.waiter
    except BaseException as error:
        ours = call.settle_cancels() and isinstance(error, CancelledError)
        home.quit(call, error)
        if ours:
            raise call.overruled() from error
        raise
    nested.pass_on(home, call)


def _count(call: Call, preemptible: Preemptible, now: float) -> None:
    preemptible.times += 1
    call.home.tallies[call.kind].preempted += 1
    lost = preemptible.had(now)
    preemptible.over()
    if lost is not None and call.home.preemption is not None:
        call.home.preemption.lose(lost)
