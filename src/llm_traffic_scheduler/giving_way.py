"""How a running call gives its slot up for a while, and comes back to its old place.

Floor: third. Meanwhile the call is queued, or away; what it shares its slot with (`nested.py`) goes without it too.
Time that passes so counts in no timeout.
"""

from __future__ import annotations

from asyncio import current_task
from types import TracebackType

from . import nested
from .call import Call
from .core.admission import AWAY, RUNNING
from .errors import SchedulerMisuse

__all__ = ["Released", "checkpoint", "should_yield"]


def should_yield(call: Call) -> bool:
    """Interactive work waits for room, or more batch calls run than may; and enough of them would be left."""
    admission = call.home.admission
    running = len(admission.batch_running)
    if call.interactive or call.state != RUNNING or "batch" in admission.paused:
        return False
    if running <= admission.limits.batch_min:
        return False
    if admission.interactive_queue.ready and "interactive" not in admission.paused:
        return True
    return running > call.home.governor.limit(call.home.clock())


async def checkpoint(call: Call) -> None:
    """Give the slot up if somebody needs it more, and return when it is back."""
    if call.state != RUNNING:
        return
    _own_task(call, "checkpoint")
    owner = _base(call)
    shares = owner.nesting is not None and owner.nesting.lender is not None
    if shares or _lent_out(call) or not should_yield(owner):
        return
    _step_aside(owner)
    await _come_back(owner)
    nested.pass_on(call.home, call)


class Released:
    """`async with slot.released()`: without a slot inside the block. Entered once.

    Cancellation: inside the block and on the way out of it the call ends without a slot.
    """

    __slots__ = ("_call", "_owner")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._owner: Call | None = None

    async def __aenter__(self) -> None:
        call = self._call
        if call.state != RUNNING:
            return
        _own_task(call, "released")
        if _lent_out(call):
            raise SchedulerMisuse(f"released() while a call inside {call.title} uses its slot: await that one first")
        self._owner = owner = _base(call)
        for each in _between(call, owner):
            each.state = AWAY
        _step_aside(owner)
        call.home.settle(call.home.clock())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        if owner is None or owner.state != AWAY:
            return
        try:
            if error is None or isinstance(error, Exception):
                await _come_back(owner)
            else:
                owner.home.quit(owner, error)
        finally:
            for each in _between(self._call, owner):
                each.state = RUNNING
        nested.pass_on(self._call.home, self._call)


def _own_task(call: Call, what: str) -> None:
    if call.task is not current_task():
        raise SchedulerMisuse(
            f"{what}() belongs to the task that {call.title} runs in: a child task has nothing to give up, "
            "let it submit a call of its own"
        )


def _base(call: Call) -> Call:
    """The outermost call that shares the slot and the task: what it waits for, all of them wait for."""
    while call.nesting is not None and (lender := call.nesting.lender) is not None and lender.task is call.task:
        call = lender
    return call


def _between(call: Call, owner: Call) -> list[Call]:
    """The calls from `call` up to `owner`, without that one."""
    found = []
    while call is not owner:
        found.append(call)
        assert call.nesting is not None
        assert call.nesting.lender is not None
        call = call.nesting.lender
    return found


def _lent_out(call: Call) -> bool:
    return call.nesting is not None and call.nesting.guest is not None


def _step_aside(owner: Call) -> None:
    """Leave the slot. A lent one goes back to its lender, one of its own to the scheduler."""
    home, extras = owner.home, owner.more()
    now = home.clock()
    extras.waited_before = owner.waited(now)
    extras.run_left -= now - owner.started_at
    extras.stop_timer()
    if extras.nesting is None or extras.nesting.lender is None:
        home.admission.give_up(owner)
    else:
        owner.state = AWAY
        nested.give_back(home, owner)


async def _come_back(owner: Call) -> None:
    """Wait for a slot in the old place.

    Cancellation: the call has no slot from then on, and nothing to give back.
    """
    home, task = owner.home, owner.task
    now = home.clock()
    owner.waiter = None
    if owner in home.admission.away:
        owner.waiter = home.new_waiter()
        home.admission.come_back(owner, now)
        home.settle(now)
    else:
        _ask_again(owner, now)
    owner.task = task
    if owner.waiter is not None:
        try:
            await owner.waiter
        except BaseException as error:
            home.quit(owner, error)
            raise
    extras = owner.more()
    if extras.verdict is None:
        home.start_run_timer(owner, extras)


def _ask_again(owner: Call, now: float) -> None:
    """The slot was lent: ask the host again, if there is one still, and the scheduler too."""
    home = owner.home
    owner.submitted = owner.queued_at = now
    owner.deadline = float("inf")
    host = nested.host_of(owner.parent, home)
    if host is not None:
        nested.seek(home, owner, host)
    else:
        home.admission.offer(owner, exempt=True)
        home.admitted(owner)
