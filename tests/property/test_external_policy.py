"""An outside gauge that shows anything at any time: against the rule of `ExternalPolicy`, written down once more.

Keeps the list under "Properties" in CONTROL.md for it.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from llm_traffic_scheduler import Decision, ExternalPolicy, GaugeReading, LimitPolicy, PressurePolicy, Signals
from tests.support import Law

# In 1/1024 s sums and differences are exact, so a shift in time can be compared bit by bit.
TICKS = st.integers(0, 2**20).map(lambda ticks: ticks / 1024)
STEPS = st.integers(0, 2**15).map(lambda ticks: ticks / 1024)
AGES = st.integers(1, 2**15).map(lambda ticks: ticks / 1024)

good = st.floats(0, 3)
bad: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, "0.5", None, True, [], 10**400]),
    st.floats(max_value=0, exclude_max=True),
    st.builds(ValueError),
    st.builds(MemoryError),
)
# What the source shows at one look: a pressure, one of some age, or nonsense.
shown = st.one_of(good, st.tuples(good, STEPS), bad)


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    batch_max = draw(st.integers(1, 200))
    batch_min = draw(st.integers(1, batch_max))
    return Signals(
        max_concurrency=batch_max + 1,
        batch_max=batch_max,
        batch_min=batch_min,
        rps=draw(st.floats(0, 20)),
        throttled_until=draw(st.one_of(st.just(-math.inf), TICKS)),
    )


class Dial:
    """Shows what it is set to; exceptions are raised."""

    def __init__(self) -> None:
        self.shows: Any = None

    def __call__(self) -> Any:
        if isinstance(self.shows, Exception):
            raise self.shows
        return self.shows


def fallback_law() -> LimitPolicy:
    """Stateful, and moves by itself with time."""
    return PressurePolicy(rps_threshold=10.0, smoothing=5.0)


def also_law() -> LimitPolicy:
    return PressurePolicy(rps_threshold=15.0)


Past = list[tuple[float, Any, Signals]]
pasts = st.lists(st.tuples(STEPS, shown, signals()), max_size=8)
settings = st.fixed_dictionaries(
    {"max_age": AGES, "refresh": AGES},
    optional={"fallback": st.builds(fallback_law), "also": st.builds(also_law)},
)


def look(policy: ExternalPolicy, dial: Dial, now: float, shows: Any, present: Signals) -> bool:
    """One advance; whether it was a fault. A pair is a pressure and its age."""
    dial.shows = GaugeReading(shows[0], now - shows[1]) if isinstance(shows, tuple) else shows
    try:
        policy.advance(now, present)
    except (ValueError, MemoryError):
        return True
    return False


def played(past: Past, start: float = 0.0, shift: float = 0.0, **options: Any) -> tuple[ExternalPolicy, float]:
    dial = Dial()
    policy, now = ExternalPolicy(dial, **options), start
    for step, shows, seen in past:
        now += step
        look(policy, dial, now, shows, replace(seen, throttled_until=seen.throttled_until + shift))
    return policy, now


def is_good(shows: Any) -> bool:
    pressure = shows[0] if isinstance(shows, tuple) else shows
    return type(pressure) is float and 0 <= pressure < math.inf


@given(pasts, settings, signals(), STEPS)
def test_the_last_good_reading_counts_until_it_is_too_old_and_then_it_says_so(
    past: Past, options: dict[str, Any], present: Signals, elapsed: float
) -> None:
    options = {name: value for name, value in options.items() if name not in ("fallback", "also")}
    policy, now = played(past, **options)
    pressure, at, clock = 0.0, -math.inf, 0.0
    for step, shows, _ in past:
        clock += step
        if is_good(shows):
            pressure, at = (shows[0], clock - shows[1]) if isinstance(shows, tuple) else (shows, clock)
    now += elapsed

    decision = policy.decide(now, present)

    if not now < at + options["max_age"]:
        assert (decision.limit, decision.pressure, decision.reason) == (present.batch_min, 1.0, "external_stale")
        return
    if now < present.throttled_until:
        pressure = max(1.0, pressure)
    share = min(1.0, pressure)
    line = max(present.batch_min, round(present.batch_max - (present.batch_max - present.batch_min) * share))
    assert (decision.limit, decision.pressure) == (line, pressure)
    assert decision.reason != "external_stale"


@given(pasts, settings, signals())
def test_each_bad_reading_is_a_fault_and_no_other_is(past: Past, options: dict[str, Any], present: Signals) -> None:
    dial = Dial()
    policy, now = ExternalPolicy(dial, **options), 0.0
    for step, shows, seen in past:
        now += step
        assert look(policy, dial, now, shows, seen) == (shows is not None and not is_good(shows))


@given(pasts, settings, signals(), st.floats())
def test_whatever_the_gauge_shows_the_limit_is_a_whole_number_within_the_bounds(
    past: Past, options: dict[str, Any], present: Signals, now: float
) -> None:
    policy, _ = played(past, **options)

    decision = policy.decide(now, present)

    assert type(decision.limit) is int
    assert present.batch_min <= decision.limit <= present.batch_max
    assert 0 <= decision.pressure < math.inf


@given(pasts, settings, signals(), STEPS)
def test_two_evaluations_at_one_instant_are_equal_and_deciding_changes_no_state(
    past: Past, options: dict[str, Any], present: Signals, elapsed: float
) -> None:
    policy, now = played(past, **options)
    twin = copy(policy)

    first = policy.decide(now + elapsed, present)
    policy.decide(now + elapsed + 100, present)
    policy.decide(now - 1, present)

    assert policy.decide(now + elapsed, present) == first == twin.decide(now + elapsed, present)
    assert policy.reading == twin.reading


@given(pasts, settings, signals(), STEPS, TICKS)
def test_a_shift_in_time_changes_nothing(
    past: Past, options: dict[str, Any], present: Signals, elapsed: float, shift: float
) -> None:
    assume("fallback" not in options)  # its average is shifted in its own tests; here each step is compared exactly
    policy, now = played(past, **options)
    shifted, then = played(past, shift, shift, **options)

    here = policy.decide(now + elapsed, present)
    later = replace(present, throttled_until=present.throttled_until + shift)
    there = shifted.decide(then + elapsed, later)

    assert there == replace(here, valid_until=here.valid_until + shift)


@given(pasts, settings, signals(), STEPS, st.floats(0, 1))
def test_before_valid_until_nothing_changes_unless_the_signals_do(
    past: Past, options: dict[str, Any], present: Signals, elapsed: float, share: float
) -> None:
    if "fallback" in options:  # one that moves by itself, at moments without rounding
        options["fallback"] = Law(lambda now, signals: Decision(int(now) % 7, valid_until=math.floor(now) + 1.0))
    policy, now = played(past, **options)
    now += elapsed
    decision = policy.decide(now, present)
    assert now < decision.valid_until <= now + options["refresh"]

    last = math.nextafter(decision.valid_until, now)
    then = policy.decide(min(last, now + share * (decision.valid_until - now)), present)

    assert (then.limit, then.reason) == (decision.limit, decision.reason)


@given(good, AGES, AGES, signals())
def test_a_reading_becomes_stale_exactly_when_it_was_said_to(
    pressure: float, max_age: float, refresh: float, present: Signals
) -> None:
    policy = ExternalPolicy(lambda: pressure, max_age=max_age, refresh=refresh)
    policy.advance(0.0, present)
    now, reasons = 0.0, set()
    while now < max_age:
        decision = policy.decide(now, replace(present, throttled_until=-math.inf))
        reasons.add(decision.reason)
        assert decision.valid_until == min(now + refresh, max_age)
        now = max(decision.valid_until, max_age - refresh)

    assert reasons == {"external"}
    assert policy.decide(now, present).reason == "external_stale"


@given(st.lists(good, min_size=2, max_size=6), signals())
def test_more_pressure_never_raises_the_limit(pressures: list[float], present: Signals) -> None:
    limits = []
    for pressure in sorted(pressures):
        policy = ExternalPolicy(lambda pressure=pressure: pressure)  # type: ignore[misc]
        policy.advance(0.0, present)
        limits.append(policy.decide(0.0, present).limit)

    assert limits == sorted(limits, reverse=True)


@given(pasts, settings, signals(), STEPS, st.integers(1, 200))
def test_the_second_law_is_never_exceeded(
    past: Past, options: dict[str, Any], present: Signals, elapsed: float, ceiling: int
) -> None:
    options["also"] = Law(lambda now, signals: Decision(ceiling))
    policy, now = played(past, **options)

    assert policy.decide(now + elapsed, present).limit <= ceiling
