"""A call on its way through the scheduler, and the handle that its code sees.

Floor: third. `Call` is the shell's record, one object per submit; `Slot` is made only for code that asks for it.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from contextvars import ContextVar, Token
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final

from .core.admission import QUEUED, RUNNING
from .core.checks import count
from .errors import CallAborted, RunTimeout, SchedulerError

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = [
    "Call",
    "Extras",
    "Slot",
    "TrafficKind",
    "Verdict",
    "active",
    "active_call",
    "current_slot",
    "running_task",
    "slot_of",
]


class TrafficKind(StrEnum):
    """The two kinds of traffic; their plain names do as well."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Verdict(Enum):
    """Why a call is refused, or cancelled by us while it runs."""

    FULL = "full"
    TIMEOUT = "timeout"
    CLOSED = "closed"


class Extras:
    """What most calls do not have; made for those that do."""

    __slots__ = ("label", "own_cancels", "run_timeout", "run_timer", "slot", "verdict")

    def __init__(self, label: str | None = None, run_timeout: float = math.inf) -> None:
        self.label = label
        self.run_timeout = run_timeout
        self.run_timer: asyncio.TimerHandle | None = None
        self.own_cancels = 0
        self.verdict: Verdict | None = None
        self.slot: Slot | None = None

    def clear(self) -> None:
        """The call has ended."""
        self.slot = None  # slot -> call -> slot would be a cycle
        if self.run_timer is not None:
            self.run_timer.cancel()
            self.run_timer = None


class Call:
    """One submitted call: what admission keeps of it, and what the shell needs to wake, run and end it.

    Has no `__init__`, for which every Python charges as much as for all the fields.
    """

    __slots__ = (
        "base",
        "deadline",
        "extras",
        "home",
        "interactive",
        "number",
        "observed",
        "priority",
        "queued_at",
        "started_at",
        "state",
        "submitted",
        "task",
        "waiter",
    )

    # From the start.
    home: Dispatcher
    interactive: bool
    observed: bool
    submitted: float
    priority: float
    deadline: float
    extras: Extras | None
    waiter: asyncio.Future[Verdict | None] | None  # None: it never had to wait
    task: asyncio.Task[object] | None
    # Set by admission when they begin to mean something.
    number: int
    state: int
    queued_at: float
    started_at: float
    # Set when the call begins to run.
    base: int

    @property
    def kind(self) -> str:
        return "interactive" if self.interactive else "batch"

    @property
    def waiting(self) -> bool:
        return self.state == QUEUED

    @property
    def left(self) -> bool:
        return self.waiter is None or self.waiter.done()

    def waited(self, now: float) -> float:
        """Seconds from submit to the slot, or until `now` if it has none yet."""
        return max(0.0, (now if self.state == QUEUED else self.started_at) - self.submitted)

    def overdue(self, now: float) -> bool:
        """It was told to stop by its run timeout and goes on."""
        extras = self.extras
        return extras is not None and self.state == RUNNING and now - self.started_at > extras.run_timeout

    @property
    def label(self) -> str | None:
        return None if self.extras is None else self.extras.label

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.kind} call" if self.label is None else f"{self.kind} call {self.label!r}"

    def interrupt(self, verdict: Verdict) -> None:
        """Cancel the run, from a loop callback only.

        Recorded first, so that on the way out our own cancels can be told from the caller's. Close
        decides over a timeout.
        """
        if self.state != RUNNING:
            return
        if self.extras is None:
            self.extras = Extras()
        if self.extras.verdict is not Verdict.CLOSED:
            self.extras.verdict = verdict
        if self.task is not None:
            self.extras.own_cancels += 1
            self.task.cancel()

    def settle_cancels(self) -> bool:
        """Take back our own cancels, one `uncancel()` each; True if there were any and no outer one remains."""
        task, extras = self.task, self.extras
        if extras is None or not extras.own_cancels or task is None or task is not running_task():
            return False
        while extras.own_cancels:
            extras.own_cancels -= 1
            task.uncancel()
        return task.cancelling() <= self.base

    def overruled(self) -> SchedulerError:
        """What the caller sees in place of the CancelledError that our own cancel caused."""
        assert self.extras is not None
        if self.extras.verdict is Verdict.TIMEOUT:
            return RunTimeout(
                f"{self.title} ran longer than {self.extras.run_timeout:.3g} s: "
                "raise run_timeout, or let the call do less"
            )
        return CallAborted(f"{self.title} still ran when close() ended: give close() a longer timeout")

    def __repr__(self) -> str:
        name = ("queued", "running", "gone")[self.state]
        return f"<Call {self.kind} {self.label or self.number} {name}>"


class Slot:
    """The right to run one call now. Made by the scheduler, handed out by `slot()` and `current_slot()`.

    Cancellation: nothing here waits. Threads: the loop's only. After the call's end every method is a no-op.
    """

    __slots__ = ("_call", "first_token_at", "token_count")

    def __init__(self, call: Call) -> None:
        self._call = call
        self.first_token_at: float | None = None
        self.token_count = 0

    @property
    def kind(self) -> str:
        """ "interactive" or "batch": what the call runs as."""
        return self._call.kind

    @property
    def label(self) -> str | None:
        """The name given to the call, for the operator."""
        return self._call.label

    @property
    def waited(self) -> float:
        """Seconds the call spent in the queue."""
        return self._call.waited(self._call.started_at)

    def first_token(self) -> None:
        """Say that the backend's first token is here. Only the first call counts."""
        if self._call.state == RUNNING and self.first_token_at is None:
            self.first_token_at = self._call.home.clock()

    def tokens(self, n: int) -> None:
        """Say that `n` more output tokens have arrived.

        Raises:
            ConfigError: `n` is no whole number or below 0.
        """
        if count("n", n) and self._call.state == RUNNING:
            self.token_count += n

    def __repr__(self) -> str:
        return f"<Slot of {self._call!r}>"


def running_task() -> asyncio.Task[object] | None:
    """The task this code runs in, None outside of one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


active: Final[ContextVar[Call | None]] = ContextVar("llm_traffic_scheduler_call", default=None)


def leave(token: Token[Call | None]) -> None:
    """Undo `active.set`; where the code has moved to another context, there the ended call shows as gone."""
    with suppress(ValueError):
        active.reset(token)


def active_call() -> Call | None:
    """The call in whose slot this code runs; None outside, and once the slot is given back."""
    call = active.get()
    return call if call is not None and call.state == RUNNING else None


def current_slot() -> Slot | None:
    """The slot this code runs in, None outside of any and once it has been given back.

    Child tasks see the slot of the call that started them as long as it runs.
    """
    call = active_call()
    return None if call is None else slot_of(call)


def slot_of(call: Call) -> Slot:
    """The call's handle; always the same object."""
    if call.extras is None:
        call.extras = Extras()
    if call.extras.slot is None:
        call.extras.slot = Slot(call)
    return call.extras.slot
