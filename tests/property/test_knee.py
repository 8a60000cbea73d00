"""Whatever was measured, a recommendation is taken from the points, and does not move with what it must not."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import CalibrationPoint
from llm_traffic_scheduler.core.knee import ENOUGH, bent, chance_of_late, holds, recommend

seconds = st.floats(0.001, 100.0)
targets = st.none() | seconds


@st.composite
def points(draw: st.DrawFn, rate: float = 1.0, usual: float = 0.1) -> CalibrationPoint:
    """Most calls take `usual` seconds, some take longer, some fail; a few of the oddities, each one seldom."""
    quick = draw(st.sampled_from([0, 1, 19, 20, 20, 40, 100]))
    slow = draw(st.lists(st.floats(1.0, 50.0), max_size=draw(st.sampled_from([1, 3, 40]))))
    failures = draw(st.sampled_from([0, 0, 0, 1, 20])) + (not quick and not slow)
    calls = quick + len(slow) + failures
    return CalibrationPoint(
        rate=rate,
        seconds=calls / rate * draw(st.sampled_from([1.0, 1.0, 1.0, 0.9, 1.3])),
        calls=calls,
        failures=failures,
        throttled=draw(st.sampled_from([0, 0, 0, failures])),
        latencies=tuple(sorted([usual] * quick + [usual * factor for factor in slow])),
        max_unfinished=draw(st.integers(1, calls)),
        stopped=draw(st.sampled_from([None, None, None, None, None, "unfinished", "throttled"])),
        last_error="ValueError: no" if failures else None,
    )


@st.composite
def curves(draw: st.DrawFn) -> list[CalibrationPoint]:
    rates = sorted(draw(st.sets(st.floats(0.1, 100.0), max_size=6)))
    usual = draw(st.floats(0.001, 1.0))
    return [draw(points(rate, usual)) for rate in rates]


@given(curves(), targets)
def test_what_is_recommended_was_measured(curve: list[CalibrationPoint], target: float | None) -> None:
    result = recommend(curve, target_p95=target)

    assert result.reasons
    assert (result.rps is None) == (result.max_concurrency is None)
    if result.rps is not None:
        assert result.p95 is not None
        held = next(point for point in curve if point.rate_achieved == result.rps)
        assert held.calls >= ENOUGH
        assert holds(held, result.p95)
        assert result.max_concurrency is not None
        assert 2 <= result.max_concurrency <= max(2, *(each.max_unfinished for each in curve))
        assert result.settled
    if result.p95 is not None and target is None:
        assert result.p95 / 2 in [point.p95 for point in curve]


@given(curves(), targets, st.floats(0.1, 10.0).map(lambda power: 2.0 ** round(power)))
def test_a_clock_that_runs_faster_changes_the_numbers_and_not_the_answer(
    curve: list[CalibrationPoint], target: float | None, factor: float
) -> None:
    # By a power of two, so that no rounding moves a call over a limit.
    faster = [
        replace(
            point,
            rate=point.rate / factor,
            seconds=point.seconds * factor,
            latencies=tuple(latency * factor for latency in point.latencies),
        )
        for point in curve
    ]

    result = recommend(curve, target_p95=target)
    scaled = recommend(faster, target_p95=None if target is None else target * factor)

    assert scaled.rps == (None if result.rps is None else result.rps / factor)
    assert scaled.p95 == (None if result.p95 is None else result.p95 * factor)
    assert (scaled.max_concurrency, scaled.settled) == (result.max_concurrency, result.settled)


@given(curves(), curves(), targets)
def test_a_settled_answer_is_the_same_with_more_points(
    curve: list[CalibrationPoint], more: list[CalibrationPoint], target: float | None
) -> None:
    result = recommend(curve, target_p95=target)
    higher = [replace(point, rate=point.rate + 1000.0, seconds=point.calls / (point.rate + 1000.0)) for point in more]

    beyond = recommend([*curve, *higher], target_p95=target)

    if result.settled and not all(point.failures == point.calls for point in curve):
        assert (beyond.rps, beyond.p95, beyond.max_concurrency) == (result.rps, result.p95, result.max_concurrency)


@given(points(), seconds, seconds)
def test_a_higher_limit_is_never_harder_to_hold(point: CalibrationPoint, one: float, other: float) -> None:
    low, high = sorted((one, other))

    assert holds(point, high) or not holds(point, low)
    assert bent(point, low) or not bent(point, high)
    assert not (holds(point, low) and bent(point, low))


@given(points(), seconds)
def test_holding_is_what_the_percentile_says(point: CalibrationPoint, limit: float) -> None:
    assert holds(point, limit) == (point.p95 is not None and point.p95 <= limit)


@given(st.integers(1, 200), st.data())
def test_the_chance_of_late_calls_is_that_of_the_exact_fractions(calls: int, data: st.DataObject) -> None:
    late = data.draw(st.integers(0, calls))

    tail = sum(math.comb(calls, number) * 19 ** (calls - number) for number in range(late, calls + 1))

    assert math.isclose(chance_of_late(calls, late), tail / 20**calls, rel_tol=1e-9, abs_tol=1e-300)
