"""Settings that look wrong: each finding comes once, with its numbers, and never for the healthy twin."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import LimitRecord
from llm_traffic_scheduler.policies.diagnosis import Diagnosis, Finding, Look, Range, Tide

BUSY = Look(
    now=0.0,
    rps=Range(9.0, 11.0),
    p95=Range(0.2, 0.4),
    rps_threshold=20.0,
    p95_threshold=0.5,
    batch_wanted=True,
    batch_max=6,
    batch_min=1,
)


def found(series: Iterable[Look]) -> list[Finding]:
    diagnosis = Diagnosis()
    return [finding for seen in series for finding in diagnosis.judge(seen)]


def looks(number: int, every: float = 10.0, **state: Any) -> list[Look]:
    return [replace(BUSY, now=every * step, **state) for step in range(number)]


def path(limits: Iterable[int], until: float) -> tuple[LimitRecord, ...]:
    return tuple(LimitRecord(until - 0.1, limit, 0.5, "latency") for limit in limits)


def test_an_ordinary_day_finds_nothing() -> None:
    assert found(looks(1000)) == []


def test_thresholds_that_never_bite_are_told_once_with_the_highest_that_was_seen() -> None:
    quiet = looks(200, rps=Range(0.1, 0.3), p95=Range(0.001, 0.02))
    quiet[7] = replace(quiet[7], rps=Range(0.1, 0.9))

    (finding,) = found(quiet)

    assert finding.kind == "never"
    assert "interactive_rps_threshold=20: highest rate 0.9/s" in finding.message
    assert "interactive_p95_threshold=0.5: highest P95 0.02 s" in finding.message
    assert "in 290 s with both kinds of traffic" in finding.message  # the thirtieth look
    assert "load test" in finding.message


@pytest.mark.parametrize(
    "twin",
    [
        looks(29, rps=Range(0.1, 0.3), p95=Range(0.0, 0.02)),  # too early to tell
        looks(200, rps=Range(0.1, 0.3), p95=Range(0.0, 0.03)),  # one of them does bite
        looks(200, rps=Range(0.1, 0.3), p95=Range(0.0, 0.02), batch_wanted=False),  # nobody to hold back
        looks(200, rps=Range(0.0, 0.0), p95=Range(0.0, 0.0)),  # no traffic
        looks(200, rps=Range(), p95=Range()),
        looks(200, rps=Range(0.1, 0.3), p95=Range()),
        looks(200, rps=Range(0.1, 0.3), p95=Range(math.nan, math.nan)),
        [replace(seen, now=-math.inf) for seen in looks(200, rps=Range(0.1, 0.3), p95=Range(0.0, 0.02))],
        looks(200, rps=Range(0.1, 0.3), p95=Range(0.0, 0.02), rps_threshold=None, p95_threshold=None),
    ],
)
def test_thresholds_are_not_said_never_to_bite_without_evidence(twin: list[Look]) -> None:
    assert found(twin) == []


def test_one_window_in_which_it_bit_is_enough_for_a_threshold() -> None:
    quiet = looks(200, rps=Range(0.1, 0.3), p95=Range(0.0, 0.02))
    quiet[3] = replace(quiet[3], rps=Range(0.1, 5.0))

    assert found(quiet) == []


def test_a_threshold_that_always_bites_is_told_once_with_the_lowest_that_was_seen() -> None:
    (finding,) = found(looks(200, p95=Range(0.61, 2.0)))

    assert finding.kind == "always"
    assert (
        "interactive_p95_threshold=0.5 was reached all through 20 of 20 looks (at least P95 0.61 s)" in finding.message
    )
    assert "interactive_rps_threshold" not in finding.message
    assert "minimum of 1" in finding.message


def test_one_look_in_twenty_may_be_otherwise() -> None:
    often, seldom = (looks(20, p95=Range(0.61, 2.0)) for _ in range(2))
    often[3] = replace(often[3], p95=Range(0.3, 2.0))
    seldom[3:5] = [replace(each, p95=Range(0.3, 2.0)) for each in seldom[3:5]]

    assert [finding.kind for finding in found(often)] == ["always"]
    assert found(seldom) == []


@pytest.mark.parametrize(
    "twin",
    [
        looks(19, p95=Range(0.61, 2.0)),
        looks(200, p95=Range(0.49, 9.0)),  # spikes are what thresholds are for
        looks(200, p95=Range(0.61, 2.0), p95_threshold=None),
        looks(200, p95=Range(0.61, 2.0), batch_wanted=False),
    ],
)
def test_a_threshold_is_not_said_always_to_bite_without_evidence(twin: list[Look]) -> None:
    assert found(twin) == []


def test_twenty_bad_looks_after_a_good_day_are_found() -> None:
    day = looks(400) + [replace(each, now=each.now + 4000) for each in looks(40, p95=Range(0.61, 2.0))]

    assert [finding.kind for finding in found(day)] == ["always"]


def test_a_limit_that_flutters_is_told_once_with_how_often_it_turned() -> None:
    restless = [replace(seen, records=path((6, 1, 6), seen.now), window=1.0) for seen in looks(200, every=2.0)]

    (finding,) = found(restless)

    assert finding.kind == "flutter"
    assert "turned 61 times in 60 s, between 1 and 6" in finding.message
    assert "lengthen window (1 s now) or give smoothing" in finding.message


@pytest.mark.parametrize(
    "limits, every",
    [
        ((6, 1), 20.0),  # follows traffic that comes and goes
        ((4, 3, 4, 3, 4, 3), 2.0),  # at the edge between two limits, which does no harm
        ((6, 5, 4, 3, 2, 1), 120.0),
        ((), 2.0),
    ],
)
def test_a_limit_that_follows_its_traffic_does_not_flutter(limits: tuple[int, ...], every: float) -> None:
    assert found(replace(seen, records=path(limits, seen.now)) for seen in looks(200, every=every)) == []


def test_turns_count_per_minute_even_after_a_quiet_hour() -> None:
    restless = [replace(BUSY, now=0.0), replace(BUSY, now=10.0, records=path((6, 1) * 8, 10.0))]

    assert found([*restless, replace(BUSY, now=3600.0)]) == []
    assert [each.kind for each in found([*restless, replace(BUSY, now=61.0)])] == ["flutter"]


def test_other_bounds_begin_a_new_count_of_turns() -> None:
    first = [replace(seen, records=path((6, 1, 6, 1), seen.now)) for seen in looks(5)]
    second = [replace(seen, now=seen.now + 50.0, batch_max=12) for seen in looks(5)]

    assert found([*first, *second]) == []


def test_batch_that_stands_still_is_told_once_with_who_holds_the_slots() -> None:
    (finding,) = found(looks(9, still_for=61.0, batch_queued=7, holders="6 of 8 slots are held by 6 batch calls"))

    assert finding.kind == "still"
    assert finding.message == (
        "no batch call has started or ended for 61 s, and 7 wait: 6 of 8 slots are held by 6 batch calls"
    )


@pytest.mark.parametrize("twin", [{"still_for": 59.9, "batch_queued": 7}, {"still_for": 600.0, "batch_queued": 0}])
def test_batch_that_moves_or_does_not_wait_does_not_stand_still(twin: dict[str, Any]) -> None:
    assert found(looks(9, **twin)) == []


FIGURES = st.floats(allow_nan=True, allow_infinity=True)
RANGES = st.builds(Range, FIGURES, FIGURES)


@given(
    st.lists(
        st.builds(
            Look,
            now=FIGURES,
            rps=RANGES,
            p95=RANGES,
            rps_threshold=st.none() | FIGURES,
            p95_threshold=st.none() | FIGURES,
            batch_wanted=st.booleans(),
            batch_max=st.integers(-1, 9),
            batch_min=st.integers(-1, 9),
            records=st.lists(st.builds(LimitRecord, FIGURES, st.integers(-3, 99), FIGURES, st.text())).map(tuple),
            still_for=FIGURES,
            batch_queued=st.integers(-1, 9),
        ),
        max_size=80,
    )
)
def test_nonsense_raises_nothing_and_each_kind_is_found_once_at_most(series: list[Look]) -> None:
    findings = found(series)

    assert len({finding.kind for finding in findings}) == len(findings)
    assert not any("nan" in finding.message or "inf" in finding.message for finding in findings)


@given(st.floats(0.11, 0.9), st.floats(0.11, 0.9), st.integers(1, 300))
def test_thresholds_that_are_within_reach_are_never_complained_of(rate: float, latency: float, number: int) -> None:
    seen: dict[str, Any] = {"rps": Range(rate * 15, rate * 20), "p95": Range(latency * 0.4, latency * 0.5)}

    assert found(looks(number, **seen)) == []


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, 0.0])
def test_a_threshold_that_is_none_is_not_judged(nonsense: float) -> None:
    quiet: dict[str, Any] = {"rps": Range(0.1, 0.3), "p95": Range(0.0, 0.02)}

    assert found(looks(200, rps_threshold=nonsense, p95_threshold=nonsense, **quiet)) == []


def test_the_tide_is_the_lowest_and_the_highest_since_it_was_last_taken() -> None:
    tide = Tide()
    for rps, p95 in ((3.0, 0.2), (1.0, 0.5), (2.0, 0.1)):
        tide.note(rps, p95)

    assert tide.take() == (Range(1.0, 3.0), Range(0.1, 0.5))
    assert tide.take() == (Range(), Range())

    tide.note(4.0, 0.4)
    assert tide.take() == (Range(4.0, 4.0), Range(0.4, 0.4))
