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

    def describe(self, now: float, decision: Decision, signals: Signals) -> str:
        """Which of the two signals holds the limit, with its numbers."""
        if decision.reason == "throttled":
            return f"the backend has asked us to wait for another {signals.throttled_until - now:.3g} s"
        if decision.reason == "calm" and not decision.pressure > 0:
            return "no interactive traffic in the window"
        smoothed = (
            "" if self.smoothing is None else f"; smoothed over {self.smoothing:.3g} s that is {decision.pressure:.0%}"
        )
        if decision.reason == "calm":
            return f"no interactive traffic in the window{smoothed}"
        if decision.reason == "latency":
            share, what = self._latency(signals.p95), f"an interactive P95 of {signals.p95:.3g} s is"
            threshold = f"{self.p95_threshold:.3g} s"
        else:
            share, what = self._arrivals(signals), f"{signals.rps:.3g} interactive calls per second are"
            threshold = f"{self.rps_threshold:.3g}/s"
        return f"{what} {share:.0%} of the threshold ({threshold}){smoothed}"

    def outlook(self, now: float, decision: Decision, signals: Signals) -> tuple[str, ...]:
        """Below which rate and P95 the limit takes its next step and all of them, and where it is at its minimum."""
        top, floor = signals.batch_max, signals.batch_min
        if top == floor:
            return (f"batch_min_concurrency equals batch_max_concurrency ({top}): nothing moves the limit",)
        sentences = []
        if now < signals.throttled_until:
            wait = signals.throttled_until - now
            sentences.append(f"it cannot rise while the backend asks us to wait, for another {wait:.3g} s")
        if decision.limit < top:
            following = decision.limit + 1
            step, last = ((top - limit + 0.5) / (top - floor) for limit in (following, top))
            rates, latencies = (
                f" (now {value:.3g}{unit})" for value, unit in ((signals.rps, "/s"), (signals.p95, " s"))
            )
            sentence = f"it rises to {following} with {self._point(step, 'below', 'and', rates, latencies)}"
            if following < top:
                sentence += f", and to all {top} with {self._point(last, 'below', 'and')}"
            sentences.append(sentence + ("" if self.smoothing is None else "; smoothing makes it follow later"))
        full = self._point(1.0, "of", "or")
        sentences.append(f"it is down at its minimum of {floor} from {full} on, which is pressure 1")
        return tuple(sentences)

    def _point(self, pressure: float, relation: str, joint: str, rates: str = "", latencies: str = "") -> str:
        """The rate and the P95 that make this pressure, whichever have a threshold."""
        parts = []
        if self.rps_threshold is not None:
            parts.append(f"a rate {relation} {pressure * self.rps_threshold:.3g}/s{rates}")
        if self.p95_threshold is not None:
            parts.append(f"a P95 {relation} {pressure * self.p95_threshold:.3g} s{latencies}")
        return f" {joint} ".join(parts)

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
