"""The seam between what is known and how many batch calls may run.

Floor: second. Pure. *How many* is a different object from *may I*: a policy reads
`Signals` and answers with a `Decision`; admission applies it. The split follows Netflix's
concurrency-limits; that a decision carries its reason follows failsafe-go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Decision", "LimitPolicy", "Signals"]


@dataclass(frozen=True, slots=True)
class Signals:
    """What a policy may look at, at one instant.

    Counts are calls, times are seconds, rates are per second. Quantiles are over the window and
    0.0 without samples; `p95` includes unfinished calls older than the policy's `p95_threshold`,
    `p95_finished` does not. While calls fail and none succeeds, both keep their last value.
    """

    max_concurrency: int = 2
    batch_max: int = 1
    batch_min: int = 1
    interactive_running: int = 0
    interactive_queued: int = 0
    batch_running: int = 0
    batch_queued: int = 0
    rps: float = 0.0
    sample_count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p95_finished: float = 0.0
    oldest_unfinished: float = 0.0
    """Age of the oldest interactive call that has not ended."""
    ttft_p95: float | None = None
    """P95 of the time to first token, None where no call reports it."""
    pace: float | None = None
    """Seconds per output token, None where no call reports it."""
    throttled_until: float = -math.inf
    """Until then the backend has asked us to wait."""
    oldest_batch_wait: float = 0.0
    external: float | None = None
    """Pressure from an outside gauge, None without one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many batch calls may run, and why.

    Attributes:
        limit: whole number of calls; what lies outside [batch_min, batch_max] is clamped.
        pressure: 0 = interactive traffic is at ease, 1 = at its threshold; never clamped.
        reason: a short code; one that is none of `Reason` shows as "policy", with the code in `detail`.
        valid_until: until then the decision stands unless the signals change.
    """

    limit: int
    pressure: float = 0.0
    reason: str = "policy"
    valid_until: float = math.inf


@runtime_checkable
class LimitPolicy(Protocol):
    """A control law. One object serves one scheduler.

    `advance` is the only way to change state; it is called at most once per slice of the window
    (a hundredth of it), before the slice's first event. `decide` is pure: snapshots call it from any
    thread. Both get the same clock, in seconds.

    Optional attributes:
        p95_threshold (float | None): unfinished interactive calls older than this join the quantiles.
        reads (frozenset[str]): names of the signals `decide` looks at; a decision is then kept
            while only others change. Without it every change asks again. A policy that reads counts of
            calls is taken to move with each call by design: its limit is not said to flutter.
        describe(now, decision, signals) (method): why the limit is what it is, with the numbers, as a clause
            without capital and full stop: "12 interactive calls per second are 60% of the threshold".
        outlook(now, decision, signals) (method): a tuple of such sentences, what would have to change for
            the limit to move, and by how much. Both are pure, called by `snapshot` and `explain` from any thread
            with a decision of this policy or of its replica (the limit clamped) and the signals it was made on.
            What raises, or is no text, is passed over.
        reset() (method): called when the scheduler moves to another event loop.
        replica() (method): an independent copy, which a snapshot taken after a quiet spell brings up
            to date; without it, or if it returns the policy itself, such a snapshot shows the
            state as of the last event.

    A policy that raises, or answers with something that is not a whole number, is logged once per
    kind of error; its last decision stays for one window, then `batch_min` holds.
    """

    def advance(self, now: float, signals: Signals) -> None:
        """Take in what holds from `now` on; the only place to change state."""
        ...

    def decide(self, now: float, signals: Signals) -> Decision:
        """How many batch calls may run at `now`. Changes nothing."""
        ...
