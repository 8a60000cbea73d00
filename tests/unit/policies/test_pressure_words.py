"""What the pressure law says of itself is what it does: its numbers, put in, give the limits that it names."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm_traffic_scheduler import PressurePolicy, Signals

CALM = Signals(max_concurrency=8, batch_max=6, batch_min=1)
BOTH = PressurePolicy(rps_threshold=20.0, p95_threshold=0.5)


def said(policy: PressurePolicy, now: float = 0.0, **signals: Any) -> tuple[str, tuple[str, ...]]:
    present = replace(CALM, **signals)
    decision = policy.decide(now, present)
    return policy.describe(now, decision, present), policy.outlook(now, decision, present)


def test_the_signal_that_holds_the_limit_is_named_with_its_numbers() -> None:
    assert said(BOTH, rps=12.0, p95=0.1)[0] == "12 interactive calls per second are 60% of the threshold (20/s)"
    assert said(BOTH, rps=1.0, p95=0.4)[0] == "an interactive P95 of 0.4 s is 80% of the threshold (0.5 s)"
    assert said(BOTH)[0] == "no interactive traffic in the window"


def test_what_raises_the_limit_is_told_for_the_next_step_and_for_all_of_them() -> None:
    _, outlook = said(BOTH, rps=12.0, p95=0.1)

    assert outlook == (
        "it rises to 4 with a rate below 10/s (now 12/s) and a P95 below 0.25 s (now 0.1 s), "
        "and to all 6 with a rate below 2/s and a P95 below 0.05 s",
        "it is down at its minimum of 1 from a rate of 20/s or a P95 of 0.5 s on, which is pressure 1",
    )


def test_the_last_step_is_told_once() -> None:
    rise, _ = said(PressurePolicy(rps_threshold=20.0), rps=3.0)[1]

    assert rise == "it rises to 6 with a rate below 2/s (now 3/s)"


def test_an_open_limit_says_only_where_it_closes() -> None:
    assert said(BOTH)[1] == (
        "it is down at its minimum of 1 from a rate of 20/s or a P95 of 0.5 s on, which is pressure 1",
    )


def test_a_limit_without_a_range_says_that_nothing_moves_it() -> None:
    (only,) = said(BOTH, batch_min=6, rps=12.0)[1]

    assert only == "batch_min_concurrency equals batch_max_concurrency (6): nothing moves the limit"


def test_throttling_says_until_when() -> None:
    sentence, outlook = said(BOTH, now=100.0, throttled_until=112.5)

    assert sentence == "the backend has asked us to wait for another 12.5 s"
    assert outlook[0] == "it cannot rise while the backend asks us to wait, for another 12.5 s"


def test_smoothing_is_told_with_what_it_makes_of_the_signal() -> None:
    policy = PressurePolicy(rps_threshold=20.0, smoothing=4.0)
    policy.advance(0.0, replace(CALM, rps=20.0))
    present = replace(CALM, rps=10.0)
    policy.advance(4.0, present)

    decision = policy.decide(4.0, present)

    share = f"{1 - math.exp(-1):.0%}"
    sentence = policy.describe(4.0, decision, present)
    assert sentence == (
        f"10 interactive calls per second are 50% of the threshold (20/s); smoothed over 4 s that is {share}"
    )
    assert policy.outlook(4.0, decision, present)[0].endswith("; smoothing makes it follow later")

    gone = replace(CALM, rps=0.0)
    policy.advance(6.0, gone)
    assert "no interactive traffic in the window; smoothed over 4 s" in policy.describe(
        6.0, policy.decide(6.0, gone), gone
    )


@pytest.mark.parametrize("by_rate", [True, False])
@given(st.integers(2, 40), st.integers(1, 39), st.floats(0.0, 0.99), st.sampled_from([0.25, 1.0, 8.0, 100.0]))
def test_the_numbers_it_names_are_those_at_which_the_limit_moves(
    by_rate: bool, top: int, floor: int, pressure: float, threshold: float
) -> None:
    assume(floor < top)
    policy = PressurePolicy(threshold) if by_rate else PressurePolicy(p95_threshold=threshold)
    signal = "rps" if by_rate else "p95"
    bounds: dict[str, Any] = {"max_concurrency": top + 1, "batch_max": top, "batch_min": floor}

    def limit_at(value: float) -> int:
        return policy.decide(0.0, replace(CALM, **{**bounds, signal: value})).limit

    *rises, closed = said(policy, **bounds, **{signal: pressure * threshold})[1]

    promises = re.findall(r"to (?:all )?(\d+) with a (?:rate|P95) below ([\d.e-]+)", " ".join(rises))
    assert bool(promises) == (limit_at(pressure * threshold) < top)
    for limit, value in promises:
        # Three figures are shown.
        assert limit_at(float(value) * 0.994) >= int(limit)
        assert limit_at(float(value) * 1.006) <= max(floor, int(limit))
    assert limit_at(threshold) == floor
    assert f"minimum of {floor} from a" in closed
