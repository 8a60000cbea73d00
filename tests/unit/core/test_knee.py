"""Which curve says what: where P95 bends, what chance may do, and when there is no answer."""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler import CalibrationPoint
from llm_traffic_scheduler.core.knee import Recommendation, bent, chance_of_late, concurrency, holds, recommend


def point(
    rate: float,
    latency: float,
    *,
    late: int = 0,
    calls: int = 100,
    failures: int = 0,
    throttled: int = 0,
    stopped: str | None = None,
    seconds: float | None = None,
    most: int = 50,
) -> CalibrationPoint:
    """All answers after `latency`, `late` of them after ten times that; all calls sent in time."""
    answered = calls - failures
    return CalibrationPoint(
        rate=rate,
        seconds=calls / rate if seconds is None else seconds,
        calls=calls,
        failures=failures,
        throttled=throttled,
        retry_after=3.0 if throttled else None,
        latencies=(latency,) * (answered - late) + (10 * latency,) * late,
        max_unfinished=most,
        stopped="unfinished" if stopped == "unfinished" else "throttled" if stopped else None,
        last_error="ValueError: no" if failures else None,
    )


def found(result: Recommendation) -> tuple[float | None, float | None, int | None, bool]:
    return result.rps, result.p95, result.max_concurrency, result.settled


def said(result: Recommendation) -> str:
    return "\n".join(result.reasons)


def test_the_knee_is_the_highest_rate_that_held_below_the_first_that_bent() -> None:
    curve = [point(1, 0.2), point(2, 0.2), point(4, 0.39), point(8, 0.2, late=40)]

    result = recommend(curve)

    assert found(result) == (4.0, 0.4, 2, True)
    assert "P95 bent at 8 calls/s: P95 2 s, 40 of 100 calls not answered within 0.4 s" in said(result)


def test_with_a_target_the_knee_is_the_highest_rate_at_which_it_holds() -> None:
    curve = [point(1, 0.2), point(2, 0.35), point(4, 0.9), point(8, 3.0)]

    assert found(recommend(curve, target_p95=1.0))[:2] == (4.0, 1.0)
    assert found(recommend(curve, target_p95=0.3))[:2] == (1.0, 0.3)


def test_what_comes_after_the_first_bend_changes_nothing() -> None:
    curve = [point(1, 0.2), point(2, 0.2, late=40)]

    assert recommend([*curve, point(4, 0.2)]) == recommend(curve)


def test_late_calls_that_chance_explains_are_noise_and_not_a_bend() -> None:
    curve = [point(1, 0.2), point(2, 0.2, late=7), point(4, 0.2)]

    result = recommend(curve)

    assert found(result) == (None, 0.4, None, False)
    assert "noise hides what happens at 2 calls/s" in said(result)
    assert "no bend seen up to 4 calls/s: add higher rates" in said(result)


def test_noise_at_the_highest_rate_asks_for_longer_stretches() -> None:
    result = recommend([point(1, 0.2), point(2, 0.2, late=7)])

    assert found(result) == (None, 0.4, None, False)
    assert "no rate bends P95 by more than chance may, up to 2 calls/s: give more seconds_per_rate" in said(result)


def test_noise_below_the_bend_is_told_and_does_not_hide_the_rate_that_held_beyond_it() -> None:
    curve = [point(1, 0.2), point(2, 0.2, late=7), point(4, 0.2), point(8, 0.2, late=60)]

    result = recommend(curve)

    assert result.rps == 4.0
    assert "noise hides what happens at 2 calls/s" in said(result)


def test_a_bend_has_to_stand_out_from_what_chance_may_have_done_to_the_lowest_rate() -> None:
    # Its P95 is 0.2 s, but 2 of 100 took 2 s: one run in twenty of a backend with a P95 of 2 s has no more.
    shaky = point(1, 0.2, late=2)

    assert chance_of_late(100, 2) > 0.95 > chance_of_late(100, 3)
    assert recommend([shaky, point(2, 1.0)]).rps is None
    assert recommend([shaky, point(2, 4.1)]).rps == 1.0
    assert recommend([point(1, 0.2, late=1), point(2, 1.0)]).rps == 1.0


def test_few_calls_are_not_said_to_bound_the_chance() -> None:
    assert "too few to say how much of it is chance" in said(recommend([point(1, 0.2, calls=58)]))
    assert "up to 0.2 s by chance" in said(recommend([point(1, 0.2, calls=59)]))


def test_rates_with_fewer_than_twenty_calls_are_left_out() -> None:
    curve = [point(0.5, 0.1, calls=19), point(1, 0.2, calls=20), point(2, 0.2, calls=40, late=20)]

    result = recommend(curve)

    assert found(result)[:2] == (1.0, 0.4)
    assert result.reasons[0].startswith("0.5 calls/s had 19 calls, a P95 needs 20: left out")


def test_if_no_rate_has_enough_calls_there_is_no_answer_yet() -> None:
    result = recommend([point(0.5, 0.1, calls=5), point(1, 5.0, calls=10)])

    assert found(result) == (None, None, None, False)
    assert "no rate had 20 calls" in said(result)


def test_without_points_there_is_no_answer() -> None:
    assert found(recommend([])) == (None, None, None, False)


def test_if_everything_failed_the_last_error_is_told() -> None:
    result = recommend([point(1, 0.2, calls=5, failures=5)])

    assert found(result) == (None, None, None, True)
    assert result.reasons == ("every call failed (5), the last with ValueError: no",)


def test_failures_at_the_lowest_rate_leave_nothing_to_compare_with() -> None:
    result = recommend([point(1, 0.2, failures=6), point(2, 0.9)])

    assert found(result) == (None, None, None, True)
    assert "6 of 100 calls failed at 1 calls/s" in said(result)


def test_failures_at_a_higher_rate_bend_it() -> None:
    result = recommend([point(1, 0.2, failures=5), point(2, 0.2, failures=30)])

    assert result.rps == 1.0
    assert "(30 failed)" in said(result)


@pytest.mark.parametrize("stopped", ["throttled", None])
def test_throttling_ends_the_curve_like_a_bend_and_the_wait_is_told(stopped: str | None) -> None:
    result = recommend([point(1, 0.2), point(2, 0.2, calls=4, failures=1, throttled=1, stopped=stopped)])

    assert found(result)[::3] == (1.0, True)
    assert "the backend throttled at 2 calls/s (1 of 4 calls, retry after 3 s)" in said(result)


@pytest.mark.parametrize("failures", [1, 4])
def test_throttling_at_the_lowest_rate_leaves_no_answer(failures: int) -> None:
    result = recommend([point(1, 0.2, calls=4, failures=failures, throttled=failures, stopped="throttled")])

    assert found(result) == (None, None, None, True)
    assert "throttled at 1 calls/s, the lowest that counts (" in said(result)


def test_too_many_unfinished_calls_before_a_bend_say_nothing_about_the_knee() -> None:
    low, high = point(1, 0.2), point(2, 0.2, calls=30, stopped="unfinished")

    assert found(recommend([low, high])) == (None, 0.4, None, True)
    assert "before P95 bent: raise max_unfinished" in said(recommend([low, high]))
    assert found(recommend([high])) == (None, None, None, True)


def test_too_many_unfinished_calls_after_a_bend_are_a_bend() -> None:
    assert recommend([point(1, 0.2), point(2, 2.0, calls=30, stopped="unfinished")]).rps == 1.0


def test_a_generator_that_falls_behind_measures_itself_and_not_the_backend() -> None:
    low, slow = point(1, 0.2), point(1000, 0.2, seconds=1.0, late=50)

    assert found(recommend([low, slow])) == (None, 0.4, None, True)
    assert "only 100 of 1000 calls/s could be sent" in said(recommend([low, slow]))
    assert found(recommend([slow])) == (None, None, None, True)


def test_a_stretch_of_less_than_ten_p95_shows_no_queue() -> None:
    assert recommend([point(50, 0.2), point(100, 4.0)]).rps == 50.0

    result = recommend([point(50, 0.21), point(100, 4.0)])

    assert found(result) == (None, None, None, True)
    assert "give seconds_per_rate at least 10 times the P95, 2.1" in said(result)


@pytest.mark.parametrize("late, settled", [(11, False), (50, True)])
def test_a_target_that_fails_at_the_lowest_rate_leaves_no_answer(late: int, settled: bool) -> None:
    result = recommend([point(1, 0.2, late=late)], target_p95=0.3)

    assert found(result) == (None, None, None, settled)
    assert "the target of 0.3 s does not hold at 1 calls/s" in said(result)


def test_five_in_a_hundred_may_be_late_and_twelve_are_needed_for_a_bend() -> None:
    late = range(15)

    assert [holds(point(1, 0.2, late=number), 0.3) for number in late] == [number <= 5 for number in late]
    assert [bent(point(1, 0.2, late=number), 0.3) for number in late] == [number >= 12 for number in late]


def test_the_chance_of_late_calls_is_the_binomial_tail() -> None:
    exact = sum(math.comb(100, number) * 0.05**number * 0.95 ** (100 - number) for number in range(9, 101))

    assert chance_of_late(100, 9) == pytest.approx(exact)
    assert chance_of_late(100, 0) == pytest.approx(1.0)
    assert 0.4 < chance_of_late(100_000, 5000) < 0.6  # where 0.95 ** calls is no float any more


@pytest.mark.parametrize(
    "alone, held, bent, cap",
    [
        (0.4, 0.4, None, 4),  # ten a second, 0.4 s each
        (0.41, 0.41, None, 5),
        (0.4, 0.4, 15, 4),  # 4 are borne and 6 are not
        (0.4, 0.4, 40, 8),  # 4 are borne and 16 are not
        (0.4, 0.6, 15, 6),  # what was there while P95 held is borne
        (0.01, 0.01, None, 2),
    ],
)
def test_the_cap_lies_between_what_was_borne_and_what_was_not(
    alone: float, held: float, bent: float | None, cap: int
) -> None:
    beyond = None if bent is None else point(bent, 9.0)

    assert concurrency(point(1, alone), point(10, held), beyond) == cap
