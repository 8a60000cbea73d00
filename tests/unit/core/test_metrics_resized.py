"""A window of another length keeps what it knows, so that changing it under load does not open the gate."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics, WindowReading
from tests.unit.core.windows import make, near


def test_the_same_length_changes_nothing() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(200):
        metrics.arrived(0.3 + number * 0.07)
        metrics.completed(0.3 + number * 0.07, 1.0 + number)
    metrics.advance(14.3)

    same = metrics.resized(10.0, 14.3)
    same.check()

    assert same.read(14.3) == metrics.read(14.3)
    assert same.next_change() == metrics.next_change()
    assert same.end_of_slice(14.3) == metrics.end_of_slice(14.3)


def test_a_shorter_window_keeps_what_still_fits() -> None:
    metrics = make(1.0, at=0.0)
    metrics.completed(6.0, 2.0)
    metrics.arrived(6.0)

    shorter = metrics.resized(5.0, 9.0)
    shorter.check()

    assert shorter.read(9.0).sample_count == 1
    assert shorter.read(9.0).p95 == near(2.0)
    assert shorter.read(9.0).rps == 0.2
    assert shorter.read(10.95).sample_count == 1
    assert shorter.read(11.0).sample_count == 0
    assert shorter.slice_length == 0.05


def test_what_a_shorter_window_cannot_hold_is_gone_at_once() -> None:
    metrics = make(1.0, at=0.0)
    metrics.completed(5.15, 2.0)

    shorter = metrics.resized(4.0, 9.09)
    shorter.check()

    assert shorter.next_change() > 9.09


def test_a_longer_window_keeps_everything_and_for_longer() -> None:
    longer = make(1.0, at=5.0).resized(30.0, 14.0)
    longer.check()

    assert longer.read(14.0).p95 == near(1.0)
    assert longer.read(34.6).sample_count == 1
    assert longer.read(35.0).sample_count == 0


def test_lengthening_the_window_under_steady_load_shows_the_same_rate_at_once_and_later() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(1_000):
        metrics.arrived(number * 0.1)

    longer = metrics.resized(30.0, 100.0)
    longer.check()

    assert longer.read(100.0).rps == pytest.approx(metrics.read(100.0).rps, rel=0.02)
    for number in range(1_000, 1_400):
        longer.arrived(number * 0.1)
        assert longer.read(number * 0.1).rps == pytest.approx(10.0, rel=0.03)


def test_a_longer_window_presumes_nothing_of_the_time_before_the_first_sample() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(20):
        metrics.arrived(number * 0.1)

    assert metrics.resized(40.0, 2.0).read(2.0).rps == 0.5


def test_what_is_kept_of_the_p95_survives_another_length() -> None:
    metrics = make(4.0)
    for second in range(1, 15):
        metrics.failed(float(second), 0.1, counts=False)

    assert metrics.resized(30.0, 14.0).read(14.0).p95 == near(4.0)
    assert metrics.resized(5.0, 14.0).read(14.0).p95 == near(4.0)


def test_a_window_cut_behind_the_last_success_keeps_its_p95() -> None:
    metrics = make(4.0)
    metrics.failed(7.0, 0.1, counts=False)

    shorter = metrics.resized(5.0, 8.0)
    shorter.check()

    assert shorter.read(8.0).p95 == near(4.0)


def test_a_new_window_of_another_length_is_new() -> None:
    other = make().resized(3.0, 50.0)
    other.check()

    assert other.read(50.0) == WindowReading()
    assert other.slice_length == 0.03

    other.arrived(51.01)
    assert other.read(51.01).rps == pytest.approx(1 / 3)
    assert other.next_change() == pytest.approx(54.01)
