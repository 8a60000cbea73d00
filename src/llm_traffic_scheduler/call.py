"""A call on its way through the scheduler, and what is around the code that runs.

Floor: third. `Call` is the shell's record, one object per submit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Token
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from .core.admission import AWAY, QUEUED, RUNNING
from .errors import CallAborted, RunTimeout, SchedulerError, StreamClosed
from .events import Ending

if TYPE_CHECKING:
    from .dispatcher import Dispatcher
    from .preemption import Preemptible
    from .slot import Slot
    from .stream_reading import Reading
    from .surroundings import Scope

__all__ = [
    "Call",
    "Extras",
    "Nesting",
    "TrafficKind",
    "Verdict",
    "running_task",
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
    PREEMPTED = "preempted"
    DROPPED = "dropped"  # its stream was closed while another task waited for an item


class Nesting:
    """What a call has to do with calls inside or around it that share a slot; `nested.py` has the rules."""

    __slots__ = ("guest", "hosts", "lender", "observe", "outcome", "wanting")

    def __init__(self) -> None:
        self.lender: Call | None = None  # whose slot it uses
        self.guest: Call | None = None  # who uses its slot
        self.wanting: dict[Call, None] = {}  # who waits to use it, first come first
        self.hosts: tuple[Call, ...] = ()  # in whose `wanting` it is
        self.outcome: Ending | None = None  # how it ended, although its slot is still used
        # Whether it counts as traffic once it has a slot of its own; None: it counts already, or never will.
        self.observe: bool | None = None


class Extras:
    """What most calls do not have; made for those that do."""

    __slots__ = (
        "label",
        "nesting",
        "on_close",
        "own_cancels",
        "preemptible",
        "run_left",
        "run_timeout",
        "run_timer",
        "slot",
        "stream",
        "tenant",
        "thought",
        "undo",
        "verdict",
        "waited_before",
    )

    def __init__(self, label: str | None = None, run_timeout: float = math.inf, tenant: str | None = None) -> None:
        self.label = label
        self.tenant = tenant
        self.run_timeout = self.run_left = run_timeout
        self.run_timer: asyncio.TimerHandle | None = None
        self.own_cancels = 0  # sent by us and not taken back yet
        self.verdict: Verdict | None = None  # why we sent them
        self.slot: Slot | None = None
        # Seconds in the queue until it last gave its slot up; None: it never did.
        self.waited_before: float | None = None
        self.nesting: Nesting | None = None
        self.preemptible: Preemptible | None = None  # None: its function is called once
        self.undo: Token[Call | Scope | None] | None = None  # its block was left where its token could not be used
        self.stream: Reading[Any] | None = None  # whose slot it has
        self.on_close: Callable[[], None] | None = None  # in place of a cancel, while no task runs its code
        self.thought = 0.0  # seconds that its reader did something else; `submitted` is that much later

    def clear(self) -> None:
        """The call has ended."""
        self.slot = self.stream = self.on_close = None  # slot -> call -> slot would be a cycle
        self.stop_timer()
        if self.preemptible is not None:
            self.preemptible.over()

    def stop_timer(self) -> None:
        """Nothing interrupts the run any more."""
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
        "parent",
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
    parent: Call | Scope | None  # what it was submitted from: the nearest call that had not ended, or `traffic` block
    waiter: asyncio.Future[Verdict | None] | None  # None: it never had to wait
    task: asyncio.Task[object] | None
    # Set by admission when they begin to mean something.
    number: int
    state: int
    queued_at: float
    started_at: float
    # Set when the call begins to run.
    base: int  # `task.cancelling()` then: where it is above this in the end, the caller cancels too

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
        """Seconds in the queue, until `now` if it waits there: before its first slot, and each time it gave way."""
        until = now if self.state == QUEUED else self.started_at
        if self.extras is None:
            return max(0.0, until - self.submitted)
        if self.extras.waited_before is None:
            return max(0.0, until - self.submitted + self.extras.thought)
        return self.extras.waited_before + (0.0 if self.state == AWAY else max(0.0, until - self.queued_at))

    def think(self, seconds: float, now: float) -> None:
        """So long before `now` its reader did something else, which says nothing of the backend."""
        seconds, extras = min(seconds, max(0.0, now - self.submitted)), self.more()
        self.submitted += seconds
        extras.thought += seconds
        if extras.slot is not None and extras.slot.first_token_at is not None:
            extras.slot.first_token_at = min(extras.slot.first_token_at + seconds, now)

    @property
    def gave_way_once(self) -> bool:
        """It has given its slot up before, so if it waits, it has started."""
        return self.extras is not None and self.extras.waited_before is not None

    def overdue(self, now: float) -> bool:
        """It was told to stop by its run timeout and goes on."""
        extras = self.extras
        return extras is not None and self.state == RUNNING and now - self.started_at > extras.run_left

    @property
    def gave_way(self) -> bool:
        """It has started and has no slot at present."""
        if self.state == AWAY:
            return True
        return self.state == QUEUED and self.gave_way_once

    def more(self) -> Extras:
        """Its extras, made if it had none."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def undo(self) -> Token[Call | Scope | None] | None:
        return None if self.extras is None else self.extras.undo

    @undo.setter
    def undo(self, token: Token[Call | Scope | None] | None) -> None:
        self.more().undo = token

    @property
    def nesting(self) -> Nesting | None:
        return None if self.extras is None else self.extras.nesting

    def nest(self) -> Nesting:
        """Its nesting, made if it had none."""
        extras = self.more()
        if extras.nesting is None:
            extras.nesting = Nesting()
        return extras.nesting

    @property
    def label(self) -> str | None:
        return None if self.extras is None else self.extras.label

    @property
    def tenant(self) -> str | None:
        return None if self.extras is None else self.extras.tenant

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"{self.kind} call" if self.label is None else f"{self.kind} call {self.label!r}"

    def interrupt(self, verdict: Verdict) -> None:
        """Cancel the run, from a loop callback only.

        Recorded first, so that on the way out our own cancels can be told from the caller's. Close
        decides over a timeout, and both over a preemption, which comes only to those that no other verdict is on.
        """
        if self.state != RUNNING and not self.gave_way:
            return
        extras = self.more()
        if extras.verdict is not Verdict.CLOSED:
            extras.verdict = verdict
        if self.task is not None:
            extras.own_cancels += 1
            self.task.cancel()
        elif extras.stream is not None:
            extras.stream.interrupted()
        elif extras.on_close is not None:
            extras.on_close()

    def forget_task(self, task: asyncio.Task[object]) -> None:
        """The task has ended, and the call has not: an async generator with a slot in it, say, that outlives it."""
        if self.task is task:
            self.task = None

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
                f"{self.title} of scheduler {self.home.name!r} ran longer than {self.extras.run_timeout:.3g} s: "
                "raise run_timeout, or let the call do less"
            )
        if self.extras.verdict is Verdict.DROPPED:
            return StreamClosed(f"{self.title} of scheduler {self.home.name!r}: its stream was closed as it was read")
        if self.extras.verdict is Verdict.PREEMPTED:
            return CallAborted(
                f"{self.title} of scheduler {self.home.name!r} was preempted, and lost its place before its function "
                "had ended, by a checkpoint() or released() block that did not come back: submit it again"
            )
        return CallAborted(
            f"{self.title} had not ended when close() of scheduler {self.home.name!r} ran out of time: "
            "give close() a longer timeout"
        )

    def __repr__(self) -> str:
        name = ("queued", "running", "gone", "lent on", "away")[self.state]
        return f"<Call {self.kind} {self.label or self.number} {name}>"


def running_task() -> asyncio.Task[object] | None:
    """The task this code runs in, None outside of one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
