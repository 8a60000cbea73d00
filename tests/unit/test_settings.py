"""Every impossible value is refused where it is set, in the constructor and in `configure` alike.

Keeps the section on the constructor of API.md and promise 4 of SEMANTICS.md.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from llm_traffic_scheduler import AdaptivePolicy, ConfigError, FixedPolicy, PressurePolicy
from llm_traffic_scheduler.core.admission import Limits
from llm_traffic_scheduler.settings import Settings

COUNTS = [
    "max_concurrency",
    "batch_max_concurrency",
    "batch_min_concurrency",
    "max_queued_interactive",
    "max_queued_batch",
]
DURATIONS = ["window", "interactive_rps_threshold", "interactive_p95_threshold", "smoothing"]
QUEUE_TIMEOUTS = ["interactive_queue_timeout", "batch_queue_timeout"]
RUN_TIMEOUTS = ["interactive_run_timeout", "batch_run_timeout"]
PATIENCE = ["batch_starvation_timeout", "close_timeout"]


def refused(name: str, **arguments: Any) -> str:
    """The message with which these arguments are refused, which names the argument at fault first."""
    with pytest.raises(ConfigError, match=rf"^{name} ") as caught:
        Settings(**{"max_concurrency": 8, **arguments})
    return str(caught.value)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [2.0, True, False, math.nan, math.inf, "3", -1])
def test_a_count_is_a_whole_number(name: str, value: object) -> None:
    assert repr(value) in refused(name, **{name: value})


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [0, -1.0, True, math.nan, math.inf, "10"])
def test_a_threshold_or_window_is_a_finite_number_above_zero(name: str, value: object) -> None:
    assert repr(value) in refused(name, **{"interactive_rps_threshold": 20.0, name: value})


@pytest.mark.parametrize("name", [*QUEUE_TIMEOUTS, *RUN_TIMEOUTS, *PATIENCE])
@pytest.mark.parametrize("value", [True, math.nan, "10"])
def test_a_timeout_is_a_number_of_seconds_or_none(name: str, value: object) -> None:
    assert repr(value) in refused(name, **{name: value})


@pytest.mark.parametrize("name, value", [*((name, 0) for name in RUN_TIMEOUTS), *((name, -1) for name in PATIENCE)])
def test_a_timeout_that_could_not_work_is_refused(name: str, value: float) -> None:
    assert repr(value) in refused(name, **{name: value})


@pytest.mark.parametrize("name", [*QUEUE_TIMEOUTS, *RUN_TIMEOUTS, *PATIENCE])
@pytest.mark.parametrize("value", [None, math.inf, 0.001, 5])
def test_a_timeout_may_be_none_infinite_or_any_time(name: str, value: float | None) -> None:
    Settings(max_concurrency=8, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("cap", [0, 1])
def test_the_cap_leaves_room_for_both_kinds(cap: int) -> None:
    assert f"at least 2, got {cap}" in refused("max_concurrency", max_concurrency=cap)


@pytest.mark.parametrize("batch_max", [8, 9])
def test_batch_can_never_hold_the_last_slot(batch_max: int) -> None:
    message = refused("batch_max_concurrency", batch_max_concurrency=batch_max)

    assert message == (
        f"batch_max_concurrency must be below max_concurrency (8), got {batch_max}: "
        "interactive calls need a slot that batch can never hold"
    )


def test_the_floor_of_batch_is_at_least_one_and_at_most_its_ceiling() -> None:
    assert "at least 1, got 0" in refused("batch_min_concurrency", batch_min_concurrency=0)
    assert "(3), got 4" in refused("batch_min_concurrency", batch_max_concurrency=3, batch_min_concurrency=4)
    assert "(6), got 7" in refused("batch_min_concurrency", batch_min_concurrency=7)


@pytest.mark.parametrize("cap, batch_max", [(2, 1), (3, 2), (4, 3), (5, 3), (8, 6), (100, 75)])
def test_batch_max_left_out_is_three_quarters_of_the_cap_and_below_it(cap: int, batch_max: int) -> None:
    assert Settings(max_concurrency=cap).batch_max == batch_max < cap


def test_batch_max_left_out_follows_a_changed_cap() -> None:
    left_out = Settings(max_concurrency=8)
    given = Settings(max_concurrency=8, batch_max_concurrency=6)

    assert left_out.changed({"max_concurrency": 40}).batch_max == 30
    assert given.changed({"max_concurrency": 40}).batch_max == 6


def test_thresholds_make_the_pressure_law() -> None:
    policy = Settings(
        max_concurrency=8, interactive_rps_threshold=20.0, interactive_p95_threshold=0.5, smoothing=3.0
    ).make_policy()

    assert isinstance(policy, PressurePolicy)
    assert (policy.rps_threshold, policy.p95_threshold, policy.smoothing) == (20.0, 0.5, 3.0)


def test_without_thresholds_and_policy_the_law_is_the_adaptive_one_without_a_target() -> None:
    policy = Settings(max_concurrency=8).make_policy()

    assert isinstance(policy, AdaptivePolicy)
    assert policy.p95_target is policy.ttft_target is policy.pace_target is None


@pytest.mark.parametrize("name", ["interactive_rps_threshold", "interactive_p95_threshold", "smoothing"])
def test_a_policy_beside_a_threshold_is_refused(name: str) -> None:
    assert name in refused("policy", policy=FixedPolicy(3), **{name: 1.0})


def test_smoothing_without_a_threshold_is_refused() -> None:
    assert "interactive_rps_threshold or interactive_p95_threshold" in refused("smoothing", smoothing=2.0)


@pytest.mark.parametrize("policy", [3, object(), lambda now, signals: 3])
def test_what_cannot_decide_is_no_policy(policy: object) -> None:
    assert "advance and decide" in refused("policy", policy=policy)


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf, True, "1"])
def test_a_policys_own_threshold_is_checked_too(threshold: object) -> None:
    class Odd(FixedPolicy):
        p95_threshold = threshold

    assert repr(threshold) in refused("policy.p95_threshold", policy=Odd(3))


def test_a_policy_replaces_the_thresholds_and_a_threshold_the_policy() -> None:
    pressure = Settings(max_concurrency=8, interactive_rps_threshold=20.0, smoothing=3.0)
    fixed = pressure.changed({"policy": FixedPolicy(3)})
    again = fixed.changed({"interactive_p95_threshold": 0.5})

    assert isinstance(fixed.make_policy(), FixedPolicy)
    assert (fixed.interactive_rps_threshold, fixed.smoothing) == (None, None)
    assert isinstance(again.make_policy(), PressurePolicy)
    assert again.policy is None


def test_giving_both_to_configure_is_refused_as_in_the_constructor() -> None:
    settings = Settings(max_concurrency=8)

    with pytest.raises(ConfigError, match=r"^policy takes the place of"):
        settings.changed({"policy": FixedPolicy(3), "interactive_rps_threshold": 20.0})


def test_a_change_is_checked_like_the_first_value() -> None:
    settings = Settings(max_concurrency=8, batch_max_concurrency=6)

    with pytest.raises(ConfigError, match=r"^batch_max_concurrency must be below max_concurrency \(6\), got 6"):
        settings.changed({"max_concurrency": 6})
    with pytest.raises(ConfigError, match=r"^window "):
        settings.changed({"window": math.nan})


@pytest.mark.parametrize("name", ["name", "weight", "max_concurency"])
def test_an_unknown_argument_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"got {name}$"):
        Settings(max_concurrency=8).changed({name: 3})


def test_equal_values_are_equal_settings_and_keep_the_law() -> None:
    settings = Settings(max_concurrency=8, interactive_rps_threshold=20.0)

    same = settings.changed({"interactive_rps_threshold": 20, "max_concurrency": 8})
    other = settings.changed({"max_concurrency": 9})

    assert same == settings
    assert other != settings
    assert other.law == settings.law


def test_admission_gets_the_bounds() -> None:
    settings = Settings(
        max_concurrency=8,
        batch_max_concurrency=5,
        batch_min_concurrency=2,
        max_queued_interactive=0,
        max_queued_batch=7,
        batch_starvation_timeout=None,
    )

    assert settings.limits == Limits(8, 5, 2, 0, 7, None)
