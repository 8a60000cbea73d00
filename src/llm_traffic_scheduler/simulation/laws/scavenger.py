"""A scavenger: takes what is left, and yields as soon as interactive calls become slower than they were without it.

Floor: fourth. Pure.
Law, once per round trip (the smoothed latency of interactive calls), with W for the limit, and for the delay the median
pace of the calls that have ended less its base; allowed = rise * base:
    delay <= allowed:  W += gain = 1 / min(16, ceil(2 * rise)), if batch work uses W;
                       up to 3/4 of allowed, until W is where it had to stop before: W doubles (slow start)
    delay >  allowed:  W += max(gain - W * (delay / allowed - 1), -W / 2)
    loss:              W /= 2; that is throttling, more calls that failed than were completed, or two calls or more
                       of which none has ended for 3 round trips
Slow-down: for as long as it takes until `samples` calls (at most 10 round trips) have begun and ended beside no more
than batch_min batch calls; their median pace is the new base. It holds back batch calls only. The first comes with the
first interactive call, the next one after 9 times as long as the last took. Then slow start to where W was.
Nobody to yield to, that is no interactive call for 10 s, or none yet: slow start.
Source: RFC 6817 (LEDBAT) and LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus): gain, decrease, slow start and slow-downs
are those of the draft. Differences: the allowed delay is a share of the base and not 60 ms, a round trip is a call.
"""

import math
from copy import copy
from statistics import median
from typing import Final, Self

from llm_traffic_scheduler import Arrived, Decision, Ended, FirstToken, Signals

from ..checks import above_zero, at_least_one

__all__ = ["Scavenger"]

_NOBODY_AFTER: Final = 10.0
_SLOW_START_UP_TO: Final = 0.75
_APART: Final = 9.0
_LOST_AFTER: Final = 3.0  # round trips
_LONGEST: Final = 10.0  # round trips
_SMOOTHING: Final = 1 / 8  # of the round trip, TCP's
_FIRST_ROUND_TRIP: Final = 1.0


class Scavenger:
    """Yields to a rising pace of interactive calls; needs no target in seconds.

    The pace of a call: seconds per output token after the first if it reports both, else its latency per output token,
    else its latency.

    Args:
        rise: by which share of its base the pace may rise.
        samples: interactive calls that make a new base.

    Raises: `ConfigError` for a number that cannot be.
    """

    __slots__ = (
        "_at",
        "_base",
        "_drained_at",
        "_ended_at",
        "_excess",
        "_failed",
        "_limit",
        "_next_slow_down",
        "_next_step",
        "_paces",
        "_round_trip",
        "_seen_at",
        "_slice",
        "_slow_since",
        "_stopped_at",
        "rise",
        "samples",
    )

    reads: frozenset[str] = frozenset({"batch_max", "batch_min", "throttled_until"})

    def __init__(self, rise: float = 0.5, samples: int = 5) -> None:
        above_zero(rise=rise)
        at_least_one(samples=samples)
        self.rise, self.samples = rise, samples
        self._base = math.nan  # pace beside as little batch work as there can be
        self._limit, self._stopped_at = 0.0, math.inf
        self._round_trip = _FIRST_ROUND_TRIP
        self.reset()

    def reset(self) -> None:
        """Forget the clock and unfinished business; the limit and the base stay."""
        self._at = self._seen_at = self._ended_at = self._next_slow_down = self._next_step = -math.inf
        self._slow_since = self._drained_at = math.inf
        self._paces: tuple[float, ...] = ()  # of the calls that ended in this round trip, or count in this slow-down
        self._failed, self._slice, self._excess = 0, 0.0, 0.0

    def replica(self) -> Self:
        """An independent copy in the same state."""
        return copy(self)

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        """A call that has ended says how fast the backend is, or that it is not there."""
        self._seen_at = now
        if not isinstance(event, Ended):
            return
        self._ended_at = now
        if event.outcome == "completed":
            # Whoever was there before the slow-down has been slowed by what ran then.
            if self._slow_since == math.inf or now - event.latency >= self._drained_at:
                self._paces = (*self._paces, _pace(event))
            # Of one outlier only so much, or the law would stand still for as long as it lasted.
            latency = min(event.latency, _LOST_AFTER * self._round_trip)
            self._round_trip += _SMOOTHING * (latency - self._round_trip)
        elif event.outcome != "cancelled":
            self._failed += 1

    def advance(self, now: float, signals: Signals) -> None:
        """At the end of a round trip the law; in a slow-down, see whether it has told enough."""
        if signals.interactive_running + signals.interactive_queued:
            self._seen_at = now
        nobody = now - self._seen_at >= _NOBODY_AFTER
        used = signals.batch_running >= int(self._limit) - 1  # an end is told before its place is filled again
        if self._slow_since < math.inf:
            self._slow_down(now, signals, nobody)
        elif now >= self._next_step:
            if nobody:
                self._limit *= 2 if used else 1
            elif now >= self._next_slow_down:
                self._slow_since, self._drained_at = now, math.inf
            else:
                self._step(now, signals, used)
            self._begin_round_trip(now)
        self._limit = max(float(signals.batch_min), min(float(signals.batch_max), self._limit))
        self._at, self._slice = now, signals.slice_length

    def decide(self, now: float, signals: Signals) -> Decision:
        """The limit of this round trip, valid to the end of this slice of the window."""
        pressure = max(0.0, self._excess)
        if now < signals.throttled_until:
            return Decision(signals.batch_min, max(1.0, pressure), "throttled", signals.throttled_until)
        until = self._at + self._slice if self._at > -math.inf else math.inf
        if self._slow_since < math.inf:
            return Decision(signals.batch_min, pressure, "slow_down", until)
        limit = max(signals.batch_min, min(signals.batch_max, int(self._limit)))
        return Decision(limit, pressure, "latency" if pressure > 1 else "calm", until)

    def _step(self, now: float, signals: Signals, used: bool) -> None:
        """The law at the end of a round trip."""
        # Two, because one may be an outlier on its own.
        several = signals.interactive_running + signals.interactive_queued > 1
        unanswered = several and now - self._ended_at > _LOST_AFTER * self._round_trip
        if now < signals.throttled_until or self._failed > len(self._paces) or unanswered:
            self._limit /= 2
            self._stopped_at = self._limit
        elif self._paces and self._base == self._base:
            gain = 1 / min(16, math.ceil(2 * self.rise))
            self._excess = (median(self._paces) / self._base - 1) / self.rise  # delay / allowed
            if self._excess > 1:
                self._limit += max(gain - self._limit * (self._excess - 1), -self._limit / 2)
            elif used and self._excess <= _SLOW_START_UP_TO and self._limit < self._stopped_at:
                self._limit = min(2 * self._limit, self._stopped_at)
            elif used:
                self._limit += gain
            if self._excess > _SLOW_START_UP_TO:
                self._stopped_at = self._limit

    def _slow_down(self, now: float, signals: Signals, nobody: bool) -> None:
        """Wait for what ran to end, then for enough calls to tell the pace; then begin again from the bottom."""
        if self._drained_at == math.inf and signals.batch_running <= signals.batch_min:
            self._drained_at = now
        lasted = now - self._slow_since
        if len(self._paces) < self.samples and lasted < _LONGEST * self._round_trip and not nobody:
            return
        if self._paces:
            self._base = max(median(self._paces), 1e-9)  # a call may take no time at all, where time is virtual
            self._excess = 0.0
        if self._stopped_at < math.inf:
            self._stopped_at = self._limit
        self._limit, self._slow_since = float(signals.batch_min), math.inf
        self._next_slow_down = now + _APART * lasted
        self._begin_round_trip(now)

    def _begin_round_trip(self, now: float) -> None:
        self._next_step = now + self._round_trip
        self._paces, self._failed = (), 0

    def __repr__(self) -> str:
        return f"Scavenger(rise={self.rise:g}, samples={self.samples})"


def _pace(event: Ended) -> float:
    return event.latency / max(1, event.tokens) if event.pace is None else event.pace
