"""What callers saw, against what the scheduler counted."""

from __future__ import annotations

from collections import Counter
from typing import Final

from llm_traffic_scheduler import KindTotals

__all__ = ["COUNTED_AS", "assert_accounted"]

# What the caller of a call sees, and where the totals count it; a submit after close counts nowhere.
COUNTED_AS: Final = {
    "returned": "completed",
    "Boom": "failed",
    "SchedulerMisuse": "failed",
    "CancelledError": "cancelled",
    "CallAborted": "cancelled",
    "StreamClosed": "cancelled",
    "RunTimeout": "timed_out",
    "idle": "timed_out",  # a stream that nobody read
    "QueueFull": "rejected",
    "QueueTimeout": "rejected",
    "SchedulerClosed": "rejected",
}


def assert_accounted(
    totals: KindTotals, outcomes: Counter[str], called: int, cancelled_uncalled: int, late_readers: int = 0
) -> None:
    """Every ending of one kind is counted where it belongs, once the calls have settled.

    `outcomes` counts what callers saw, by the names of COUNTED_AS. `called` functions were called; so many calls
    ended with a CancelledError and had not been called. `late_readers` heard of something else than that their
    streams had been idle: that is counted as timed out.
    """
    seen: Counter[str] = Counter()
    for outcome, number in outcomes.items():
        seen[COUNTED_AS[outcome]] += number
    assert (totals.completed, totals.failed) == (seen["completed"], seen["failed"]), (totals, outcomes)
    assert totals.timed_out == seen["timed_out"] + late_readers, (totals, outcomes, late_readers)
    ended = totals.timed_out + totals.cancelled + totals.rejected
    assert ended == seen["timed_out"] + seen["cancelled"] + seen["rejected"], (totals, outcomes)
    # A cancel that meets a refusal before the caller has woken: counted as rejected, seen as the cancel.
    assert 0 <= totals.rejected - seen["rejected"] <= cancelled_uncalled, (totals, outcomes)
    assert totals.started >= called, (totals, called)
