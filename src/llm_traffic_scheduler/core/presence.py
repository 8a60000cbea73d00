"""Which calls are there, and for how long they have been: what policies and people are told of them.

Floor: ground. These are methods of `Admission`, which change nothing. A hundred thousand calls may wait, so whoever
wants the oldest looks at those that came first, and stops where all others came later.
Threads: any, if a RuntimeError is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from .admissible import CallT

if TYPE_CHECKING:
    from .admission import Admission

__all__ = ["calls", "oldest_unfinished", "oldest_wait", "unfinished", "waiting"]


def oldest_wait(admission: Admission[CallT], interactive: bool, now: float) -> float:
    """Seconds that the call of this kind that has waited longest has waited; 0.0 if none waits."""
    ranks = admission._queue(interactive).in_run(), admission._stragglers(interactive).live()
    return max([0.0, *(now - call.queued_at for rank in ranks for call in admission.aside.up_to_newcomer(rank))])


def oldest_unfinished(admission: Admission[CallT], now: float) -> float:
    """Age of the oldest observed interactive call that has not ended; 0.0 if there is none."""
    submitted = [call.submitted for call in list(admission.interactive_running) if call.observed]
    for rank in (admission.interactive_queue.in_run(), admission._interactive_stragglers.live()):
        observed = (call for call in rank if call.observed)
        submitted += [call.submitted for call in admission.aside.up_to_newcomer(observed)]
    return max(0.0, now - min(submitted, default=now))


def unfinished(admission: Admission[CallT], now: float, older_than: float) -> tuple[list[float], float]:
    """Ages of observed interactive calls that have not ended and are older than `older_than`, oldest first.

    Beside them, when the oldest of the others was submitted; infinity if there are none.
    """
    ages: list[float] = []
    next_submitted = math.inf
    for call in list(admission.interactive_running):
        if call.observed:
            if now - call.submitted > older_than:
                ages.append(now - call.submitted)
            else:
                next_submitted = min(next_submitted, call.submitted)
    for rank in (admission.interactive_queue.in_run(), admission._interactive_stragglers.live()):
        for call in admission.aside.once(rank):
            if call.observed:
                if now - call.submitted > older_than:
                    ages.append(now - call.submitted)
                    continue
                next_submitted = min(next_submitted, call.submitted)
                if not admission.aside.came_back(call):
                    break  # those behind it came later
    ages.sort(reverse=True)
    return ages, next_submitted


def waiting(admission: Admission[CallT], interactive: bool) -> Iterator[CallT]:
    """Those of the kind that wait, in no order. Lazily: the first few cost no copy of all."""
    return admission.aside.once(
        chain(admission._queue(interactive).in_run(), admission._stragglers(interactive).live())
    )


def calls(admission: Admission[CallT]) -> Iterator[CallT]:
    """All calls: those that run, those that are away, then those that wait, each in their order."""
    yield from list(admission.interactive_running)
    yield from list(admission.batch_running)
    yield from list(admission.away)
    yield from admission.interactive_queue.ordered()
    yield from admission.batch_queue.ordered()
