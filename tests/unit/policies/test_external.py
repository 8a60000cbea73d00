"""An outside gauge as pressure: readings that are fresh, stale, bad, or from another clock.

Keeps the part of API.md and CONTROL.md on `ExternalPolicy`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    Decision,
    ExternalPolicy,
    FixedPolicy,
    GaugeReading,
    PressurePolicy,
    Signals,
)
from tests.support import Law
from tests.unit.policies.gauged import SIGNALS, Dial, Told, looked

# The law


@pytest.mark.parametrize("pressure, limit", [(0, 10), (0.25, 8), (0.5, 6), (1, 2), (1.0, 2), (7.5, 2), (2**70, 2)])
def test_the_limit_is_the_straight_line_on_what_the_gauge_shows(pressure: float, limit: int) -> None:
    decision = looked(ExternalPolicy(Dial(pressure))).decide(0.0, SIGNALS)

    assert (decision.limit, decision.pressure, decision.reason) == (limit, float(pressure), "external")
    assert type(decision.pressure) is float


def test_a_plain_number_holds_from_the_moment_it_was_looked_at() -> None:
    policy = looked(ExternalPolicy(Dial(0.5), max_age=10, refresh=100), 7.0)

    assert policy.reading == GaugeReading(0.5, 7.0)
    assert policy.decide(16.9, SIGNALS) == Decision(6, 0.5, "external", 17.0)
    assert policy.decide(17.0, SIGNALS).reason == "external_stale"


def test_a_reading_with_a_time_is_as_old_as_it_says_however_late_it_is_seen() -> None:
    policy = looked(ExternalPolicy(Dial(GaugeReading(0.5, 7.0)), max_age=10, refresh=100), 16.0)

    assert policy.decide(16.0, SIGNALS) == Decision(6, 0.5, "external", 17.0)
    assert policy.decide(17.0, SIGNALS) == Decision(2, 1.0, "external_stale", 117.0)


def test_only_advancing_looks_at_the_gauge() -> None:
    dial = Dial(0.5)
    policy = looked(ExternalPolicy(dial))
    dial.shows = 1.0

    assert policy.decide(0.1, SIGNALS).limit == 6
    assert looked(policy, 0.2).decide(0.2, SIGNALS).limit == 2


def test_a_decision_stands_for_refresh_at_most_so_that_waiting_work_looks_again() -> None:
    policy = looked(ExternalPolicy(Dial(0.5), max_age=10, refresh=2))

    assert policy.decide(1.0, SIGNALS).valid_until == 3.0
    assert policy.decide(9.0, SIGNALS).valid_until == 10.0
    assert policy.decide(50.0, SIGNALS).valid_until == 52.0


# Stale


def test_before_the_first_reading_the_minimum_holds_and_says_so() -> None:
    assert looked(ExternalPolicy(Dial())).decide(3.0, SIGNALS) == Decision(2, 1.0, "external_stale", 4.0)


def test_no_new_reading_leaves_the_old_one_until_its_age_is_over() -> None:
    dial = Dial(0.5)
    policy = looked(ExternalPolicy(dial, max_age=10))
    dial.shows = None
    looked(policy, 9.0)

    assert policy.decide(9.5, SIGNALS).limit == 6
    assert policy.decide(10.0, SIGNALS).reason == "external_stale"


def test_a_stale_gauge_that_comes_back_is_followed_at_once() -> None:
    dial = Dial()
    policy = looked(ExternalPolicy(dial))
    dial.shows = 0.0

    assert looked(policy, 60.0).decide(60.0, SIGNALS).limit == 10


def test_a_reading_from_the_far_future_is_stale_until_its_time_has_come() -> None:
    policy = looked(ExternalPolicy(Dial(GaugeReading(0.5, 1000.0)), max_age=10, refresh=5))

    assert policy.decide(0.0, SIGNALS) == Decision(2, 1.0, "external_stale", 5.0)
    assert policy.decide(987.0, SIGNALS) == Decision(2, 1.0, "external_stale", 990.0)
    assert policy.decide(990.0, SIGNALS).limit == 6


def test_while_stale_the_fallback_decides_under_the_name_of_stale() -> None:
    policy = looked(ExternalPolicy(Dial(), fallback=Told(5), refresh=2))

    assert policy.decide(0.0, SIGNALS) == Decision(5, 0.4, "external_stale", 2.0)


def test_a_fallback_that_wants_to_be_asked_sooner_is() -> None:
    policy = looked(ExternalPolicy(Dial(), fallback=Law(lambda now, signals: Decision(5, valid_until=now + 0.5))))

    assert policy.decide(4.0, SIGNALS).valid_until == 4.5


def test_while_fresh_the_fallback_is_not_asked_but_kept_up_to_date() -> None:
    fallback = Told(5)
    policy = looked(ExternalPolicy(Dial(0.0), fallback=fallback))

    assert policy.decide(0.0, SIGNALS).limit == 10
    assert (fallback.advanced, fallback.decided) == ([(0.0, 0.0)], [])


# Throttling


@pytest.mark.parametrize("shows, pressure, reason", [(0.25, 1.0, "throttled"), (1.5, 1.5, "external")])
def test_while_the_backend_asks_us_to_wait_the_pressure_is_full(shows: float, pressure: float, reason: str) -> None:
    policy = looked(ExternalPolicy(Dial(shows), refresh=10))
    throttled = Signals(max_concurrency=12, batch_max=10, batch_min=2, throttled_until=3.0)

    assert policy.decide(2.0, throttled) == Decision(2, pressure, reason, 3.0)
    assert policy.decide(3.0, throttled) == policy.decide(3.0, SIGNALS)


def test_while_stale_throttling_does_not_hide_it() -> None:
    policy = looked(ExternalPolicy(Dial()))

    assert policy.decide(2.0, Signals(batch_max=10, batch_min=2, throttled_until=3.0)).reason == "external_stale"


# A second law


@pytest.mark.parametrize(
    "shows, limit, expected",
    [
        (0.5, 4, (4, 0.4, "told")),
        (0.5, 6, (6, 0.5, "external")),
        (0.5, 9, (6, 0.5, "external")),
        (None, 9, (2, 1.0, "external_stale")),
        (None, 1, (1, 0.4, "external_stale")),
    ],
)
def test_with_also_the_smaller_limit_holds_and_stale_is_never_hidden(
    shows: float | None, limit: int, expected: tuple[int, float, str]
) -> None:
    decision = looked(ExternalPolicy(Dial(shows), also=Told(limit))).decide(0.0, SIGNALS)

    assert (decision.limit, decision.pressure, decision.reason) == expected


@pytest.mark.parametrize("shows", [0.0, 1.0, None])
def test_whichever_law_changes_first_says_when_to_ask_again(shows: float | None) -> None:
    policy = looked(
        ExternalPolicy(Dial(shows), also=Law(lambda now, signals: Decision(5, valid_until=now + 0.25)), refresh=1)
    )

    assert policy.decide(1.0, SIGNALS).valid_until == 1.25


def test_also_and_fallback_together_let_also_rule_while_the_gauge_is_stale() -> None:
    policy = looked(ExternalPolicy(Dial(), fallback=FixedPolicy(10), also=Told(7)))

    assert policy.decide(0.0, SIGNALS).limit == 7


def test_the_laws_inside_see_what_the_gauge_shows_while_it_is_fresh() -> None:
    fallback, also = Told(), Told()
    policy = ExternalPolicy(Dial(GaugeReading(0.5, 0.0)), fallback=fallback, also=also, max_age=10)
    for now in (1.0, 11.0):
        policy.advance(now, SIGNALS)
        policy.decide(now, SIGNALS)

    assert fallback.advanced == also.advanced == [(1.0, 0.5), (11.0, None)]
    assert (fallback.decided, also.decided) == ([None], [0.5, None])


@pytest.mark.parametrize("broken", ["source", "fallback", "also"])
def test_whichever_part_raises_the_others_are_told(broken: str) -> None:
    def fail(now: float, signals: Signals) -> None:
        raise ZeroDivisionError

    told = Told()
    parts: dict[str, Any] = {"source": Dial(0.5), "fallback": told, "also": told}
    parts[broken] = Dial(ZeroDivisionError()) if broken == "source" else Law(lambda now, signals: None, fail)
    if broken == "source":
        parts["fallback"] = Told()
    policy = ExternalPolicy(**parts)
    with pytest.raises(ZeroDivisionError):
        policy.advance(1.0, SIGNALS)

    assert len(told.advanced) == 1
    assert (policy.reading is None) == (broken == "source")


# Bad readings

BAD = [math.nan, math.inf, -math.inf, -0.1, -1, "0.5", True, [0.5], 10**400, 1j, object()]


@pytest.mark.parametrize("bad", BAD, ids=[repr(bad)[:20] for bad in BAD])
@pytest.mark.parametrize("with_time", [False, True])
def test_a_reading_that_is_no_pressure_is_a_fault_and_counts_as_no_reading(bad: Any, with_time: bool) -> None:
    dial = Dial(0.5)
    policy = looked(ExternalPolicy(dial, max_age=10))
    dial.shows = GaugeReading(bad, 5.0) if with_time else bad
    with pytest.raises(ConfigError, match="an outside gauge's reading must be"):
        policy.advance(5.0, SIGNALS)

    assert policy.decide(9.0, SIGNALS).limit == 6
    assert policy.decide(10.0, SIGNALS).reason == "external_stale"


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, "now", None, True])
def test_a_reading_whose_time_is_no_time_is_a_fault_and_counts_as_no_reading(at: Any) -> None:
    policy = ExternalPolicy(Dial(GaugeReading(0.5, at)))
    with pytest.raises(ConfigError, match="the time of an outside gauge's reading must be a finite number"):
        policy.advance(0.0, SIGNALS)

    assert policy.reading is None


def test_an_old_reading_in_place_of_a_newer_one_is_as_old_as_it_says() -> None:
    dial = Dial(GaugeReading(0.5, 20.0))
    policy = looked(ExternalPolicy(dial, max_age=10), 20.0)
    dial.shows = GaugeReading(0.0, 5.0)

    assert looked(policy, 21.0).decide(21.0, SIGNALS).reason == "external_stale"


def test_one_bad_report_is_one_fault_however_often_it_is_seen() -> None:
    policy = ExternalPolicy(Dial(GaugeReading(math.nan, 0.0)))
    with pytest.raises(ConfigError):
        policy.advance(0.0, SIGNALS)
    policy.advance(0.1, SIGNALS)

    assert policy.decide(0.1, SIGNALS).reason == "external_stale"


def test_a_function_that_returns_the_same_number_again_has_said_it_again() -> None:
    policy = ExternalPolicy(Dial(0.5), max_age=10)
    for now in (0.0, 9.0):
        policy.advance(now, SIGNALS)

    assert policy.decide(18.0, SIGNALS).limit == 6


def test_what_the_source_raises_is_a_fault_and_counts_as_no_reading() -> None:
    dial = Dial(0.5)
    policy = looked(ExternalPolicy(dial))
    dial.shows = ConnectionError("no route")
    with pytest.raises(ConnectionError, match="no route"):
        policy.advance(5.0, SIGNALS)

    assert policy.decide(5.0, SIGNALS).limit == 6


# The door


@pytest.mark.parametrize("source", [0.5, None, Dial])
def test_a_source_is_something_to_ask(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"^source must be a Gauge or a plain function"):
        ExternalPolicy(source)


def test_a_coroutine_function_is_no_source() -> None:
    async def ask() -> float:
        return 0.5

    with pytest.raises(ConfigError, match=r"^source must be a Gauge or a plain function"):
        ExternalPolicy(ask)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_age", "refresh"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, None, "5", True])
def test_times_are_finite_and_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be a finite number above 0"):
        ExternalPolicy(Dial(), **{name: value})


@pytest.mark.parametrize("name", ["fallback", "also"])
@pytest.mark.parametrize("value", [3, FixedPolicy, object()])
def test_a_law_inside_is_a_policy(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be an object with the methods advance and decide"):
        ExternalPolicy(Dial(), **{name: value})


def test_one_object_cannot_be_both_laws_inside() -> None:
    law = PressurePolicy(5)

    with pytest.raises(ConfigError, match=r"^also brings in .* a second time"):
        ExternalPolicy(Dial(), fallback=law, also=law)


def test_repr_shows_how_it_was_made() -> None:
    assert repr(ExternalPolicy(Dial())) == "ExternalPolicy(<dial>, max_age=15.0, refresh=1.0)"
    assert repr(ExternalPolicy(Dial(), also=FixedPolicy(3))).endswith(", also=FixedPolicy(3))")
