"""The pressure law, by examples worked out by hand.

Keeps the section on PressurePolicy of CONTROL.md; tests/property/test_pressure_policy.py says the same of any input.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, Decision, LimitPolicy, PressurePolicy, Signals

CALM = Signals(max_concurrency=8, batch_max=6, batch_min=1)


def decide(policy: PressurePolicy, now: float = 0.0, **signals: Any) -> Decision:
    return policy.decide(now, replace(CALM, **signals))


@pytest.mark.parametrize(
    "rps, limit, pressure",
    # 6 - 5 * pressure, and halves go to the even neighbour: 3.5 up to 4, 4.5 down to 4.
    [(0, 6, 0.0), (2, 6, 0.1), (4, 5, 0.2), (6, 4, 0.3), (10, 4, 0.5), (14, 2, 0.7), (19, 1, 0.95), (20, 1, 1.0)],
)
def test_arrivals_lower_the_limit_in_a_straight_line(rps: float, limit: int, pressure: float) -> None:
    decision = decide(PressurePolicy(rps_threshold=20.0), rps=rps)

    assert (decision.limit, decision.pressure) == (limit, pressure)


@pytest.mark.parametrize("p95, limit, pressure", [(0.0, 6, 0.0), (0.1, 5, 0.2), (0.25, 4, 0.5), (0.5, 1, 1.0)])
def test_latency_lowers_the_limit_in_a_straight_line(p95: float, limit: int, pressure: float) -> None:
    decision = decide(PressurePolicy(p95_threshold=0.5), p95=p95)

    assert (decision.limit, decision.pressure) == (limit, pressure)


@pytest.mark.parametrize(
    "rps, p95, limit, reason",
    [(20, 0.1, 1, "arrivals"), (4, 0.5, 1, "latency"), (10, 0.25, 4, "latency"), (0, 0, 6, "calm")],
)
def test_the_larger_of_both_rules_and_is_the_reason(rps: float, p95: float, limit: int, reason: str) -> None:
    decision = decide(PressurePolicy(rps_threshold=20.0, p95_threshold=0.5), rps=rps, p95=p95)

    assert (decision.limit, decision.reason) == (limit, reason)


def test_pressure_is_shown_unclamped_and_the_limit_stays_at_the_floor() -> None:
    decision = decide(PressurePolicy(rps_threshold=20.0), rps=70, batch_min=2)

    assert (decision.limit, decision.pressure) == (2, 3.5)


def test_a_signal_without_a_threshold_has_no_say() -> None:
    assert decide(PressurePolicy(rps_threshold=20.0), p95=1e6).pressure == 0.0
    assert decide(PressurePolicy(p95_threshold=0.5), rps=1e6).pressure == 0.0


def test_without_smoothing_the_decision_stands_until_the_signals_change() -> None:
    assert decide(PressurePolicy(rps_threshold=20.0), rps=5).valid_until == math.inf


def test_throttling_is_full_pressure_until_it_ends() -> None:
    policy = PressurePolicy(rps_threshold=20.0)

    before = decide(policy, 9.999, rps=4, throttled_until=10.0)
    after = decide(policy, 10.0, rps=4, throttled_until=10.0)

    assert before == Decision(1, 1.0, "throttled", 10.0)
    assert after == Decision(5, 0.2, "arrivals", math.inf)


@pytest.mark.parametrize(
    "rps, pressure, reason", [(19, 1.0, "throttled"), (30, 1.5, "arrivals"), (50, 2.5, "arrivals")]
)
def test_throttling_hides_no_higher_pressure(rps: float, pressure: float, reason: str) -> None:
    decision = decide(PressurePolicy(rps_threshold=20.0), rps=rps, throttled_until=10.0)

    assert (decision.pressure, decision.reason) == (pressure, reason)


def test_throttling_is_never_smoothed() -> None:
    policy = PressurePolicy(rps_threshold=20.0, smoothing=5.0)
    policy.advance(0.0, CALM)

    assert decide(policy, 1.0, throttled_until=10.0).limit == 1
    assert decide(policy, 10.0, throttled_until=10.0).limit == 6


def stepped(smoothing: float = 4.0) -> PressurePolicy:
    """Calm until second 10, at the threshold from then on."""
    policy = PressurePolicy(rps_threshold=20.0, smoothing=smoothing)
    policy.advance(0.0, CALM)
    policy.advance(10.0, replace(CALM, rps=20.0))
    return policy


@pytest.mark.parametrize("elapsed", [0.0, 1.0, 4.0, 12.0])
def test_a_step_is_approached_with_the_time_constant(elapsed: float) -> None:
    decision = decide(stepped(4.0), 10.0 + elapsed, rps=20.0)

    assert decision.pressure == pytest.approx(1 - math.exp(-elapsed / 4.0))


def test_what_is_held_is_what_was_advanced_and_not_what_is_read() -> None:
    policy = stepped()

    assert decide(policy, 14.0, rps=0.0).pressure == decide(policy, 14.0, rps=1e6).pressure


def test_a_smoothed_decision_stands_until_the_limits_next_step() -> None:
    policy = stepped(4.0)

    # 6 - 5 y leaves 6 at y = 0.1 and 5 at y = 0.3.
    assert decide(policy, 10.0, rps=20.0).valid_until == pytest.approx(10.0 + 4.0 * math.log(1 / 0.9))
    assert decide(policy, 11.0, rps=20.0).valid_until == pytest.approx(10.0 + 4.0 * math.log(1 / 0.7))


def test_a_smoothed_decision_whose_limit_will_not_move_stands_for_ever() -> None:
    policy = PressurePolicy(rps_threshold=20.0, smoothing=4.0)
    policy.advance(0.0, replace(CALM, rps=1.0))  # 0.05 of the threshold never costs a slot

    assert decide(policy, 1.0, rps=1.0).valid_until == math.inf


def test_an_unfinished_call_that_has_joined_acts_unsmoothed() -> None:
    policy = PressurePolicy(p95_threshold=0.5, smoothing=100.0)
    policy.advance(0.0, CALM)

    joined = decide(policy, 1.0, p95=0.6, oldest_unfinished=0.6)
    finished = decide(policy, 1.0, p95=0.6, p95_finished=0.6)

    assert (joined.limit, joined.pressure) == (1, 1.2)
    assert finished.limit == 6


def test_smoothing_goes_by_finished_calls() -> None:
    policy = PressurePolicy(p95_threshold=0.5, smoothing=1.0)
    policy.advance(0.0, replace(CALM, p95=0.5, p95_finished=0.0))

    assert decide(policy, 100.0, p95=0.0).pressure == 0.0


def test_a_clock_that_goes_back_does_not_undo_the_average() -> None:
    policy = stepped()
    policy.advance(14.0, replace(CALM, rps=20.0))
    before = decide(policy, 14.0)

    policy.advance(12.0, replace(CALM, rps=20.0))

    assert decide(policy, 13.0).pressure == decide(policy, 14.0).pressure == before.pressure


def test_reset_forgets_the_average() -> None:
    policy = stepped()
    policy.advance(20.0, replace(CALM, rps=20.0))

    policy.reset()

    assert decide(policy, 21.0).pressure == 0.0
    assert decide(policy, 5.0).pressure == 0.0


def test_a_replica_goes_its_own_way() -> None:
    policy = stepped()
    replica = policy.replica()
    assert decide(replica, 14.0) == decide(policy, 14.0)

    replica.advance(14.0, CALM)

    assert decide(replica, 30.0).pressure < 0.02 < 0.98 < decide(policy, 30.0).pressure


def test_it_names_each_signal_that_it_looks_at() -> None:
    policy = PressurePolicy(rps_threshold=20.0, p95_threshold=0.5)
    busy = replace(CALM, rps=16.0)
    loud: dict[str, Any] = {"rps": 20.0, "p95": 0.5, "throttled_until": 10.0, "batch_max": 3, "batch_min": 2}
    ignored = {field.name: 7 for field in fields(Signals) if field.name not in policy.reads}

    for name, value in loud.items():
        assert name in policy.reads
        assert policy.decide(0.0, replace(busy, **{name: value})) != policy.decide(0.0, busy)
    assert policy.decide(0.0, replace(busy, **ignored)) == policy.decide(0.0, busy)


def test_smoothed_it_names_what_it_looks_at_too() -> None:
    policy = PressurePolicy(rps_threshold=20.0, p95_threshold=0.5, smoothing=4.0)
    policy.advance(0.0, CALM)
    joined = replace(CALM, p95=2.0, oldest_unfinished=2.0)

    assert decide(policy, 1.0, p95=2.0).pressure == 0.0
    assert policy.decide(1.0, joined).pressure == 4.0
    assert {"oldest_unfinished", "p95_finished", "throttled_until"} <= policy.reads


@pytest.mark.parametrize("name", ["rps_threshold", "p95_threshold", "smoothing"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, True, "1"])
def test_a_threshold_that_is_no_finite_number_above_zero_is_refused(name: str, value: float) -> None:
    arguments: dict[str, float] = {"rps_threshold": 1.0, name: value}

    with pytest.raises(ConfigError, match=rf"^{name} must be a finite number above 0, got "):
        PressurePolicy(**arguments)


def test_no_threshold_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs rps_threshold or p95_threshold"):
        PressurePolicy(smoothing=1.0)


def test_it_is_a_policy_and_shows_its_thresholds() -> None:
    policy = PressurePolicy(rps_threshold=20.0, p95_threshold=0.5)

    assert isinstance(policy, LimitPolicy)
    assert repr(policy) == "PressurePolicy(rps_threshold=20.0, p95_threshold=0.5, smoothing=None)"
