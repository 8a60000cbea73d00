"""What becomes of the calls of an event loop that has gone.

Floor: third, without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import nested
from .core.admission import GONE, QUEUED, Admission

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["abandon"]


def abandon(home: Dispatcher, *, wake: bool) -> None:
    """Count every call as cancelled and never touch anything of it again.

    `wake`: the loop is not closed and may run again, so whoever waits there is cancelled.
    """
    home.abandoned = True
    home.disarm()
    calls, paused = list(home.admission.calls()), home.admission.paused
    home.admission = Admission(home.admission.limits, home.governor)  # late timers of that loop find nothing to do
    home.admission.set_paused(paused, 0.0)
    home.governor.watch(home.admission)
    for call in calls:
        tally = home.tallies[call.kind]
        tally.cancelled += 1
        tally.never_started += call.state == QUEUED and not call.gave_way_once
        if wake and call.waiter is not None:
            call.waiter.cancel()
    for call in [*calls, *nested.guests(calls)]:
        if call.extras is not None:
            call.extras.stop_timer()
        call.state = GONE
    home.idle_waiters.abandon(wake=wake)
