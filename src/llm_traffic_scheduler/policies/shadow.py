"""What other laws would have done beside the one that acts, on the same traffic.

Floor: second. Pure. The idea is that of dark launches: the only fair trial of a law is the user's own traffic, and
nobody wants to be its first victim. What it cannot show: with another limit the traffic would have been another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from ..core.checks import count
from .base import Decision, LimitPolicy, Observation, Signals, check_decision, observer_of, reads_of, replica_of, reset
from .parts import check_parts, each

__all__ = ["Shadow", "ShadowRecord", "ShadowReport"]

# At ten slices a second, as in the default window, the last quarter of an hour of steady traffic.
_HISTORY: Final = 10_000

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """What each policy said at one instant, the acting one first; None where it raised.

    Attributes:
        time: seconds, on the clock of the scheduler's event loop.
        decisions: limits inside the scheduler's bounds.
    """

    time: float
    decisions: tuple[Decision | None, ...]

    @property
    def limits(self) -> tuple[int | None, ...]:
        """The batch limits alone."""
        return tuple(None if decision is None else decision.limit for decision in self.decisions)


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """One policy against the acting one, over the time in which both answered. 0.0 without any.

    Attributes:
        policy: its repr.
        seconds: that time.
        mean_limit: batch calls it would have allowed, averaged over that time.
        mean_difference: the same less the acting policy's limit.
        more, less: shares of that time in which it would have allowed more, or less, than the acting policy.
        faults: times that it raised, or gave an answer that is none.
    """

    policy: str
    seconds: float
    mean_limit: float
    mean_difference: float
    more: float
    less: float
    faults: int


class Shadow:
    """Lets `acting` decide, and records beside it what `others` would have decided.

    The scheduler behaves as with `acting` alone: nothing that another one raises or answers reaches it, except what is
    meant for the process. All are told the same; the quantiles in the signals are those that `acting.p95_threshold`
    makes. An other that observes is told of single calls, whether or not the acting one is.

    The others are asked when the policy is advanced, with the acting one in the same instant: once per slice of the
    window (a hundredth of it) in which something happens. That is the sampling of the record; an answer counts for
    the time until the next. What an other would have *caused* cannot be seen: the traffic is the acting one's.

    Args:
        acting: the policy whose limit holds.
        others: policies, or further shadows, to compare with it.
        history: instants that `history` keeps; `report` and `explain` cover all of them since the start.

    Raises:
        ConfigError: one that is no policy, or the same object twice, or `history` no whole number.

    Threads: `history`, `report` and `explain` from any.
    """

    __slots__ = ("_history", "_last", "_totals", "acting", "others")

    def __init__(self, acting: LimitPolicy, *others: LimitPolicy, history: int = _HISTORY) -> None:
        names = ["acting", *(f"others[{place}]" for place in range(len(others)))]
        check_parts(zip(names, (acting, *others), strict=True))
        self.acting = acting
        self.others = others
        self._history: deque[ShadowRecord] = deque(maxlen=count("history", history))
        self._forget()

    def _forget(self) -> None:
        self._history.clear()
        self._last: ShadowRecord | None = None
        self._totals = tuple(_Totals() for _ in self.policies_inside)

    @property
    def policies_inside(self) -> tuple[LimitPolicy, ...]:
        """The acting policy, then the others."""
        return (self.acting, *self.others)

    # What was recorded

    @property
    def history(self) -> tuple[ShadowRecord, ...]:
        """The last instants, oldest first."""
        while True:
            try:
                return tuple(self._history)
            except RuntimeError:  # the scheduler's thread has added one meanwhile
                continue

    def report(self) -> tuple[ShadowReport, ...]:
        """Each policy against the acting one, which comes first, since the start or the last `reset`."""
        return tuple(totals.report(policy) for totals, policy in zip(self._totals, self.policies_inside, strict=True))

    def explain(self) -> str:
        """The report in words, a line for each policy."""
        acting, *others = self.report()
        lines = [f"acting: {acting.policy}, mean limit {acting.mean_limit:.3g} over {acting.seconds:.4g} s"]
        lines += [
            f"beside it: {other.policy}, mean limit {other.mean_limit:.3g} ({other.mean_difference:+.3g}); "
            f"more for {other.more:.0%} of {other.seconds:.4g} s, less for {other.less:.0%}; {other.faults} faults"
            for other in others
        ]
        return "\n".join(lines)

    # What a policy is asked

    @property
    def reads(self) -> frozenset[str]:
        """The signals that the acting policy looks at: the others are asked by `advance`, where all are known."""
        return reads_of(self.acting)

    @property
    def p95_threshold(self) -> float | None:
        """The acting policy's."""
        threshold: float | None = getattr(self.acting, "p95_threshold", None)
        return threshold

    def reset(self) -> None:
        """Begin a new record, and tell all; the times of the old one are of another clock."""
        self._forget()
        guarded = [
            partial(totals.guard, partial(reset, other))
            for totals, other in zip(self._totals[1:], self.others, strict=True)
        ]
        each([partial(reset, self.acting), *guarded])

    def replica(self) -> LimitPolicy:
        """A copy of the acting policy, so that a snapshot adds nothing to the record; the shadow where it has none."""
        copied = replica_of(self.acting)
        return self if copied is self.acting else copied

    def advance(self, now: float, signals: Signals) -> None:
        """Tell all what holds from `now` on, and record what each makes of it."""
        try:
            self.acting.advance(now, signals)
        finally:
            for totals, other in zip(self._totals[1:], self.others, strict=True):
                totals.guard(partial(other.advance, now, signals))
            self._record(now, signals)

    @property
    def observing(self) -> bool:
        """One of them needs single calls."""
        return any(observer_of(policy) is not None for policy in self.policies_inside)

    def observe(self, now: float, event: Observation) -> None:
        """Tell those that need it."""
        try:
            if (observe := observer_of(self.acting)) is not None:
                observe(now, event)
        finally:
            for totals, other in zip(self._totals[1:], self.others, strict=True):
                if (observe := observer_of(other)) is not None:
                    totals.guard(partial(observe, now, event))

    def decide(self, now: float, signals: Signals) -> Decision:
        """The acting policy's decision."""
        return self.acting.decide(now, signals)

    def _record(self, now: float, signals: Signals) -> None:
        if self._last is not None:
            self._count(self._last, now - self._last.time)
        decisions = tuple(
            totals.guard(partial(_decision, policy, now, signals))
            for totals, policy in zip(self._totals, self.policies_inside, strict=True)
        )
        self._last = ShadowRecord(now, decisions)
        self._history.append(self._last)

    def _count(self, record: ShadowRecord, seconds: float) -> None:
        acting = record.limits[0]
        # Also for NaN and for a clock that went back. An infinite time would leave nothing to compare.
        if acting is None or not 0 < seconds < math.inf:
            return
        for totals, limit in zip(self._totals, record.limits, strict=True):
            if limit is not None:
                totals.add(seconds, limit, acting)

    def __repr__(self) -> str:
        return f"Shadow({', '.join(map(repr, self.policies_inside))})"


class _Totals:
    """What one policy would have allowed so far, by time."""

    __slots__ = ("difference", "faults", "less", "limit", "more", "seconds")

    def __init__(self) -> None:
        self.seconds = self.limit = self.difference = self.more = self.less = 0.0
        self.faults = 0

    def guard(self, call: Callable[[], Answer]) -> Answer | None:
        """What the call returns; None, and a fault more, if it raises."""
        try:
            return call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a CancelledError too: nobody's task is meant
            self.faults += 1
            return None

    def add(self, seconds: float, limit: int, acting: int) -> None:
        self.seconds += seconds
        self.limit += limit * seconds
        self.difference += (limit - acting) * seconds
        if limit > acting:
            self.more += seconds
        elif limit < acting:
            self.less += seconds

    def report(self, policy: LimitPolicy) -> ShadowReport:
        seconds = self.seconds
        sums = (self.limit, self.difference, self.more, self.less)
        limit, difference, more, less = (total / seconds if seconds else 0.0 for total in sums)
        return ShadowReport(repr(policy), seconds, limit, difference, more, less, self.faults)


def _decision(policy: LimitPolicy, now: float, signals: Signals) -> Decision:
    return check_decision(policy, policy.decide(now, signals), signals)
