"""Every impossible value is refused where it is set, by the constructor and by `configure` alike."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import pytest

from llm_traffic_scheduler import ConfigError, FixedPolicy, PressurePolicy, TrafficScheduler

NAN: Final = math.nan
INF: Final = math.inf
HUGE: Final = 2**70
BEYOND_FLOATS: Final = 10**400

NO_NUMBER: Final[tuple[Any, ...]] = (True, False, "3", [], 1j)
NO_COUNT: Final[tuple[Any, ...]] = (1.5, 3.0, NAN, INF, *NO_NUMBER)

# Per argument: what it refuses, and what it takes. Everything else of the constructor is as in `settings`.
TABLE: Final[dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]] = {
    "max_concurrency": ((-1, 0, 1, 6, None, *NO_COUNT), (7, 8, HUGE)),
    "batch_max_concurrency": ((-1, 0, 8, 9, HUGE, *NO_COUNT), (None, 1, 7)),
    "batch_min_concurrency": ((-1, 0, 7, HUGE, None, *NO_COUNT), (1, 6)),
    "interactive_rps_threshold": ((-1, 0, -0.0, NAN, INF, -INF, BEYOND_FLOATS, *NO_NUMBER), (None, 1, 1.5, HUGE, 1e-9)),
    "interactive_p95_threshold": ((-1, 0, -0.0, NAN, INF, -INF, BEYOND_FLOATS, *NO_NUMBER), (None, 1, 1.5, HUGE, 1e-9)),
    "window": ((-1, 0, -0.0, 5e-324, NAN, INF, -INF, BEYOND_FLOATS, HUGE, None, *NO_NUMBER), (1, 1.5, 1e9, 1e-3)),
    "smoothing": ((-1, 0, -0.0, NAN, INF, -INF, BEYOND_FLOATS, *NO_NUMBER), (None, 1, 1.5, HUGE)),
    "policy": (("fixed", 3, True, [], PressurePolicy, FixedPolicy, lambda now, signals: 3), (None,)),
    "interactive_queue_timeout": ((NAN, *NO_NUMBER), (None, -1, 0, 1.5, INF, HUGE)),
    "batch_queue_timeout": ((NAN, *NO_NUMBER), (None, -1, 0, 1.5, INF, HUGE)),
    "interactive_run_timeout": ((-1, 0, -0.0, -INF, NAN, *NO_NUMBER), (None, 1, 1.5, INF, HUGE)),
    "batch_run_timeout": ((-1, 0, -0.0, -INF, NAN, *NO_NUMBER), (None, 1, 1.5, INF, HUGE)),
    "max_queued_interactive": ((-1, -HUGE, *NO_COUNT), (None, 0, 1, HUGE)),
    "max_queued_batch": ((-1, -HUGE, *NO_COUNT), (None, 0, 1, HUGE)),
    "max_running_per_tenant": ((-1, 0, -HUGE, *NO_COUNT), (None, 1, HUGE)),
    "batch_starvation_timeout": ((-1, -INF, NAN, *NO_NUMBER), (None, 0, 1.5, INF, HUGE)),
    "close_timeout": ((-1, -INF, NAN, *NO_NUMBER), (None, 0, 1.5, INF, HUGE)),
    "name": ((-1, 0, 1.5, NAN, INF, True, None, HUGE, b"x", []), ("", "gateway")),
}


def settings() -> dict[str, Any]:
    """A constructor's arguments with which each argument of the table may take each of its good values."""
    return {"max_concurrency": 8, "batch_max_concurrency": 6, "interactive_rps_threshold": 5.0}


REFUSED = [(name, value) for name, (bad, _) in TABLE.items() for value in bad]
TAKEN = [(name, value) for name, (_, good) in TABLE.items() for value in good]


def case_id(value: object) -> str:
    return re.sub(r"\s|0x\w+", "", repr(value))[:40]


def test_the_table_knows_every_argument() -> None:
    assert set(TABLE) == set(TrafficScheduler.__init__.__kwdefaults__ or {}) | {"max_concurrency"}


@pytest.mark.parametrize("name, value", REFUSED, ids=case_id)
def test_an_impossible_value_is_refused_with_its_name_the_rule_and_the_value(name: str, value: Any) -> None:
    arguments = {**settings(), name: value}
    if name == "policy":
        del arguments["interactive_rps_threshold"]

    with pytest.raises(ConfigError) as refusal:
        TrafficScheduler(**arguments)

    text = str(refusal.value)
    # A cap that no longer leaves room for batch is told from batch's side, with both numbers.
    assert re.match(f"{name} must (be|have) ", text) or (name == "max_concurrency" and f"{name} ({value})" in text)
    assert repr(value) in text
    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize("name, value", [case for case in REFUSED if case[0] != "name"], ids=case_id)
def test_configure_refuses_what_the_constructor_refuses_and_changes_nothing(name: str, value: Any) -> None:
    scheduler = TrafficScheduler(**settings())
    before = scheduler.snapshot()

    with pytest.raises(ConfigError, match=r" must (be|have) "):
        scheduler.configure(**{name: value})

    assert scheduler.snapshot() == before


@pytest.mark.parametrize("name, value", TAKEN, ids=case_id)
def test_a_possible_value_is_taken_by_the_constructor_and_by_configure(name: str, value: Any) -> None:
    arguments = {**settings(), name: value}
    scheduler = TrafficScheduler(**arguments)
    scheduler.snapshot()
    scheduler.check()
    if name != "name":
        other = TrafficScheduler(**settings())
        other.configure(**{name: value})
        assert other.snapshot() == scheduler.snapshot()


@pytest.mark.parametrize(
    "arguments, rule",
    [
        (
            {"max_concurrency": 8, "batch_max_concurrency": 8},
            "batch_max_concurrency must be below max_concurrency (8), got 8: "
            "interactive calls need a slot that batch can never hold",
        ),
        (
            {"max_concurrency": 4, "batch_min_concurrency": 4},
            "batch_min_concurrency must be at most batch_max_concurrency (3), got 4",
        ),
        ({"max_concurrency": 4, "smoothing": 2.0}, "smoothing needs a threshold to smooth the pressure of"),
        (
            {"max_concurrency": 4, "policy": FixedPolicy(2), "interactive_p95_threshold": 1.0},
            "policy takes the place of the law built from interactive_p95_threshold: give one or the other",
        ),
        (
            {"max_concurrency": 4, "policy": FixedPolicy(2), "interactive_rps_threshold": 1.0},
            "interactive_rps_threshold",
        ),
        ({"max_concurrency": 4, "policy": FixedPolicy(2), "smoothing": 1.0}, "built from smoothing"),
    ],
)
def test_values_that_do_not_go_together_are_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(rule)):
        TrafficScheduler(**arguments)


@pytest.mark.parametrize("threshold", [-1, 0, NAN, INF, True, "3", BEYOND_FLOATS])
def test_a_policy_with_an_impossible_threshold_for_unfinished_calls_is_refused(threshold: Any) -> None:
    policy = FixedPolicyWithThreshold(threshold)

    with pytest.raises(ConfigError, match=r"policy\.p95_threshold must be a finite number above 0, got "):
        TrafficScheduler(max_concurrency=4, policy=policy)


class FixedPolicyWithThreshold:
    """Two calls, and unfinished ones join above a threshold that may be nonsense."""

    def __init__(self, p95_threshold: Any) -> None:
        self.p95_threshold = p95_threshold
        self._policy = FixedPolicy(2)
        self.advance, self.decide = self._policy.advance, self._policy.decide


@pytest.mark.parametrize("value", [-1, 0, 1.5, NAN, INF, True, "3", None])
def test_a_fixed_limit_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(ConfigError, match="limit must be "):
        FixedPolicy(value)


@pytest.mark.parametrize("name", ["rps_threshold", "p95_threshold", "smoothing"])
@pytest.mark.parametrize("value", [-1, 0, NAN, INF, True, "3", BEYOND_FLOATS])
def test_a_pressure_policy_refuses_what_is_no_number_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a finite number above 0, got "):
        PressurePolicy(**{"p95_threshold": 1.0, name: value})


def test_a_pressure_policy_needs_a_threshold() -> None:
    with pytest.raises(ConfigError, match="PressurePolicy needs rps_threshold or p95_threshold, got neither"):
        PressurePolicy(smoothing=1.0)


def test_arguments_are_given_by_name_and_the_cap_is_required() -> None:
    with pytest.raises(TypeError):
        TrafficScheduler(8)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        TrafficScheduler()  # type: ignore[call-arg]
