"""The seam between what is known and how many batch calls may run.

Floor: second. Pure. *How many* is a different object from *may I*: a policy reads
`Signals` and answers with a `Decision`; admission applies it. The split follows Netflix's
concurrency-limits; that a decision carries its reason follows failsafe-go.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from ..core.checks import seconds
from ..errors import ConfigError

__all__ = [
    "Arrived",
    "Decision",
    "Ended",
    "FirstToken",
    "LimitPolicy",
    "Observation",
    "ObservingPolicy",
    "Signals",
    "check_decision",
    "check_policy",
    "observer_of",
    "pace_of",
    "reads_of",
    "remembers",
    "replica_of",
    "reset",
    "threshold_of",
]

PolicyT = TypeVar("PolicyT")


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
    """P95 over the window of the seconds from submit to first token; None where no call reports it."""
    pace: float | None = None
    """P95 over the window of the seconds per output token after the first; None where no call reports it."""
    throttled_until: float = -math.inf
    """Until then the backend has asked us to wait."""
    oldest_batch_wait: float = 0.0
    external: float | None = None
    """Pressure from an outside gauge, None without one."""
    slice_length: float = 0.1
    """Seconds of a slice of the window: `advance` is not called again before it has passed."""
    batch_lowest: int | None = None
    """The fewest batch calls that ran at any decision since the slice began; None where nobody has kept count."""


_EVERYTHING: Final = frozenset(field.name for field in fields(Signals))


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
    """A control law. One object serves one scheduler; a second is refused one that has `observe` or `reset`.

    `advance` is the only way to change state; it is called at most once per slice of the window
    (a hundredth of it), before the slice's first event. `decide` is pure: snapshots call it from any
    thread. Both get the same clock, in seconds.

    Optional attributes:
        p95_threshold (float | None): unfinished interactive calls older than this join the quantiles.
        reads (frozenset[str]): names of the signals `decide` looks at; a decision is then kept
            while only others change, and those that take time to find may be left at their defaults. Without it
            every change asks again. A policy that reads counts of calls is taken to move with each call by
            design: its limit is not said to flutter.
        describe(now, decision, signals) (method): why the limit is what it is, with the numbers, as a clause
            without capital and full stop: "12 interactive calls per second are 60% of the threshold".
        outlook(now, decision, signals) (method): a tuple of such sentences, what would have to change for
            the limit to move, and by how much. Both are pure, called by `snapshot` and `explain` from any thread
            with a decision of this policy or of its replica (the limit clamped) and the signals it was made on.
            What raises, or is no text, is passed over.
        reset() (method): called when a scheduler takes the policy up, or moves to another event loop: of calls that
            the policy knows of it may never hear again.
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


@dataclass(frozen=True, slots=True)
class Arrived:
    """An interactive call was submitted.

    Attributes:
        call: the same in all observations of one call; no two unfinished calls share it.
    """

    call: int = 0


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of an interactive call is there, `elapsed` seconds after its submit."""

    call: int = 0
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """An interactive call has ended, or was refused.

    Attributes:
        latency: seconds since its submit.
        first_token: seconds from submit to first token, None where that was not reported.
        tokens: output tokens reported, 0 where none were.
    """

    call: int = 0
    latency: float = 0.0
    first_token: float | None = None
    tokens: int = 0
    outcome: Literal["completed", "failed", "cancelled", "timed_out", "rejected"] = "completed"

    @property
    def pace(self) -> float | None:
        """Seconds per output token after the first; None unless the first and at least one more were reported."""
        return pace_of(self.latency, self.first_token, self.tokens)


Observation: TypeAlias = Arrived | FirstToken | Ended


@runtime_checkable
class ObservingPolicy(LimitPolicy, Protocol):
    """A law that needs single calls. One that does not have `observe` costs nothing per call.

    It hears of interactive calls that count as traffic, as they happen. After `configure(policy=...)` calls may
    end whose arrival it has not heard of. What it raises is treated as for `advance`.

    Optional attribute, beside those of `LimitPolicy`:
        observing (bool): False if it has the method and does not need to hear, with these settings.
    """

    def observe(self, now: float, event: Observation) -> None:
        """Take in what has just happened to one call; changes state, as `advance` does."""
        ...


def pace_of(latency: float, first_token: float | None, tokens: int) -> float | None:
    """Seconds per output token after the first; None unless the first and at least one more are there."""
    if first_token is None or tokens < 2:
        return None
    try:
        return (latency - first_token) / (tokens - 1)
    except OverflowError:  # more tokens than a float can count
        return 0.0


def check_policy(name: str, policy: PolicyT) -> PolicyT:
    """`policy` if it is an object that can be asked, or ConfigError; `name` is what the message calls it."""
    if isinstance(policy, type) or not all(callable(getattr(policy, method, None)) for method in ("advance", "decide")):
        raise ConfigError(f"{name} must be an object with the methods advance and decide, got {policy!r}")
    if (joining := getattr(policy, "p95_threshold", None)) is not None:
        seconds(f"{name}.p95_threshold", joining)
    return policy


def check_decision(policy: LimitPolicy, decision: Decision, signals: Signals) -> Decision:
    """The decision with its limit inside the bounds; ConfigError if its limit or its reason is none."""
    limit, reason = decision.limit, decision.reason
    if type(limit) is not int or type(reason) is not str:
        if not isinstance(limit, int) or isinstance(limit, bool) or not isinstance(reason, str):
            raise ConfigError(
                f"{policy!r} must decide on a whole number of calls, with a string for the reason, got {decision!r}"
            )
        # A subclass may compare, hash and print as it likes, long after the policy has answered.
        limit, reason = int.__int__(limit), str.__str__(reason)
    inside = min(signals.batch_max, max(signals.batch_min, limit))
    # Numbers are made floats here, where what cannot be one is still the policy's fault.
    return Decision(inside, math.fsum((decision.pressure,)), reason, math.fsum((decision.valid_until,)))


def observer_of(policy: LimitPolicy) -> Callable[[float, Observation], None] | None:
    """The policy's third door, if it has one and uses it."""
    try:
        observe = getattr(policy, "observe", None)
        return observe if callable(observe) and getattr(policy, "observing", True) else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def reads_of(policy: LimitPolicy) -> frozenset[str]:
    """The signals that the policy's `decide` looks at; all of them where it does not say."""
    try:
        return frozenset(getattr(policy, "reads", _EVERYTHING))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return _EVERYTHING


def threshold_of(policy: LimitPolicy) -> float | None:
    """The age, in seconds, from which an unfinished call joins the quantile; None if the policy has no sensible one."""
    try:
        threshold = getattr(policy, "p95_threshold", None)
        if type(threshold) is not float:  # it may have changed since it was checked at the door
            return None if threshold is None else seconds("p95_threshold", threshold)
        return threshold if 0 < threshold < math.inf else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def replica_of(policy: LimitPolicy) -> LimitPolicy:
    """An independent copy; the policy itself where there is none."""
    replica = getattr(policy, "replica", None)
    copied: LimitPolicy = policy if replica is None else replica()
    return copied


def remembers(policy: LimitPolicy) -> bool:
    """It has a state that two schedulers would spoil for each other, as far as it says."""
    try:
        return any(callable(getattr(policy, name, None)) for name in ("observe", "reset"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return False


def reset(policy: LimitPolicy) -> None:
    """Tell the policy that it moves to another event loop, if it wants to know."""
    if callable(forget := getattr(policy, "reset", None)):
        forget()
