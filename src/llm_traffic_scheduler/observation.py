"""What the policy hears of single interactive calls, and what their tokens say.

Floor: third, without asyncio. Nothing here is called for a call that is not observed, and only the tokens are
recorded where the policy does not observe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from .core.admission import RUNNING
from .policies.base import Arrived, Ended, FirstToken, pace_of

if TYPE_CHECKING:
    from .call import Call

__all__ = ["tell_arrived", "tell_ended", "tell_failed", "tell_first_token"]

_How: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out", "rejected"]


def tell_arrived(call: Call, now: float) -> None:
    """The call is traffic from here on."""
    governor = call.home.governor
    if governor.observe is not None:
        governor.tell(now, Arrived(id(call)))


def tell_first_token(call: Call, at: float) -> None:
    """The call's first token came `at` this time; a moment ago, if a thread reports it."""
    if call.observed and call.state == RUNNING:
        governor, now, elapsed = call.home.governor, call.home.clock(), max(0.0, at - call.submitted)
        governor.first_token(now, elapsed)
        if governor.observe is not None:
            governor.tell(now, FirstToken(id(call), elapsed))
        if call.home.admission.batch_queue.size:
            call.home.settle(now)  # the batch limit may have risen


def tell_failed(call: Call, now: float, outcome: _How) -> None:
    """The call has ended without success, after a time that says something of the backend."""
    call.home.governor.failed(now, max(0.0, now - call.submitted))
    tell_ended(call, now, outcome)


def tell_ended(call: Call, now: float, outcome: _How) -> None:
    """The call has ended, or was refused."""
    governor, slot = call.home.governor, None if call.extras is None else call.extras.slot
    if slot is None and governor.observe is None:
        return
    first_token, tokens = None, 0
    if slot is not None:
        tokens = slot.token_count
        if slot.first_token_at is not None:
            first_token = max(0.0, slot.first_token_at - call.submitted)
    latency = max(0.0, now - call.submitted)
    if outcome == "completed" and (pace := pace_of(latency, first_token, tokens)) is not None:
        governor.pace(now, pace)
    if governor.observe is not None:
        governor.tell(now, Ended(id(call), latency, first_token, tokens, outcome))
