"""Additive increase, multiplicative decrease, on the target.

Floor: fourth. Pure.
Law: while interactive P95 is within its target, the limit rises by `increase` calls per second, if batch work uses what
it has; when P95 is above it, or the backend asks us to wait, the limit is multiplied by `decrease`, at most once per
window, for that long the calls from before are part of the P95. It begins at batch_min.
Source: Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance in computer networks",
1989: of the linear laws the one that is fair and converges. Defaults: one half down is TCP's; one call up per second is
a choice (TCP's is one per round trip), and so is the window for a round trip.
"""

import math
from copy import copy
from typing import Final, Self

from llm_traffic_scheduler import Decision, Signals

from ..checks import above_zero, share

__all__ = ["AIMD"]

_SLICES: Final = 100  # of a window


class AIMD:
    """The limit saws around what the P95 target allows.

    Args:
        p95_target: interactive P95, end to end in seconds; calls that are older than it count before they end.
        increase: calls per second.
        decrease: what the limit is multiplied by, between 0 and 1.

    Raises: `ConfigError` for a number that cannot be.
    """

    __slots__ = ("_at", "_blind_until", "_growing", "_limit", "_p95", "_slice", "decrease", "increase", "p95_threshold")

    reads: frozenset[str] = frozenset({"batch_max", "batch_min", "throttled_until"})

    def __init__(self, p95_target: float, increase: float = 1.0, decrease: float = 0.5) -> None:
        above_zero(p95_target=p95_target, increase=increase)
        share(decrease=decrease)
        self.p95_threshold, self.increase, self.decrease = p95_target, increase, decrease
        self._limit = self._p95 = 0.0
        self.reset()

    @property
    def p95_target(self) -> float:
        """Seconds. The scheduler knows it as `p95_threshold`, from which on unfinished calls count."""
        return self.p95_threshold

    def reset(self) -> None:
        """Forget the clock; the limit stays."""
        self._at = self._blind_until = -math.inf
        self._slice, self._growing = 0.0, False

    def replica(self) -> Self:
        """An independent copy in the same state."""
        return copy(self)

    def advance(self, now: float, signals: Signals) -> None:
        """Let the limit grow up to `now`; cut it if the target is missed; see whether it grows on."""
        limit = max(float(signals.batch_min), min(float(signals.batch_max), self._grown(now)))
        missed = signals.p95 > self.p95_threshold or now < signals.throttled_until
        if missed and now >= self._blind_until:
            limit = max(float(signals.batch_min), limit * self.decrease)
            self._blind_until = now + _SLICES * signals.slice_length
        # One less than the limit is full: an event that frees a place is told before the place is filled again.
        self._growing = not missed and signals.batch_running >= int(limit) - 1
        self._limit, self._p95, self._at, self._slice = limit, signals.p95, now, signals.slice_length

    def decide(self, now: float, signals: Signals) -> Decision:
        """The limit as it has grown by now, valid until its next whole number, or the end of this slice."""
        pressure = self._p95 / self.p95_threshold
        if now < signals.throttled_until:
            return Decision(signals.batch_min, max(1.0, pressure), "throttled", signals.throttled_until)
        grown = self._grown(now)
        limit = max(signals.batch_min, min(signals.batch_max, int(grown)))
        until = self._at + self._slice if self._at > -math.inf else math.inf
        if self._growing:
            until = min(until, now + (int(grown) + 1 - grown) / self.increase)
        return Decision(limit, pressure, "latency" if pressure > 1 else "calm", until)

    def _grown(self, now: float) -> float:
        return self._limit + self.increase * max(0.0, now - self._at) if self._growing else self._limit

    def __repr__(self) -> str:
        return f"AIMD(p95_target={self.p95_target:g}, increase={self.increase:g}, decrease={self.decrease:g})"
