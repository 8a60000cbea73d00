"""What the governor sees of admission, and what it tells a policy of that and of the window.

Floor: second. Pure.
"""

from __future__ import annotations

from typing import Protocol

from ..core.admission import Limits
from ..core.metrics import WindowReading
from .base import Signals

__all__ = ["Watched", "signals_of"]


class Watched(Protocol):
    """What the governor sees of admission."""

    limits: Limits

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Interactive running and queued, batch running and queued."""
        ...

    def oldest_wait(self, interactive: bool, now: float) -> float: ...

    def oldest_unfinished(self, now: float) -> float: ...

    def unfinished(self, now: float, older_than: float) -> tuple[list[float], float]: ...


def signals_of(
    watched: Watched,
    now: float,
    reading: WindowReading,
    *,
    stream_times: tuple[float | None, float | None],
    throttled_until: float,
    slice_length: float,
    batch_lowest: int | None,
    ages: bool,
) -> Signals:
    """What a policy may look at; without `ages` those that cost a step for each running call are left at 0.

    `stream_times`: the P95 of the time to first token, in seconds, and of the pace, in seconds per token; None where
    there is none. `batch_lowest`: of the slice so far, None if nobody has looked yet.
    """
    limits = watched.limits
    interactive_running, interactive_queued, batch_running, batch_queued = watched.counts
    ttft_p95, pace = stream_times
    return Signals(
        max_concurrency=limits.max_concurrency,
        batch_max=limits.batch_max,
        batch_min=limits.batch_min,
        interactive_running=interactive_running,
        interactive_queued=interactive_queued,
        batch_running=batch_running,
        batch_queued=batch_queued,
        rps=reading.rps,
        sample_count=reading.sample_count,
        p50=reading.p50,
        p95=reading.p95,
        p99=reading.p99,
        p95_finished=reading.p95_finished,
        oldest_unfinished=watched.oldest_unfinished(now) if ages else 0.0,
        ttft_p95=ttft_p95,
        pace=pace,
        throttled_until=throttled_until,
        oldest_batch_wait=watched.oldest_wait(False, now) if ages else 0.0,
        slice_length=slice_length,
        batch_lowest=batch_running if batch_lowest is None else min(batch_lowest, batch_running),
    )
