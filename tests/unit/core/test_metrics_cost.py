"""What the window costs in lines of Python and in numbers kept, whatever the traffic.

Keeps the last sentence of promise 31.
"""

from __future__ import annotations

import random

import pytest

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics
from tests.unit.core.tracing import lines_run


def stored(metrics: SlidingWindowMetrics) -> int:
    """Numbers that the window keeps, one way or another."""
    window, pending = metrics._seen
    waiting = len(pending.latencies) + len(pending.lower_bounds)
    return waiting + len(window.histogram.counts()) + sum(4 + len(piece.buckets) for piece in window.slices)


@pytest.mark.parametrize("step", [0.0, 1e-12, 1e-5, 0.001])
def test_a_hundred_thousand_samples_take_no_more_room_than_the_slices_have(step: float) -> None:
    metrics = SlidingWindowMetrics(10.0)
    draw = random.Random(2)
    for number in range(100_000):
        metrics.arrived(number * step)
        metrics.completed(number * step, draw.lognormvariate(0, 0.5))

    assert stored(metrics) <= 20_000
    metrics.check()


def test_arrivals_that_never_end_take_no_more_room_where_the_caller_trims() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(20_000):
        metrics.arrived(number * 1e-4)
        metrics.trim(number * 1e-4)

    assert stored(metrics) <= 1_000
    assert metrics.read(2.0).rps == 2_000.0
    metrics.check()


@pytest.mark.parametrize("step", [0.0, 1e-4])
def test_failures_take_no_more_room_than_the_slices_have(step: float) -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(20_000):
        metrics.failed(number * step, 1.0, counts=number % 2 == 0)

    assert stored(metrics) <= 1_000
    metrics.check()


def filled(samples: int) -> tuple[SlidingWindowMetrics, float]:
    metrics = SlidingWindowMetrics(10.0)
    draw = random.Random(4)
    for number in range(samples):
        metrics.arrived(number * 9.9 / samples)
        metrics.completed(number * 9.9 / samples, draw.lognormvariate(0, 1))
    metrics.advance(9.9)
    return metrics, 9.9


def test_looking_costs_the_same_with_ten_samples_and_with_a_hundred_thousand() -> None:
    def work(samples: int) -> int:
        metrics, now = filled(samples)
        return lines_run(lambda: metrics.read(now))

    assert work(100_000) <= 1.5 * work(10)


def test_one_more_call_and_another_look_cost_the_same_with_ten_samples_and_with_a_hundred_thousand() -> None:
    def work(samples: int) -> int:
        metrics, now = filled(samples)
        metrics.read(now)

        def one_more() -> None:
            metrics.completed(now, 1.3)
            metrics.advance(now)
            metrics.read(now)

        return lines_run(one_more)

    assert work(100_000) <= 1.5 * work(10)


def test_a_call_costs_a_handful_of_lines_when_nobody_looks() -> None:
    metrics, now = filled(100_000)

    def thousand_calls() -> None:
        for _ in range(1_000):
            metrics.arrived(now)
            metrics.completed(now, 0.5)

    assert lines_run(thousand_calls) <= 1_000 * 14
