"""A point of the curve counts failures as slower than every answer, and knows when its calls were not sent in time."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler import CalibrationPoint


def point(*latencies: float, failures: int = 0, rate: float = 10.0, seconds: float = 2.0) -> CalibrationPoint:
    calls = len(latencies) + failures
    return CalibrationPoint(rate=rate, seconds=seconds, calls=calls, failures=failures, latencies=latencies)


def test_percentiles_are_by_nearest_rank() -> None:
    measured = point(*(float(number) for number in range(1, 21)))

    assert (measured.p50, measured.p95, measured.p99) == (10.0, 19.0, 20.0)
    assert measured.mean == 10.5


def test_a_failed_call_is_slower_than_every_answer() -> None:
    measured = point(*(float(number) for number in range(1, 20)), failures=1)

    assert (measured.p50, measured.p95, measured.p99) == (10.0, 19.0, None)
    assert measured.mean == 10.0


def test_without_answers_there_are_no_percentiles() -> None:
    measured = point(failures=3)

    assert (measured.p50, measured.p95, measured.p99, measured.mean) == (None,) * 4


def test_a_call_at_the_limit_is_not_late_and_a_failed_one_is() -> None:
    assert point(0.1, 0.2, 0.3, failures=2).late(0.2) == 3


def test_the_rate_achieved_is_that_of_the_calls_sent() -> None:
    assert point(*[0.1] * 20, rate=10.0, seconds=4.0).rate_achieved == 5.0


@pytest.mark.parametrize("seconds, behind", [(2.0, False), (2.2, False), (2.4, True)])
def test_calls_that_took_a_tenth_longer_to_send_than_asked_are_behind(seconds: float, behind: bool) -> None:
    assert point(*[0.1] * 20, rate=10.0, seconds=seconds).fell_behind is behind


def test_a_rate_that_gets_half_a_call_too_few_by_rounding_is_not_behind() -> None:
    assert not point(0.1, rate=0.5, seconds=2.9).fell_behind


def test_a_rate_that_was_stopped_is_not_behind() -> None:
    stopped = CalibrationPoint(rate=10.0, seconds=2.0, calls=3, failures=3, stopped="throttled")

    assert not stopped.fell_behind
