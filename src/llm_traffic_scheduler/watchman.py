"""Looks at a scheduler once per window and warns of settings that look wrong; what is wrong is decided downstairs.

Floor: third, without asyncio. It has no timer: it looks when something happens anyway. An idle scheduler is not
looked at, and a reader never makes it look.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from .core.admission import Admission
from .policies.diagnosis import STILL_FOR, Diagnosis, Look
from .policies.history import LimitRecord
from .policies.pressure import PressurePolicy

if TYPE_CHECKING:
    from .call import Call
    from .dispatcher import Dispatcher

__all__ = ["Watchman", "holders"]

_SHORTEST_ROUND: Final = 1.0  # seconds; windows may last a millisecond
_LONGEST_ROUND: Final = STILL_FOR


class Watchman:
    """Says through the log, once for each kind of thing, what an operator should know.

    Complexity: a look O(1) beside the changes of the limit since the last one, once per window (at least a second,
    at most a minute), and at no other time anything. Threads: `still_for` from any, the rest from the loop's own.
    """

    __slots__ = ("_diagnosis", "_home", "_looked_at", "_moved", "due")

    def __init__(self, home: Dispatcher, now: float) -> None:
        self._home = home
        self._moved = home.ended()[1], now
        self.forget(now)

    def forget(self, now: float) -> None:
        """Settings have changed: what has been seen says nothing about them."""
        self._diagnosis = Diagnosis()
        self._home.governor.tide.take()
        self._begin_round(now)

    def look(self, now: float) -> None:
        """Warn of what is new; from an event, when `due` has come."""
        ended = self._home.ended()[1]
        if ended != self._moved[0]:
            self._moved = ended, now
        seen = self._seen(now)
        self._begin_round(now)  # before a log handler can do anything
        for finding in self._diagnosis.judge(seen):
            self._home.listeners.warn(finding.kind, finding.message)

    def _begin_round(self, now: float) -> None:
        self._looked_at = now
        self.due = now + min(_LONGEST_ROUND, max(_SHORTEST_ROUND, self._home.governor.window.length))

    def still_for(self, now: float) -> float:
        """Seconds in which, as far as is known, batch work has waited and none of it has started or ended.

        An end shows in a counter only, so it is taken to have been at the first look after it.
        """
        home, (ended, since) = self._home, self._moved
        admission = home.admission
        if not admission.batch_queue.size or "batch" in admission.paused or home.ended()[1] != ended:
            return 0.0
        # In the order of their starts, so the last is the newest; one that has ended since has been counted.
        newest = next(reversed(admission.batch_running), None)
        started = -math.inf if newest is None else newest.started_at
        return min(admission.oldest_wait(False, now), max(0.0, now - max(since, started)))

    def _seen(self, now: float) -> Look:
        home = self._home
        governor, admission = home.governor, home.admission
        rps, p95 = governor.tide.take()
        policy, limits, still = governor.policy, admission.limits, self.still_for(now)
        law = policy if isinstance(policy, PressurePolicy) else None
        return Look(
            now=now,
            rps=rps,
            p95=p95,
            rps_threshold=None if law is None else law.rps_threshold,
            p95_threshold=None if law is None else law.p95_threshold,
            batch_wanted=bool(admission.batch_running or admission.batch_queue.size),
            batch_max=limits.batch_max,
            batch_min=limits.batch_min,
            window=governor.window.length,
            records=self._records(),
            still_for=still,
            batch_queued=admission.counts[3],
            holders=holders(admission, now) if still >= STILL_FOR else "",
        )

    def _records(self) -> tuple[LimitRecord, ...]:
        governor = self._home.governor
        if governor.follows_calls:
            return ()
        return tuple(record for record in governor.history.records() if record.time > self._looked_at)


def holders(admission: Admission[Call], now: float) -> str:
    """Who has the slots, and what would free one."""
    interactive, batch = list(admission.interactive_running), list(admission.batch_running)
    running, cap = len(interactive) + len(batch), admission.limits.max_concurrency
    whose = " and ".join(_oldest(calls, now) for calls in (interactive, batch) if calls)
    taken = f"{running} of {cap} slots taken" + (f", by {whose}" if whose else "")
    return f"{taken}: {_way_out(admission, len(interactive), len(batch), sum(call.overdue(now) for call in batch))}"


def _oldest(calls: list[Call], now: float) -> str:
    first = calls[0]
    what = f"{len(calls)} {first.kind} call{'' if len(calls) == 1 else 's'}"
    called = "" if first.label is None else f" {first.label!r}"
    return f"{what} (the oldest{called} for {now - first.started_at:.0f} s)"


def _way_out(admission: Admission[Call], interactive: int, batch: int, overdue: int) -> str:
    limits = admission.limits
    if overdue:
        state = "one is past its run timeout and swallows" if overdue == 1 else f"{overdue} are past theirs and swallow"
        return f"{state} cancellation, so nothing but its own code ends it"
    if interactive + batch >= limits.max_concurrency and interactive > batch:
        return (
            "raise max_concurrency if the backend can serve more at once, or give interactive calls a run_timeout; "
            "batch gets a start per batch_starvation_timeout all the same"
        )
    if admission.tenants is not None and admission.tenants.number_at_bound:
        return "tenants of waiting calls run as many as max_running_per_tenant allows: raise that, or see calls()"
    return "a run_timeout ends calls that hang, shorter pieces and checkpoint() let long ones take turns; see calls()"
