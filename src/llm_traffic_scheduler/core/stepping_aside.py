"""Calls that have started and go on without a slot for a while.

Floor: ground. These are methods of `Admission`; whoever calls one calls `expire` and `fill` afterwards.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .admissible import AWAY, GONE, QUEUED, CallT
from .fair_queue import FairQueue
from .running_items import RunningItems

if TYPE_CHECKING:
    from .admission import Admission

__all__ = ["come_back", "give_up", "keep_away", "leave"]


def give_up(admission: Admission[CallT], call: CallT) -> None:
    """Take back the slot of a call that goes on without one for a while."""
    running = admission.interactive_running if call.interactive else admission.batch_running
    if isinstance(running, RunningItems):
        running.set_aside(call)
    else:
        del running[call]
    call.state = AWAY
    admission.away[call] = None


def keep_away(admission: Admission[CallT], call: CallT) -> None:
    """A call that is lent a slot gives it up, or one that waits again is lent one: it is away from now on."""
    admission.away[call] = None
    if isinstance(queue := admission._queue(call.interactive), FairQueue):
        queue.set_aside(call)


def come_back(admission: Admission[CallT], call: CallT, now: float) -> None:
    """A call that gave its slot up waits for one again, in its old place and for as long as it takes."""
    del admission.away[call]
    call.queued_at, call.deadline, call.state = now, math.inf, QUEUED
    admission.aside[call] = False
    queue = admission._queue(call.interactive)
    if not queue.size and not call.interactive:
        admission._waiting_since = now
    if not queue.push(call, call.priority, call.number):
        admission._stragglers(call.interactive).appendleft(call)  # where `up_to_newcomer` looks


def leave(admission: Admission[CallT], call: CallT) -> None:
    """A call that gave its slot up ends without one."""
    del admission.away[call]
    if isinstance(queue := admission._queue(call.interactive), FairQueue):
        queue.ended(call)
    call.state = GONE
