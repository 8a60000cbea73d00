"""A call on its way through the scheduler, and the handle that its code sees.

Floor: third. `Call` is the shell's record, one object per submit; `Slot` is made only for code that asks for it.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Final

from .core.admission import NEW, QUEUED, RUNNING
from .core.checks import count
from .errors import CallAborted, RunTimeout, SchedulerError

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = [
    "Call",
    "Slot",
    "TrafficKind",
    "Verdict",
    "active_call",
    "current_slot",
    "enter",
    "leave",
    "running_task",
    "slot_of",
]


class TrafficKind(str, Enum):
    """The two kinds of traffic; their plain names do as well."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Verdict(Enum):
    """Why a call is refused, or cancelled by us while it runs."""

    FULL = "full"
    TIMEOUT = "timeout"
    CLOSED = "closed"


class Call:
    """One submitted call: what admission keeps of it, and what the shell needs to wake, run and end it."""

    __slots__ = (
        "base",
        "deadline",
        "first_token_at",
        "home",
        "interactive",
        "label",
        "number",
        "observed",
        "own_cancels",
        "parent",
        "priority",
        "queued_at",
        "run_timeout",
        "run_timer",
        "slot",
        "started_at",
        "state",
        "submitted",
        "task",
        "token_count",
        "verdict",
        "waiter",
    )

    def __init__(self, home: Dispatcher, interactive: bool, submitted: float) -> None:
        self.home = home
        self.interactive = interactive
        self.submitted = submitted
        self.observed = True
        self.priority: float = 0
        self.deadline = self.run_timeout = math.inf
        self.label: str | None = None
        self.state = NEW
        self.number = 0
        self.waiter: asyncio.Future[Verdict | None] | None = None
        # Everything below is for the run.
        self.task: asyncio.Task[object] | None = None
        self.base = 0
        self.own_cancels = 0
        self.verdict: Verdict | None = None
        self.run_timer: asyncio.TimerHandle | None = None
        self.parent: Call | None = None
        self.slot: Slot | None = None
        self.first_token_at: float | None = None
        self.token_count = 0
        self.queued_at = self.started_at = submitted

    @property
    def kind(self) -> str:
        return "interactive" if self.interactive else "batch"

    @property
    def waiting(self) -> bool:
        return self.state == QUEUED

    def waited(self, now: float) -> float:
        """Seconds from submit to the slot, or until `now` if it has none yet."""
        return max(0.0, (now if self.state == QUEUED else self.started_at) - self.submitted)

    def overdue(self, now: float) -> bool:
        """It was told to stop by its run timeout and goes on."""
        return self.state == RUNNING and now - self.started_at > self.run_timeout

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.kind} call" if self.label is None else f"{self.kind} call {self.label!r}"

    def interrupt(self, verdict: Verdict) -> None:
        """Cancel the run, from a loop callback only.

        Recorded first, so that on the way out our own cancels can be told from the caller's. Close decides over a timeout.
        """
        if self.state != RUNNING:
            return
        if self.verdict is not Verdict.CLOSED:
            self.verdict = verdict
        if self.task is not None:
            self.own_cancels += 1
            self.task.cancel()

    def settle_cancels(self) -> bool:
        """Take back our own cancels, one `uncancel()` each; True if the caller's own do not add up to an outer one."""
        task, own, self.own_cancels = self.task, self.own_cancels, 0
        if task is None or task is not running_task():
            return True
        for _ in range(own):
            task.uncancel()
        return task.cancelling() <= self.base

    def overruled(self) -> SchedulerError:
        """What the caller sees in place of the CancelledError that our own cancel caused."""
        if self.verdict is Verdict.TIMEOUT:
            return RunTimeout(
                f"{self.title} ran longer than {self.run_timeout:.3g} s: raise run_timeout, or let the call do less"
            )
        return CallAborted(f"{self.title} still ran when close() ended: give close() a longer timeout")

    def __repr__(self) -> str:
        name = ("new", "queued", "running", "gone")[self.state]
        return f"<Call {self.kind} {self.label or self.number} {name}>"


class Slot:
    """The right to run one call now. Made by the scheduler, handed out by `slot()` and `current_slot()`.

    Cancellation: nothing here waits. Threads: the loop's only. After the call's end every method is a no-op.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    @property
    def kind(self) -> str:
        """"interactive" or "batch": what the call runs as."""
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
        call = self._call
        if call.state == RUNNING and call.first_token_at is None:
            call.first_token_at = call.home.clock()

    def tokens(self, n: int) -> None:
        """Say that `n` more output tokens have arrived.

        Raises:
            ConfigError: `n` is no whole number or below 0.
        """
        if count("n", n) and self._call.state == RUNNING:
            self._call.token_count += n

    def __repr__(self) -> str:
        return f"<Slot of {self._call!r}>"


def running_task() -> asyncio.Task[object] | None:
    """The task this code runs in, None outside of one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


_active: Final[ContextVar[Call | None]] = ContextVar("llm_traffic_scheduler_call", default=None)


def enter(call: Call) -> None:
    """From here on this context runs in the call's slot."""
    call.parent = _active.get()
    _active.set(call)


def leave(call: Call) -> None:
    """Undo `enter`; in the same context, so never from the garbage collector."""
    # set, not reset(token): a token is refused in any other context, and this must not raise.
    _active.set(call.parent)
    call.parent = None


def active_call() -> Call | None:
    """The call in whose slot this code runs; None outside, and once the slot is given back."""
    call = _active.get()
    return call if call is not None and call.state == RUNNING else None


def current_slot() -> Slot | None:
    """The slot this code runs in, None outside of any and once it has been given back.

    Child tasks see the slot of the call that started them as long as it runs.
    """
    call = active_call()
    return None if call is None else slot_of(call)


def slot_of(call: Call) -> Slot:
    """The call's handle; always the same object."""
    if call.slot is None:
        call.slot = Slot(call)
    return call.slot
