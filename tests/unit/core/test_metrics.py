"""What is known of interactive traffic: arrivals, latencies, and what leaves when.

Keeps promises 28, 29 and 31 as far as the window decides them.
"""

from __future__ import annotations

import math
import random

import pytest

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics, TrafficSnapshot, WindowReading
from tests.unit.core.tracing import lines_run
from tests.unit.core.windows import make, near


def test_without_samples_everything_is_zero_and_nothing_will_change() -> None:
    metrics = make()

    assert metrics.read(5.0) == WindowReading(0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert metrics.read(5.0).snapshot() == TrafficSnapshot()
    assert metrics.next_change() == math.inf


def test_a_window_that_has_emptied_reads_like_a_new_one() -> None:
    metrics = make(1.0, 2.0)

    metrics.advance(10.0)

    assert metrics.read(10.0) == WindowReading()
    assert metrics.next_change() == math.inf
    metrics.check()


def test_the_rate_is_arrivals_over_the_whole_window() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for arrival in range(30):
        metrics.arrived(arrival * 0.01)

    assert metrics.read(0.3).rps == 3.0
    assert metrics.read(0.3).sample_count == 0


def test_the_percentiles_are_those_of_the_latencies() -> None:
    # Cubes: neighbours are further apart than a bucket is wide.
    reading = make(*[(number / 100) ** 3 for number in range(1, 101)]).read(0.0)

    assert (reading.p50, reading.p95, reading.p99) == (near(0.50**3), near(0.95**3), near(0.99**3))
    assert reading.p95_finished == reading.p95_sampled == reading.p95
    assert reading.sample_count == 100


def test_a_latency_of_zero_is_a_sample_like_any_other() -> None:
    reading = make(0.0, 0.0, 0.0).read(0.0)

    assert (reading.p50, reading.p95, reading.sample_count) == (0.0, 0.0, 3)


def test_unfinished_calls_join_the_percentiles_at_their_age_but_not_those_of_the_finished() -> None:
    metrics = make(*[1.0] * 9)

    reading = metrics.read(0.0, [8.0])

    assert (reading.p50, reading.p95, reading.p99) == (near(1.0), 8.0, 8.0)
    assert reading.p95_finished == near(1.0)
    assert reading.sample_count == 10
    assert metrics.read(0.0).p95 == near(1.0)


def test_with_unfinished_calls_each_percentile_is_the_one_it_is_called() -> None:
    latencies = [(number / 100) ** 3 for number in range(1, 101)]
    ages = latencies[80:]

    reading = make(*latencies[:80]).read(0.0, ages[::-1])

    assert (reading.p50, reading.p95, reading.p99) == (near(0.50**3), 0.95**3, 0.99**3)
    assert reading.p95_finished == near(0.76**3)


def test_one_old_call_among_many_that_complete_does_not_rule_the_p95() -> None:
    assert make(*[1.0] * 99).read(0.0, [500.0]).p95 == near(1.0)


def test_more_samples_than_are_folded_at_a_time_are_all_counted() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(1_000):
        metrics.arrived(number * 0.001)
        metrics.completed(number * 0.001, 1.0 + number)
        metrics.failed(number * 0.001, 2_000.0, counts=number % 2 == 0)

    reading = metrics.read(1.0)

    assert reading.rps == 100.0
    assert reading.sample_count == 1_500
    assert reading.p50 == near(750.0)
    metrics.check()


def test_a_sample_stays_for_all_of_the_window_but_a_slice() -> None:
    metrics = make(1.0, at=0.0)
    metrics.completed(0.0999, 2.0)

    assert metrics.read(9.99).sample_count == 2
    assert metrics.read(10.0).sample_count == 0


@pytest.mark.parametrize("start", [0.0, 0.1, 1_000.3, 1e9 + 0.7])
def test_at_the_time_of_the_next_change_something_leaves_and_not_a_moment_before(start: float) -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(40):
        metrics.arrived(start + number * 0.07)

    changes = 0
    while (due := metrics.next_change()) < math.inf:
        before = metrics.read(math.nextafter(due, 0) - 1e-6).rps
        metrics.advance(due)
        changes += 1

        assert metrics.read(due).rps < before
        metrics.check()
    assert changes == len({int(number * 0.7 + 1e-6) for number in range(40)})


@pytest.mark.parametrize("start", [0.0, 0.1, 1_000.3, 1e9 + 0.7])
def test_a_timer_set_for_the_end_of_a_slice_finds_the_next_one_begun(start: float) -> None:
    metrics = SlidingWindowMetrics(10.0)
    metrics.arrived(start)
    now = start
    for number in range(1, 200):
        end = metrics.end_of_slice(now)

        assert now < end <= now + metrics.slice_length + 1e-6
        assert end == pytest.approx(start + number * 0.1)
        now = end


def test_the_end_of_a_slice_is_the_same_before_and_after_the_first_sample_is_folded() -> None:
    metrics = make()
    metrics.arrived(3.0)

    before = metrics.end_of_slice(3.25)
    metrics.advance(3.25)

    assert metrics.end_of_slice(3.25) == before == pytest.approx(3.3)


def test_advancing_twice_is_advancing_once() -> None:
    metrics = make(1.0, 2.0)
    metrics.advance(4.0)
    before = metrics.read(4.0)

    metrics.advance(4.0)

    assert metrics.read(4.0) is before


def test_a_gap_of_years_costs_no_more_than_one_of_a_window() -> None:
    def work(gap: float) -> int:
        metrics = SlidingWindowMetrics(10.0)
        for number in range(100):
            metrics.arrived(number * 0.1)
            metrics.completed(number * 0.1, 1.0)
        metrics.advance(9.95)
        return lines_run(lambda: metrics.advance(9.95 + gap))

    assert work(1e9) == work(11.0)


def test_a_clock_that_goes_back_is_taken_to_stand_still() -> None:
    metrics = make(1.0, at=100.0)
    metrics.advance(105.0)

    metrics.arrived(7.0)
    metrics.completed(7.0, 3.0)
    metrics.failed(6.0, 4.0, counts=True)
    metrics.advance(7.0)
    metrics.check()

    assert metrics.read(7.0).sample_count == 3
    assert metrics.read(7.0) == metrics.read(105.0)
    assert metrics.end_of_slice(7.0) == metrics.end_of_slice(105.0)
    assert metrics.read(110.05).sample_count == 2
    assert metrics.read(115.05) == WindowReading()


def test_a_time_before_the_one_before_it_counts_as_that_one_also_within_a_fold() -> None:
    metrics = make(1.0, at=0.0)
    metrics.completed(8.0, 2.0)
    metrics.completed(8.5, 3.0)
    metrics.completed(1.0, 4.0)

    assert metrics.read(12.0).sample_count == 3
    assert metrics.read(18.2).sample_count == 2


def test_times_out_of_order_within_one_fold_harm_nothing() -> None:
    metrics = SlidingWindowMetrics(10.0)
    draw = random.Random(3)
    for _ in range(2_000):
        metrics.arrived(draw.uniform(0, 30))
        metrics.completed(draw.uniform(0, 30), 1.0)
        metrics.check()

    assert metrics.read(30.0).sample_count > 0
    assert metrics.read(41.0) == WindowReading()


def test_a_first_arrival_before_the_first_completion_counts_in_the_slice_of_that() -> None:
    metrics = SlidingWindowMetrics(10.0)
    metrics.completed(5.0, 1.0)
    metrics.arrived(2.0)
    metrics.check()

    assert metrics.next_change() == pytest.approx(15.0)
    assert metrics.read(14.9).rps == 0.1
    assert metrics.read(14.9).p95 == pytest.approx(1.0, rel=0.01)


def test_it_tells_its_state_in_one_line() -> None:
    metrics = make(1.0, 2.0)
    metrics.failed(0.0, 1.0, counts=False)
    metrics.advance(0.0)
    metrics.arrived(0.0)

    assert repr(metrics) == "<SlidingWindowMetrics: 2 arrivals, 2 successes, 1 failures in 10 s; 1 not folded yet>"
