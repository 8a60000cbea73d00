"""How long a queue takes to move up, from what has ended lately.

Keeps the core's part of promise 21 of SEMANTICS.md: `retry_after` is estimated from the drain rate.
"""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.core.drain_rate import DrainRate


def test_nothing_is_known_before_anything_has_ended() -> None:
    rate = DrainRate(10.0, 0.0, (0, 0))

    assert rate.seconds_for(5, 0.0, (0, 0), 0) is None
    assert rate.seconds_for(5, 3.0, (0, 0), 0) is None


def test_the_time_follows_from_the_ends_since_the_last_reading() -> None:
    rate = DrainRate(10.0, 100.0, (7, 0))

    # Eight ends in two seconds: a queue of twelve takes three.
    assert rate.seconds_for(12, 102.0, (15, 0), 0) == 3.0


def test_each_kind_has_its_own_rate() -> None:
    rate = DrainRate(10.0, 0.0, (0, 0))

    assert rate.seconds_for(10, 2.0, (4, 1), 0) == 5.0
    assert rate.seconds_for(10, 2.0, (4, 1), 1) == 20.0


def test_what_started_more_than_a_window_ago_does_not_count() -> None:
    rate = DrainRate(10.0, 0.0, (0, 0))
    for second in range(1, 6):
        rate.mark(float(second), (100 * second, 0))

    assert rate.seconds_for(1, 60.0, (500, 0), 0) is None


def test_the_rate_forgets_how_it_was_a_window_ago() -> None:
    rate = DrainRate(10.0, 0.0, (0, 0))
    started = 0
    for tenth in range(1, 301):  # 100 a second for ten seconds, then 10 a second
        started += 10 if tenth <= 100 else 1
        rate.mark(tenth / 10, (started, 0))

    assert rate.seconds_for(10, 30.0, (started, 0), 0) == pytest.approx(1.0, rel=0.02)
