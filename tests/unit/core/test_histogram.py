"""Percentiles of counted latencies: nearest-rank, within one per cent, and what they cost.

Keeps promise 31 as far as quantiles go.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from llm_traffic_scheduler.core.histogram import EMPTY, Histogram, bucket_of, count, value_of
from tests.unit.core.tracing import lines_run


def of(*latencies: float) -> Histogram:
    return EMPTY.plus(count(latencies))


def test_without_samples_every_percentile_is_zero() -> None:
    assert [EMPTY.percentile(percent) for percent in (50, 95, 99)] == [0.0, 0.0, 0.0]


def test_the_value_of_a_bucket_is_within_one_per_cent_of_both_its_ends() -> None:
    for bucket in range(bucket_of(1e-9), bucket_of(1e9) + 1):
        octave, step = divmod(bucket, 128)
        low = Fraction(128 + step, 128) * Fraction(2) ** (octave - 127)
        high = low + Fraction(2) ** (octave - 127) / 128
        value = Fraction(value_of(bucket))

        assert bucket_of(float(low)) == bucket
        assert bucket_of(float(high) * (1 - 2**-23)) == bucket
        assert abs(value - low) <= low / 100
        assert abs(value - high) <= high / 100


@pytest.mark.parametrize("exponent", range(-9, 10))
def test_latencies_from_a_nanosecond_to_decades_are_reported_within_one_per_cent(exponent: int) -> None:
    latency = 1.2345678 * 10.0**exponent

    assert of(latency).percentile(95) == pytest.approx(latency, rel=0.01)


def test_a_latency_of_zero_is_reported_as_zero() -> None:
    assert of(0.0, 0.0, 0.0, 5.0).percentile(50) == 0.0
    assert of(0.0).percentile(99) == 0.0


def test_no_latency_is_out_of_range() -> None:
    odd = (-1.0, -0.0, 5e-324, 1e-300, 1e308, math.inf)
    histogram = of(*odd)
    histogram.check()

    assert histogram.percentile(1) == 0.0
    assert histogram.percentile(99) == math.inf
    assert histogram.minus(count(odd)).total == 0


def test_one_latency_is_counted_like_many() -> None:
    latencies = [0.0, 1e-9, 0.49999, 0.5, 0.75, 1.0, 3.3, 1e9]

    assert count(latencies) == {bucket_of(latency): 1 for latency in latencies}
    assert [count([latency]) for latency in latencies] == [{bucket_of(latency): 1} for latency in latencies]


def test_negative_latencies_are_counted_as_zero() -> None:
    assert count([0.0, -1.0, -1e-50, -0.0, 1.0]) == {0: 4, bucket_of(1.0): 1}
    assert count([-1.0]) == {0: 1}


@pytest.mark.parametrize(
    "samples, percent, rank",
    [(1, 50, 1), (2, 50, 1), (3, 50, 2), (20, 95, 19), (21, 95, 20), (100, 99, 99), (101, 99, 100)],
)
def test_the_percentile_is_the_nearest_rank(samples: int, percent: int, rank: int) -> None:
    latencies = [2.0**each for each in range(samples)]

    assert of(*latencies).percentile(percent) == pytest.approx(latencies[rank - 1], rel=0.01)


def test_adding_leaves_the_histogram_that_others_see_as_it_was() -> None:
    before = of(1.0, 2.0, 3.0)
    seen = before.counts(), before.percentile(50)

    after = before.plus(count([1.0] * 10)).minus(count([3.0]))

    assert (before.counts(), before.percentile(50)) == seen
    assert after.total == 12
    after.check()


def test_what_was_added_and_taken_out_again_leaves_nothing() -> None:
    histogram = of(0.5, 1.0, 40.0).minus(count([1.0, 40.0])).minus(count([0.5]))
    histogram.check()

    assert histogram.counts() == {}
    assert histogram.percentile(95) == 0.0


def test_ages_join_as_exact_samples() -> None:
    finished = of(*[1.0] * 94)

    assert finished.percentiles_with([7.7, 6.6, 5.5, 4.4, 3.3, 2.2], 95, 99) == [2.2, 6.6]
    assert EMPTY.percentiles_with([7.7, 6.6], 50, 95) == [6.6, 7.7]


def test_ages_below_the_finished_ones_count_from_below() -> None:
    finished = of(10.0, 20.0)

    assert finished.percentiles_with([0.3, 0.2], 50) == [0.3]
    assert finished.percentiles_with([0.3, 0.2], 75, 100) == pytest.approx([10.0, 20.0], rel=0.01)


def test_an_age_that_grows_moves_no_percentile_down() -> None:
    latencies = [random.Random(5).lognormvariate(0, 1) for _ in range(40)]
    before = [0.0] * 3

    for step in range(400):
        now = of(*latencies).percentiles_with([step * 0.01] * 4, 50, 95, 99)

        assert all(new >= old for new, old in zip(now, before, strict=True))
        before = now


def test_after_one_more_sample_a_percentile_is_not_searched_again() -> None:
    before = of(*[random.Random(5).lognormvariate(0, 1) for _ in range(1_000)])
    searched = lines_run(lambda: before.percentile(95))

    after = before.plus(count([0.01]))

    assert lines_run(lambda: after.percentile(95)) <= searched / 3


@pytest.mark.parametrize("seed", range(5))
def test_a_percentile_kept_from_before_a_change_is_the_one_that_a_fresh_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    histogram, present = EMPTY, list[float]()
    for _ in range(300):
        if present and draw.random() < 0.45:
            latency = present.pop(draw.randrange(len(present)))
            histogram = histogram.minus(count([latency]))
        else:
            latency = draw.choice([0.0, 1.0, 1.005, 1.01, 1.5, 2.0, 2.01, draw.lognormvariate(0, 1)])
            present.append(latency)
            histogram = histogram.plus(count([latency]))
        fresh = of(*present) if present else EMPTY

        assert [histogram.percentile(each) for each in (50, 95, 99)] == [fresh.percentile(e) for e in (50, 95, 99)]
        histogram.check()
