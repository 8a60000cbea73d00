"""What an unsuccessful end says about latency, and what the P95 for policies keeps when no success is left.

Keeps promise 30 as far as the window decides it.
"""

from __future__ import annotations

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics, TrafficSnapshot, WindowReading
from tests.unit.core.windows import make, near


def test_a_failure_that_does_not_count_is_no_sample() -> None:
    metrics = make(*[1.0] * 5)

    metrics.failed(0.0, 50.0, counts=False)

    assert metrics.read(0.0) == make(*[1.0] * 5).read(0.0)


def test_a_failure_that_counts_is_a_sample() -> None:
    metrics = make(1.0)

    metrics.failed(0.0, 50.0, counts=True)

    assert metrics.read(0.0).p95 == near(50.0)
    assert metrics.read(0.0).sample_count == 2


def test_with_failures_and_no_success_left_the_p95_for_policies_keeps_its_last_value() -> None:
    metrics = make(*[4.0] * 20, at=0.0)
    for second in range(1, 30):
        metrics.failed(float(second), 0.001, counts=False)

    reading = metrics.read(29.0)

    assert reading.p95 == reading.p95_finished == near(4.0)
    assert reading.snapshot() == TrafficSnapshot(rps=0.0, p50=0.0, p95=0.0, p99=0.0, sample_count=0)


def test_the_value_kept_is_the_one_just_before_the_last_success_left() -> None:
    metrics = SlidingWindowMetrics(10.0)
    metrics.completed(0.0, 9.0)
    metrics.completed(1.0, 4.0)
    metrics.failed(2.0, 0.1, counts=False)

    assert metrics.read(10.5).p95 == near(4.0)
    assert metrics.read(11.5).p95 == near(4.0)


def test_the_value_kept_of_many_is_their_p95() -> None:
    metrics = make(*[(number / 100) ** 3 for number in range(1, 101)])
    metrics.failed(5.0, 0.01, counts=False)

    assert metrics.read(11.0).p95 == near(0.95**3)


def test_a_failure_that_lasted_longer_than_the_value_kept_raises_it() -> None:
    metrics = make(4.0)
    metrics.failed(5.0, 7.0, counts=True)

    reading = metrics.read(11.0)

    assert reading.p95 == reading.p95_finished == near(7.0)


def test_a_failure_that_lasted_less_does_not_lower_it() -> None:
    metrics = make(4.0)
    metrics.failed(5.0, 0.5, counts=True)

    assert metrics.read(11.0).p95 == metrics.read(11.0).p95_finished == near(4.0)
    assert metrics.read(11.0).snapshot().p95 == near(0.5)


def test_an_unfinished_call_raises_the_p95_above_what_is_kept_and_not_that_of_the_finished() -> None:
    metrics = make(4.0)
    metrics.failed(5.0, 0.1, counts=False)

    assert metrics.read(11.0, [6.0]).p95 == 6.0
    assert metrics.read(11.0, [2.0]).p95 == near(4.0)
    assert metrics.read(11.0, [6.0]).p95_finished == near(4.0)
    assert metrics.read(11.0, [6.0]).snapshot().p95 == 6.0


def test_a_success_ends_the_keeping() -> None:
    metrics = make(4.0)
    metrics.failed(5.0, 0.1, counts=False)
    metrics.advance(11.0)

    metrics.completed(11.5, 1.0)

    assert metrics.read(11.5).p95 == near(1.0)
    metrics.advance(11.5)
    metrics.check()


def test_the_keeping_ends_when_no_failure_is_left_and_does_not_come_back() -> None:
    metrics = make(4.0)
    metrics.failed(5.0, 0.1, counts=False)

    assert metrics.read(14.9).p95 == near(4.0)
    assert metrics.read(15.0).p95 == 0.0

    metrics.advance(15.0)
    metrics.failed(15.0, 0.1, counts=False)
    assert metrics.read(15.0).p95 == 0.0


def test_nothing_is_kept_when_the_failures_leave_with_the_last_success() -> None:
    metrics = make(4.0)
    metrics.failed(0.0, 0.1, counts=False)

    assert metrics.read(10.0) == WindowReading()


def test_failures_alone_have_nothing_to_keep() -> None:
    metrics = make()
    metrics.failed(0.0, 0.1, counts=False)

    assert metrics.read(0.0) == WindowReading()


def test_failures_far_apart_do_not_keep_what_left_in_a_gap_between_them() -> None:
    metrics = make(4.0)
    metrics.failed(0.05, 0.1, counts=False)
    metrics.failed(60.0, 0.1, counts=False)

    assert metrics.read(60.0).p95 == 0.0
