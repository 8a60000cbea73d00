"""AIMD: up by one per second, down by half once per window."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation.laws import AIMD
from tests.unit.simulation.laws.driven import Driven


def test_within_the_target_the_limit_rises_by_one_per_second_from_the_floor() -> None:
    driven = Driven(AIMD(2.0))

    assert [driven.run(10, p95=1.0) for _ in range(3)] == pytest.approx([11, 21, 31], abs=1)


def test_it_stops_at_batch_max() -> None:
    driven = Driven(AIMD(2.0, increase=10.0))

    assert driven.run(60, p95=1.0) == 64


def test_above_the_target_the_limit_halves_once_per_window() -> None:
    driven = Driven(AIMD(2.0))
    high = driven.run(50, p95=1.0)

    first, same_window, second = driven.run(0.1, p95=3.0), driven.run(9.8, p95=3.0), driven.run(1, p95=3.0)

    assert (first, same_window, second) == (high // 2, high // 2, high // 4)


def test_after_a_cut_it_rises_again_as_soon_as_the_target_is_kept() -> None:
    driven = Driven(AIMD(2.0))
    driven.run(50, p95=1.0)
    cut = driven.run(2, p95=3.0)

    assert driven.run(5, p95=1.9) == pytest.approx(cut + 5, abs=1)


def test_it_does_not_grow_while_batch_work_does_not_use_what_it_has() -> None:
    driven = Driven(AIMD(2.0))
    before = driven.run(20, p95=1.0)
    driven.uses = False

    assert driven.run(60, p95=1.0, batch_running=3) == pytest.approx(before, abs=1)


def test_a_place_that_has_just_become_free_is_used() -> None:
    driven = Driven(AIMD(2.0))
    before = driven.run(20, p95=1.0)
    driven.uses = False

    for _ in range(30):
        driven.run(0.1, p95=1.0, batch_running=driven.limit - 1)

    assert driven.limit == pytest.approx(before + 3, abs=1)


def test_a_limit_that_grows_is_valid_up_to_its_next_whole_number() -> None:
    driven = Driven(AIMD(2.0, increase=50.0))
    driven.run(0.5, p95=1.0)

    decision = driven.law.decide(driven.now, driven.signals)

    assert driven.law.decide(decision.valid_until - 1e-6, driven.signals).limit == decision.limit
    assert driven.law.decide(decision.valid_until + 1e-6, driven.signals).limit == decision.limit + 1


def test_throttling_is_a_miss() -> None:
    driven = Driven(AIMD(2.0))
    before = driven.run(40, p95=1.0)

    assert driven.run(1, p95=1.0, throttled_until=driven.now + 2.0) == 1
    assert driven.run(1.2, p95=1.0) == pytest.approx(before / 2, abs=1)


def test_unfinished_calls_older_than_the_target_count() -> None:
    assert AIMD(2.0).p95_threshold == 2.0


def test_the_limit_outlives_the_loop_and_the_clock_does_not() -> None:
    driven = Driven(AIMD(2.0))
    before = driven.run(40, p95=1.0)
    driven.run(1, p95=3.0)

    driven.law.reset()  # type: ignore[attr-defined]
    driven.now = 0.0

    assert driven.run(1, p95=1.0) == pytest.approx(before / 2, abs=2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0.0,), "p95_target must be a finite number above 0, got 0"),
        ((1.0, 0.0), "increase must be a finite number above 0, got 0"),
        ((1.0, 1.0, 1.0), "decrease must be above 0 and below 1, got 1"),
        ((float("nan"),), "p95_target must be a finite number above 0, got nan"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AIMD(*arguments)


def test_it_shows_its_numbers() -> None:
    assert repr(AIMD(2.0)) == "AIMD(p95_target=2, increase=1, decrease=0.5)"
