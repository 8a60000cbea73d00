"""What one rate of calls did to a backend: the points of a load curve.

Floor: ground. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["CalibrationPoint", "Stopped"]

# The backend asked us to wait, or too many calls were unfinished at a time.
Stopped: TypeAlias = Literal["throttled", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPoint:
    """What was measured at one rate. Times are seconds; nothing here is estimated.

    A latency runs from the instant at which the call was due, not from when it was sent: a generator that is late
    hides no waiting. Percentiles are by nearest rank over all calls, where a failed one is slower than every answer:
    None where the rank falls on a failed one.

    Attributes:
        rate: calls per second asked for.
        seconds: for how long calls were sent; less than asked where the rate was stopped.
        calls: calls sent.
        failures: those of them that raised, or were cancelled at `call_timeout`.
        throttled: those of the failures by which the backend asked us to wait.
        retry_after: the longest wait it asked for, None if it named none.
        latencies: of the answered calls, ascending.
        mean_unfinished: calls sent and not ended, averaged over `seconds`.
        max_unfinished: the most of them at one instant.
        stopped: why the rate was given up before all its calls were sent, None if it was not.
        last_error: the last failure in one line, None without failures.
    """

    rate: float
    seconds: float
    calls: int
    failures: int = 0
    throttled: int = 0
    retry_after: float | None = None
    latencies: tuple[float, ...] = field(default=(), repr=False)
    mean_unfinished: float = 0.0
    max_unfinished: int = 0
    stopped: Stopped | None = None
    last_error: str | None = None

    @property
    def rate_achieved(self) -> float:
        """Calls sent per second."""
        return self.calls / self.seconds

    @property
    def mean(self) -> float | None:
        """The mean latency of the answered calls; for Little's law, not for judging what people wait."""
        return math.fsum(self.latencies) / len(self.latencies) if self.latencies else None

    @property
    def p50(self) -> float | None:
        """Within so many seconds 50 % of the calls were answered."""
        return self._percentile(50)

    @property
    def p95(self) -> float | None:
        """Within so many seconds 95 % of the calls were answered."""
        return self._percentile(95)

    @property
    def p99(self) -> float | None:
        """Within so many seconds 99 % of the calls were answered."""
        return self._percentile(99)

    def late(self, limit: float) -> int:
        """Calls that were not answered within `limit` seconds, failures among them."""
        return self.failures + len(self.latencies) - bisect_right(self.latencies, limit)

    @property
    def fell_behind(self) -> bool:
        """The calls could not be sent as fast as asked: the point says more about this process than the backend.

        Half a call is what a rate loses where `rate * seconds` is no whole number.
        """
        return self.stopped is None and self.seconds * self.rate > 1.1 * (self.calls + 0.5)

    def _percentile(self, percent: int) -> float | None:
        rank = -(-self.calls * percent // 100)
        return self.latencies[rank - 1] if 0 < rank <= len(self.latencies) else None
