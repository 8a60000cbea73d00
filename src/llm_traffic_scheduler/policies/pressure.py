"""The pressure law: batch gives way in proportion to interactive arrivals or latency.

Floor: second. Pure.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Final

from ..core.checks import seconds
from ..errors import ConfigError
from .base import Decision, Signals

__all__ = ["PressurePolicy", "limit_at"]

_READS: Final = frozenset({"batch_max", "batch_min", "rps", "p95", "throttled_until"})
_READS_SMOOTHED: Final = _READS | {"p95_finished", "oldest_unfinished"}


def limit_at(pressure: float, signals: Signals) -> int:
    """The batch limit at `pressure`: from `batch_max` at 0 down to `batch_min` at 1, in a straight line.

    Rounds half to even, as Python's round() does. NaN counts as full pressure.
    """
    span = signals.batch_max - signals.batch_min
    share = min(1.0, max(0.0, pressure)) if pressure == pressure else 1.0
    return max(signals.batch_min, round(signals.batch_max - span * share))


class PressurePolicy:
    """The literal law: `limit = batch_max - (batch_max - batch_min) * pressure`.

    `pressure = max(rps / rps_threshold, p95 / p95_threshold)`, and at least 1 while the backend has
    asked us to wait. `p95` is taken over the calls of the window that have finished and those
    unfinished ones that are older than `p95_threshold`, at their present age.

    With `smoothing` (seconds), max(rps / rps_threshold, p95_finished / p95_threshold) is replaced by its
    exponential average with that time constant; `y += (1 - exp(-dt / smoothing)) * (x - y)`
    with x held between two slices of the window, so the result is the same however often it is read.
    An unfinished call that has joined the quantile, and throttling, act unsmoothed.

    Args:
        rps_threshold: interactive arrivals per second that count as pressure 1.
        p95_threshold: interactive P95, end to end in seconds, that counts as pressure 1.
        smoothing: time constant in seconds, None for none.

    Raises:
        ConfigError: no threshold at all, or a value that is not a finite number above 0.
    """

    __slots__ = ("_average", "_at", "_held", "p95_threshold", "rps_threshold", "smoothing")

    def __init__(
        self,
        rps_threshold: float | None = None,
        p95_threshold: float | None = None,
        smoothing: float | None = None,
    ) -> None:
        if rps_threshold is None and p95_threshold is None:
            raise ConfigError("PressurePolicy needs rps_threshold or p95_threshold, got neither")
        self.rps_threshold = None if rps_threshold is None else seconds("rps_threshold", rps_threshold)
        self.p95_threshold = None if p95_threshold is None else seconds("p95_threshold", p95_threshold)
        self.smoothing = None if smoothing is None else seconds("smoothing", smoothing)
        self.reset()

    @property
    def reads(self) -> frozenset[str]:
        """The signals that `decide` looks at."""
        return _READS if self.smoothing is None else _READS_SMOOTHED

    def reset(self) -> None:
        """Forget the average."""
        self._average = self._held = 0.0
        self._at = -math.inf

    def replica(self) -> PressurePolicy:
        """An independent copy in the same state; the policy itself if there is no state."""
        return self if self.smoothing is None else copy(self)

    def advance(self, now: float, signals: Signals) -> None:
        """Carry the average to `now` with what held until now; hold `signals` from here on."""
        if self.smoothing is not None:
            self._average = self._smoothed(now)
            self._held = max(self._arrivals(signals), self._latency(signals.p95_finished))
            self._at = max(self._at, now)

    def decide(self, now: float, signals: Signals) -> Decision:
        """The law on `signals`; with smoothing, valid until the limit's next step."""
        arrivals, latency = self._arrivals(signals), self._latency(signals.p95)
        reason = "calm" if not max(arrivals, latency) > 0 else "latency" if latency >= arrivals else "arrivals"
        pressure, valid_until = max(arrivals, latency), math.inf
        if self.smoothing is not None:
            pressure, valid_until = self._smoothed(now), self._next_step(now, signals)
            if self.p95_threshold is not None and signals.oldest_unfinished > self.p95_threshold:
                pressure = max(pressure, latency)
        if now < signals.throttled_until:
            reason = "throttled" if pressure < 1 else reason
            pressure, valid_until = max(1.0, pressure), min(valid_until, signals.throttled_until)
        return Decision(limit_at(pressure, signals), pressure, reason, valid_until)

    def _arrivals(self, signals: Signals) -> float:
        return 0.0 if self.rps_threshold is None else signals.rps / self.rps_threshold

    def _latency(self, p95: float) -> float:
        return 0.0 if self.p95_threshold is None else p95 / self.p95_threshold

    def _smoothed(self, now: float) -> float:
        # The first observation has no past: its dt is infinite and nothing was held.
        if self.smoothing is None or not now > self._at:
            return self._average
        return self._held + (self._average - self._held) * math.exp((self._at - now) / self.smoothing)

    def _next_step(self, now: float, signals: Signals) -> float:
        """When the average, left alone, crosses the next pressure at which the limit changes.

        y(t) = held + (y - held) * exp(-(t - now) / smoothing), solved for the half-way points
        between two limits.
        """
        assert self.smoothing is not None
        span = signals.batch_max - signals.batch_min
        value, target = self._smoothed(now), self._held
        if span == 0 or value == target:
            return math.inf
        place = min(float(span), max(0.0, value * span))
        step = math.ceil(place - 0.5) - 0.5 if target < value else math.floor(place + 0.5) + 0.5
        edge = step / span
        if not (target < edge < value or value < edge < target):
            return math.inf
        return now + self.smoothing * math.log((value - target) / (edge - target))

    def __repr__(self) -> str:
        return (
            f"PressurePolicy(rps_threshold={self.rps_threshold}, p95_threshold={self.p95_threshold}, "
            f"smoothing={self.smoothing})"
        )
