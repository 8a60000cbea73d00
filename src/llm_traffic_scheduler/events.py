"""What a listener hears: one frozen value per thing that happened to a call or to the batch limit.

Floor: third, without asyncio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "CallFinished",
    "CallQueued",
    "CallRejected",
    "CallStarted",
    "Ending",
    "Event",
    "LimitChanged",
    "RejectionReason",
]

Ending: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out"]
RejectionReason: TypeAlias = Literal["queue_full", "queue_timeout", "closed"]


@dataclass(frozen=True, slots=True)
class CallQueued:
    """No slot was free for the call; it waits.

    Attributes:
        at: the loop's clock, seconds.
        queued: calls of its kind that wait now, this one included.
    """

    at: float
    kind: str
    label: str | None
    queued: int


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The call has a slot; its function runs, or goes on, as soon as its task does.

    Told again of a call that gave its slot up and has it back, or was preempted and begins anew; `CallQueued` is not.

    Attributes:
        waited: seconds in the queue so far, as `Slot.waited`.
    """

    at: float
    kind: str
    label: str | None
    waited: float


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The call gave its slot back, or was cancelled while it waited.

    Attributes:
        outcome: "completed", "failed", "cancelled" (close() and any CancelledError too) or "timed_out" (run_timeout).
        waited: seconds in the queue, as `Slot.waited`; to the end if it got no slot.
        ran: seconds since it got the slot it has had last; 0.0 if it ended without one.
        first_token: seconds from submit to `slot.first_token()`, None if that was not called.
        tokens: sum of what `slot.tokens(n)` reported.
    """

    at: float
    kind: str
    label: str | None
    outcome: Ending
    waited: float
    ran: float
    first_token: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class CallRejected:
    """The call was refused; its function was not called.

    Attributes:
        waited: seconds it spent in the queue.
    """

    at: float
    kind: str
    label: str | None
    reason: RejectionReason
    waited: float


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """Another number of batch calls may run from now on."""

    at: float
    before: int
    after: int
    pressure: float
    reason: str


Event: TypeAlias = CallQueued | CallStarted | CallFinished | CallRejected | LimitChanged
