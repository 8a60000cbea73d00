"""How calls leave their slots and their places in the queue, but for the plain success: that is in `dispatcher.py`.

Floor: third. These are methods of `Dispatcher`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from . import nested
from .call import Call, Verdict, running_task
from .core.admission import AWAY, GONE, LENT_ON, QUEUED, RUNNING
from .core.metrics import FOLD_AT
from .errors import RunTimeout
from .events import Ending
from .observation import tell_ended, tell_failed

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["fail", "finish", "leave_queue", "let_go", "lose", "post_reap", "reap", "thinned"]


def fail(home: Dispatcher, call: Call, error: BaseException) -> bool:
    """Take the slot back from a call that ended with `error`; True if our own cancel decides what the caller sees.

    An outer cancel wins over ours, and a result or an exception of the call's own over both.
    """
    if isinstance(error, GeneratorExit) and (call.task is None or call.task is not running_task()):
        # The garbage collector closes the coroutine, in whatever thread and context it happens to run.
        post_reap(home, call)
        return False
    cancelled = isinstance(error, asyncio.CancelledError)
    ours = call.settle_cancels() and cancelled
    timed_out = call.extras is not None and call.extras.verdict is Verdict.TIMEOUT
    timed_out = timed_out and (ours or isinstance(error, RunTimeout))
    finish(home, call, "timed_out" if timed_out else "cancelled" if cancelled else "failed")
    return ours


def finish(home: Dispatcher, call: Call, outcome: Ending) -> None:
    """Take the slot back, exactly once, and hand it on; unless another call still uses it."""
    if call.state != RUNNING:
        if call.gave_way:  # its code has ended, and left a `released()` block open
            reap(home, call)
        return
    now, nesting = home.clock(), call.nesting
    if call.observed and outcome == "completed":
        _succeeded(home, call, now)
    elif call.observed:
        tell_failed(call, now, outcome)
    if nesting is None or nesting.lender is None or call in home.admission.away:
        home.listeners.finished(call, outcome, now)
    if call.extras is not None:
        call.extras.clear()
    call.task = None
    if nesting is None or nesting.guest is None or nesting.lender is not None:
        let_go(home, call, outcome)
    else:
        call.state, nesting.outcome = LENT_ON, outcome
        call.observed = False  # it has been sampled, and has ended: its age is no news
        if home.attentive or home.admission.batch_queue.size:
            home.settle(now)  # no slot is free, but the batch limit may have risen, and listeners are to hear


def _succeeded(home: Dispatcher, call: Call, now: float) -> None:
    governor = home.governor
    if now >= governor.slice_end:
        home.enter_slice(now)
    governor.fresh, governor.bar = False, None
    latencies = governor.window.pending.latencies
    latencies.append(now - call.submitted)
    if len(latencies) >= FOLD_AT:
        governor.window.trim(now)
    tell_ended(call, now, "completed")


def let_go(home: Dispatcher, call: Call, outcome: Ending) -> None:
    """A call that has ended, and those inside it too, leaves its slot to whoever is next."""
    if call.nesting is not None and call.nesting.lender is not None:
        call.state = GONE
        if call in home.admission.away:
            home.admission.leave(call)
            home.tallies[call.kind].count(outcome)
        if call.nesting.guest is None:
            nested.give_back(home, call)
        else:
            nested.step_out(call)
        if home.attentive:
            home.settle(home.clock())
        return
    waiting = home.admission.release(call)
    home.tallies[call.kind].count(outcome)
    if waiting or home.attentive:
        home.settle(home.clock())


def reap(home: Dispatcher, call: Call) -> None:
    """Take out a call whose caller has gone, wherever it stands."""
    if home.abandoned:
        return
    if call.state == QUEUED:
        now = home.clock()
        home.admission.withdraw(call)
        leave_queue(home, call, now)
        if call.waiter is not None and not call.waiter.done():
            call.waiter.set_result(None)  # a block of it may be on its way back to a slot, in another task
        thinned(home)
    elif call.state == RUNNING:
        nested.lose(home, call)
        finish(home, call, "cancelled")
    elif call.state == AWAY:
        lose(home, call)


def post_reap(home: Dispatcher, call: Call) -> None:
    """`reap` from the loop's next pass, from any thread."""
    assert home.loop is not None
    # A closed loop refuses; then the scheduler counts the call as cancelled when it moves to the next one.
    with contextlib.suppress(RuntimeError):
        home.loop.call_soon_threadsafe(home.reap, call, context=home._context)


def lose(home: Dispatcher, call: Call) -> None:
    """A call that has no slot at present ends without one."""
    if call not in home.admission.away:  # the slot it was in was lent by one that gave it up
        nested.part(call)
        call.state = GONE
        if call.extras is not None:
            call.extras.clear()
        return
    now = call.queued_at = home.clock()
    home.admission.leave(call)
    leave_queue(home, call, now)
    thinned(home)


def leave_queue(home: Dispatcher, call: Call, now: float) -> None:
    """A call that was taken out of the queue has ended there, cancelled."""
    nested.lose(home, call)
    tally = home.tallies[call.kind]
    tally.cancelled += 1
    tally.never_started += not call.gave_way_once
    if call.observed:
        tell_failed(call, now, "cancelled")
    nested.want_no_more(call)
    call.started_at = now  # the end of its wait
    home.listeners.finished(call, "cancelled", now)
    if call.extras is not None:
        call.extras.clear()


def thinned(home: Dispatcher) -> None:
    """One waits less. With every slot taken and no deadline about, that lets nobody start."""
    if home.attentive or home.admission.timed or home._timer is not None:
        home.settle(home.clock())
