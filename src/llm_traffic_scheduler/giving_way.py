"""How a running call gives its slot up for a while, and comes back to its old place.

Floor: third. Meanwhile the call is queued, or away; what it shares its slot with (`nested.py`) goes without it too.
Time that passes so counts in no timeout.
"""

from __future__ import annotations

from asyncio import current_task
from contextlib import suppress
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from . import nested
from .call import Call
from .core.admission import AWAY, RUNNING
from .errors import SchedulerMisuse

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["Released", "checkpoint", "should_yield"]


def should_yield(call: Call) -> bool:
    """A checkpoint would give the slot up: it is the call's own to give, and somebody needs it more."""
    if call.state != RUNNING or _lent_out(call):
        return False
    outermost = _outermost(call)
    lent = outermost.nesting is not None and outermost.nesting.lender is not None
    return not lent and _needed_more(outermost)


def _needed_more(call: Call) -> bool:
    """Interactive work waits for room, or more batch calls run than may; and enough of them would be left."""
    admission = call.home.admission
    running = len(admission.batch_running)
    if call.interactive or call.state != RUNNING or "batch" in admission.paused:
        return False
    if running <= admission.limits.batch_min:
        return False
    if admission.interactive_queue.ready and "interactive" not in admission.paused:
        return True
    return running > _limit(call.home)


def _limit(home: Dispatcher) -> int:
    """The batch limit. In a `slot_from_thread` block it is read: only the loop's own thread may have it decided on."""
    if get_ident() == home.thread:
        return home.governor.limit(home.clock())
    while True:
        with suppress(RuntimeError):  # a dict changed as it was looked through
            return home.governor.read(home.clock())[0].limit


async def checkpoint(call: Call) -> None:
    """Give the slot up if somebody needs it more, and return when it is back."""
    if call.state != RUNNING:
        return
    _own_task(call, "checkpoint")
    if should_yield(call):
        outermost = _outermost(call)
        _step_aside(outermost)
        await _come_back(outermost)


class Released:
    """`async with slot.released()`: without a slot inside the block. Entered once.

    Cancellation: inside the block and on the way out of it the call ends without a slot.
    """

    __slots__ = ("_call", "_outermost")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._outermost: Call | None = None

    async def __aenter__(self) -> None:
        call = self._call
        if call.state != RUNNING:
            return
        _own_task(call, "released")
        if _lent_out(call):
            return  # it does not lie idle: a call inside of this one uses it
        self._outermost = outermost = _outermost(call)
        _step_aside(outermost)
        call.home.settle(call.home.clock())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        outermost, self._outermost = self._outermost, None
        if outermost is None or outermost.state != AWAY:
            return
        if error is None or isinstance(error, Exception):
            await _come_back(outermost)
        else:
            outermost.home.quit(outermost, error)


def _own_task(call: Call, what: str) -> None:
    if call.task is not current_task():
        raise SchedulerMisuse(
            f"{what}() belongs to the task that {call.title} runs in: put it there, around what that task awaits, "
            "for example around a whole gather()"
        )


def _outermost(call: Call) -> Call:
    """The outermost call that shares the slot and the task: what it waits for, all of them wait for."""
    while call.nesting is not None and (lender := call.nesting.lender) is not None and lender.task is call.task:
        call = lender
    return call


def _sharing(outermost: Call) -> list[Call]:
    """The calls that share the slot and the task, from `outermost` inwards."""
    found = [outermost]
    while (nesting := found[-1].nesting) is not None and nesting.guest is not None:
        found.append(nesting.guest)
    return found


def _lent_out(call: Call) -> bool:
    return call.nesting is not None and call.nesting.guest is not None


def _step_aside(outermost: Call) -> None:
    """Leave the slot. A lent one goes back to its lender, one of its own to the scheduler."""
    home = outermost.home
    now = home.clock()
    for each in _sharing(outermost):
        extras = each.more()
        waited, each.queued_at = each.waited(now), now
        extras.waited_before = waited  # from here on `queued_at` is read, also by other threads
        extras.run_left -= now - each.started_at
        extras.stop_timer()
        if extras.preemptible is not None:
            extras.preemptible.step_aside(now)
        each.state = AWAY
    if outermost.nesting is None or outermost.nesting.lender is None:
        home.admission.give_up(outermost)
    else:
        home.admission.keep_away(outermost)
        nested.give_back(home, outermost)


async def _come_back(outermost: Call) -> None:
    """Wait for a slot in the old place.

    Cancellation: the calls have no slot from then on, and nothing to give back. So it is if they end meanwhile.
    """
    home = outermost.home
    now = home.clock()
    outermost.waiter = home.new_waiter()
    nested.seek_again(home, outermost, now)
    try:
        await outermost.waiter
    except BaseException as error:
        task = outermost.task
        home.quit(outermost, error)
        outermost.task = task  # whoever ends the call takes our cancels back from it
        raise
    if outermost.state != RUNNING:  # it has ended meanwhile: an async generator, say, that was closed elsewhere
        return
    # Fewer than before, if one has ended meanwhile; and the slot may already be lent to a child task's call.
    sharing = [outermost, *(each for each in _sharing(outermost) if each.state == AWAY)]
    for each in sharing:
        each.state, each.queued_at, each.started_at = RUNNING, now, outermost.started_at
        extras = each.more()
        if extras.preemptible is not None:
            extras.preemptible.go_on(outermost.started_at)
        if extras.verdict is None:
            home.start_run_timer(each, extras)
    nested.pass_on(home, sharing[-1])
