"""Words that the tests of the window share."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics

__all__ = ["make", "near"]


def make(*latencies: float, at: float = 0.0) -> SlidingWindowMetrics:
    """A window of 10 s with one arrival and one success per latency."""
    metrics = SlidingWindowMetrics(10.0)
    for latency in latencies:
        metrics.arrived(at)
        metrics.completed(at, latency)
    return metrics


def near(value: float) -> object:
    """Equal to anything within the one per cent that promise 31 allows."""
    return pytest.approx(value, rel=0.01)
