"""Goodput at equal P95, on curves made by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler.simulation.comparison.curves import GRID, Curve, Point, compare, geometric_mean

LINE = Curve.of([Point(1.0, 100, 2.0), Point(2.0, 300, 6.0)])
points = st.builds(
    Point, st.floats(1, 5, allow_nan=False), st.floats(1, 1e4, allow_nan=False), st.floats(1, 9, allow_nan=False)
)


def shown(curve: Curve) -> list[tuple[float, float]]:
    """Without the P99, which is NaN here: from 3.13 on no dataclass with a NaN equals another."""
    return [(point.p95, point.goodput) for point in curve.front]


def test_the_grid_is_the_range_that_was_agreed() -> None:
    assert (GRID[0], GRID[-1], len(GRID)) == (1.15, 1.8, 14)


def test_a_point_that_another_beats_in_both_is_not_on_the_curve() -> None:
    beaten = Point(1.5, 90)
    curve = Curve.of([Point(2.0, 300), beaten, Point(1.0, 100)])

    assert shown(curve) == [(1.0, 100), (2.0, 300)]


def test_of_two_points_with_one_p95_the_better_counts() -> None:
    assert shown(Curve.of([Point(1.0, 50), Point(1.0, 80)])) == [(1.0, 80)]


def test_between_two_points_the_curve_is_a_straight_line() -> None:
    assert LINE.goodput_at(1.25) == pytest.approx(150)
    assert LINE.p99_at(1.25) == pytest.approx(3.0)
    assert (LINE.goodput_at(1.0), LINE.goodput_at(2.0)) == (100, 300)


def test_of_settings_that_were_tried_the_last_within_the_p95_counts() -> None:
    assert (LINE.reached_at(0.99), LINE.reached_at(1.0), LINE.reached_at(1.99)) == (None, 100, 100)
    assert (LINE.reached_at(2.0), LINE.reached_at(7.0)) == (300, 300)


def test_against_settings_alone_that_were_tried_no_straight_line_counts() -> None:
    ours = Curve.of([Point(1.5, 400)])

    assert compare(ours, LINE, [1.5]).ratio == pytest.approx(400 / 200)
    assert compare(ours, LINE, [1.5], tried=True).ratio == pytest.approx(400 / 100)


def test_below_its_lowest_p95_there_is_nothing_and_above_the_highest_no_more_goodput() -> None:
    assert LINE.goodput_at(0.99) is None
    assert LINE.goodput_at(7.0) == 300
    assert (LINE.p99_at(0.99), LINE.p99_at(2.01)) == (None, None)


def test_calls_that_never_end_are_on_no_curve() -> None:
    curve = Curve.of([Point(math.inf, 1e9), Point(math.nan, 1e9), Point(1.0, 100)])

    assert shown(curve) == [(1.0, 100)]


def test_no_points_are_a_curve_that_reaches_nothing() -> None:
    empty = Curve.of([])

    assert (empty.lowest, empty.goodput_at(2.0), empty.p99_at(2.0)) == (math.inf, None, None)
    assert math.isnan(compare(LINE, empty).ratio)
    assert math.isnan(compare(empty, LINE).ratio)


def test_twice_the_goodput_everywhere_is_a_ratio_of_two() -> None:
    double = Curve.of([Point(1.0, 200, 1.0), Point(2.0, 600, 3.0)])
    result = compare(double, LINE)

    assert result.p95s == GRID
    assert [result.ratio, result.p99_ratio] == pytest.approx([2.0, 0.5])


def test_ratios_are_averaged_geometrically_over_the_grid() -> None:
    ours = Curve.of([Point(1.0, 100), Point(1.4, 100.001), Point(1.6, 400), Point(2.0, 401)])
    theirs = Curve.of([Point(1.0, 100), Point(2.0, 100.001)])

    result = compare(ours, theirs, grid=(1.2, 1.8))

    assert result.goodput == pytest.approx((1.0, 4.0), rel=0.01)
    assert result.ratio == pytest.approx(2.0, rel=0.01)


def test_only_p95s_that_both_reach_are_compared() -> None:
    theirs = Curve.of([Point(1.52, 100), Point(2.0, 200)])
    ours = Curve.of([Point(1.61, 100), Point(2.0, 200)])

    assert compare(LINE, theirs).p95s == (1.55, 1.6, 1.65, 1.7, 1.75, 1.8)
    assert compare(ours, theirs).p95s == (1.65, 1.7, 1.75, 1.8)


def test_whoever_reaches_none_of_the_grid_is_compared_at_his_lowest_with_what_ours_does_at_less() -> None:
    late = Curve.of([Point(3.0, 100), Point(4.0, 1000)])
    result = compare(LINE, late)

    assert (result.p95s, result.goodput, result.p99) == ((3.0,), (3.0,), ())


def test_above_our_highest_p95_ours_counts_with_what_it_has_there() -> None:
    short = Curve.of([Point(1.0, 100), Point(1.5, 200)])

    assert compare(short, LINE, grid=(1.8,)).goodput == pytest.approx((200 / 260,))


def test_the_geometric_mean_of_nothing_is_not_a_number() -> None:
    assert math.isnan(geometric_mean([]))
    assert geometric_mean([1, 4]) == pytest.approx(2.0)


@given(st.lists(points, min_size=1, max_size=12))
def test_no_point_lies_above_its_curve_and_the_curve_rises(cloud: list[Point]) -> None:
    curve = Curve.of(cloud)

    for point in cloud:
        best = curve.goodput_at(point.p95)
        assert best is not None
        assert best >= point.goodput * (1 - 1e-12)
    assert [point.goodput for point in curve.front] == sorted({point.goodput for point in curve.front})


@given(st.lists(points, min_size=1, max_size=12))
def test_a_curve_over_itself_is_one_wherever_it_is_compared(cloud: list[Point]) -> None:
    curve = Curve.of(cloud)

    assert compare(curve, curve).goodput == pytest.approx([1.0] * len(compare(curve, curve).p95s))
