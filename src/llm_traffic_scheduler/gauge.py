"""A number from outside that any thread may report, with the time of the report.

Floor: third, for the clock. What a reading does to the batch limit is `policies/external.py`'s to say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from .loop_clock import clock_of
from .policies.external import GaugeReading

__all__ = ["Gauge"]


class Gauge:
    """The latest report of how busy something outside is; made for `ExternalPolicy(gauge)`.

        gauge = Gauge()
        scheduler = TrafficScheduler(max_concurrency=8, policy=ExternalPolicy(gauge))
        gauge.report(waiting_on_the_gpu / 20)  # from any thread, as often as it is known

    Several policies may read one gauge. No report is refused here: what is no pressure counts as none where it is
    read, and shows there.

    Args:
        clock: seconds, as the scheduler's event loop counts them. Left out, the loop that runs where `report` is
            called says; in a thread without one, `time.monotonic`, which is that of asyncio's loops and uvloop. Only
            a loop with a time of its own that is reported to from other threads needs `clock=loop.time`.

    Threads: any, at any time.
    """

    __slots__ = ("_clock", "_latest")

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._latest: GaugeReading | None = None

    def report(self, pressure: float) -> None:
        """It shows `pressure` now: 0 = batch may have everything, 1 = batch must give way; above 1 is allowed."""
        # One assignment, so that no thread ever sees the pressure of one report with the time of another.
        self._latest = GaugeReading(pressure, (self._clock or _own_clock())())

    def __call__(self) -> GaugeReading | None:
        """The latest report; None before the first."""
        return self._latest

    def __repr__(self) -> str:
        latest = self._latest
        return f"<Gauge {'without a report' if latest is None else f'at {latest.pressure!r}'}>"


def _own_clock() -> Callable[[], float]:
    try:
        return clock_of(asyncio.get_running_loop())
    except RuntimeError:
        return time.monotonic
