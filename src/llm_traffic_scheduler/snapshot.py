"""What the scheduler shows of itself: one frozen picture per look.

Floor: third, without asyncio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from .core.metrics import TrafficSnapshot
from .events import Ending

__all__ = ["CallInfo", "CloseReport", "KindTotals", "Reason", "SchedulerSnapshot", "Tally"]

Reason: TypeAlias = Literal[
    "calm",
    "arrivals",
    "latency",
    "throttled",
    "fixed",
    "learning",
    "budget",
    "headroom",
    "idle",
    "ramp",
    "stalled",
    "external",
    "external_stale",
    "policy",
    "policy_failed",
]
"""Why the batch limit is what it is. A code of a user's own policy that is none of these shows as "policy"."""

REASONS: Final[frozenset[str]] = frozenset(get_args(Reason))


@dataclass(frozen=True, slots=True)
class KindTotals:
    """How the calls of one kind have ended since the scheduler was made.

    submitted = completed + failed + cancelled + timed_out + rejected + queued + running, at any instant.
    `preempted` is how often calls were stopped to run again, which ends none of them.
    """

    submitted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    timed_out: int = 0
    rejected: int = 0
    preempted: int = 0


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call that waits or runs.

    Attributes:
        state: "queued", "running", "overdue" (it runs on although its run timeout told it to stop), or "released"
            (inside `async with slot.released()`; counts as queued).
        age: seconds since submit.
        waited: seconds it has spent in the queue.
    """

    kind: str
    label: str | None
    tenant: str | None
    state: Literal["queued", "released", "running", "overdue"]
    age: float
    waited: float


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What became of the calls that were there when `close()` was called.

    Attributes:
        finished: ended by themselves, well or badly.
        rejected: waited, and were refused, with SchedulerClosed or by their queue timeout.
        cancelled: were cancelled at the timeout and ended.
        abandoned: went on a second after they were cancelled; close() did not wait for them.
    """

    finished: int = 0
    rejected: int = 0
    cancelled: int = 0
    abandoned: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """The whole scheduler at one instant. Counts are calls, times seconds.

    Attributes:
        batch_limit: batch calls allowed to run now, by the policy; pauses show in `paused`.
        pressure: 0 = interactive traffic is at ease, 1 = at its threshold; never clamped.
        reason: why the batch limit is what it is, one of `Reason`.
        detail: the same in a sentence.
        paused: kinds of which nothing starts.
        released: calls inside `released()`, which count as queued.
        tenants_at_bound: tenants that run as many calls as `max_running_per_tenant` allows.
        closed: it takes no new calls any more.
        overdue: calls that run on although their run timeout told them to stop.
        oldest_interactive_running: seconds since the longest-running one got its slot; 0.0 if none runs.
        interactive: the window of interactive traffic.
        totals: by kind.
        policy_faults, listener_faults: times that a policy or a listener raised.
        timer_lateness: seconds by which the last admission timer came late; the loop was busy that long.
    """

    name: str
    max_concurrency: int
    batch_max_concurrency: int
    batch_min_concurrency: int
    running: int
    interactive_running: int
    batch_running: int
    interactive_queued: int
    batch_queued: int
    batch_limit: int
    pressure: float
    reason: Reason
    detail: str
    paused: frozenset[str]
    overdue: int
    oldest_interactive_wait: float
    oldest_batch_wait: float
    oldest_interactive_running: float
    oldest_batch_running: float
    interactive: TrafficSnapshot
    totals: Mapping[str, KindTotals]
    policy_faults: int = 0
    listener_faults: int = 0
    timer_lateness: float = 0.0
    released: int = 0
    tenants_at_bound: int = 0
    closed: bool = False


class Tally:
    """Running totals of one kind; what can be derived is not counted."""

    __slots__ = ("cancelled", "completed", "failed", "never_started", "preempted", "rejected", "timed_out")

    def __init__(self) -> None:
        self.completed = self.failed = self.cancelled = self.timed_out = self.rejected = self.preempted = 0
        self.never_started = 0  # of the cancelled, those that got no slot

    def count(self, outcome: Ending) -> None:
        """One call more has ended like this."""
        setattr(self, outcome, getattr(self, outcome) + 1)

    @property
    def ended(self) -> int:
        """Calls that have left, whatever way."""
        return self.completed + self.failed + self.cancelled + self.timed_out + self.rejected

    def started(self, running: int) -> int:
        """Calls that got a slot, `running` of which still have it."""
        return self.ended - self.rejected - self.never_started + running

    def totals(self, queued: int, running: int, started_before: int) -> KindTotals:
        """The figures to show; `started_before` of those that are queued have run already."""
        return KindTotals(
            submitted=self.ended + queued + running,
            started=self.started(running + started_before),
            completed=self.completed,
            failed=self.failed,
            cancelled=self.cancelled,
            timed_out=self.timed_out,
            rejected=self.rejected,
            preempted=self.preempted,
        )
