"""The pressure law on any signals: against CONTROL.md's formula, written down once more and in fractions.

Keeps the list under "Properties" in CONTROL.md, as far as it is about PressurePolicy without a scheduler.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm_traffic_scheduler import Decision, PressurePolicy, Signals

NUMBERS = ("rps", "p50", "p95", "p99", "p95_finished", "oldest_unfinished", "throttled_until")
# In 1/1024 s up to 12 days, sums and differences are exact, so a shift in time can be compared bit by bit.
TICKS = st.integers(0, 2**30).map(lambda ticks: ticks / 1024)
SIGNAL = st.floats(0, 1e6)
ROUNDING = 1e-9
NO_SMOOTHING = st.none()
ANY_SMOOTHING = st.one_of(NO_SMOOTHING, st.floats(0.1, 60.0))

thresholds = st.one_of(
    st.tuples(st.floats(1e-3, 1e3), st.none()),
    st.tuples(st.none(), st.floats(1e-3, 1e3)),
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
)


@st.composite
def policies(draw: st.DrawFn, smoothing: st.SearchStrategy[float | None] = NO_SMOOTHING) -> PressurePolicy:
    rps, p95 = draw(thresholds)
    return PressurePolicy(rps, p95, draw(smoothing))


@st.composite
def signals(draw: st.DrawFn, numbers: st.SearchStrategy[float] = SIGNAL) -> Signals:
    batch_max = draw(st.integers(1, 200))
    batch_min = draw(st.integers(1, batch_max))
    bounds = Signals(max_concurrency=batch_max + 1, batch_max=batch_max, batch_min=batch_min)
    values = {name: draw(numbers) for name in NUMBERS[:-1]}
    return replace(bounds, **values, throttled_until=draw(st.one_of(st.just(-math.inf), TICKS)))  # type: ignore[arg-type]


@st.composite
def near_signals(draw: st.DrawFn, policy: PressurePolicy) -> Signals:
    """Signals around the thresholds, where the limit moves."""
    share = st.floats(0, 1.3)
    return replace(
        draw(signals()),
        rps=draw(share) * (policy.rps_threshold or 1.0),
        p95=draw(share) * (policy.p95_threshold or 1.0),
        p95_finished=draw(share) * (policy.p95_threshold or 1.0),
        throttled_until=-math.inf,
        oldest_unfinished=0.0,
    )


smoothing_policies = policies(st.floats(0.125, 64.0))


def oracle(policy: PressurePolicy, now: float, signals: Signals) -> tuple[int, float]:
    """Limit and pressure as CONTROL.md says them."""
    rps_pressure = signals.rps / policy.rps_threshold if policy.rps_threshold is not None else 0.0
    latency_pressure = signals.p95 / policy.p95_threshold if policy.p95_threshold is not None else 0.0
    pressure = max(rps_pressure, latency_pressure)
    if now < signals.throttled_until:
        pressure = max(pressure, 1.0)
    return limit_for(pressure, signals), pressure


def limit_for(pressure: float, signals: Signals) -> int:
    clamped = min(max(pressure, 0.0), 1.0)
    limit = round(signals.batch_max - (signals.batch_max - signals.batch_min) * clamped)
    return max(limit, signals.batch_min)


def exact_place(pressure: float, signals: Signals) -> Fraction:
    """Where in the batch range a pressure lies; the limit steps at the halves."""
    return Fraction(min(max(pressure, 0.0), 1.0)) * (signals.batch_max - signals.batch_min)


def at_a_step(pressure: float, signals: Signals) -> bool:
    """So near to a half that rounding of the pressure decides which limit it is."""
    return abs(exact_place(pressure, signals) % 1 - Fraction(1, 2)) < Fraction(ROUNDING) * (1 + signals.batch_max)


@given(policies(), TICKS, signals())
def test_the_limit_is_the_formula_on_the_policys_own_signals(
    policy: PressurePolicy, now: float, signals: Signals
) -> None:
    decision = policy.decide(now, signals)

    assert (decision.limit, decision.pressure) == oracle(policy, now, signals)


@given(policies(), TICKS, signals())
def test_the_limit_is_the_nearest_whole_number_to_the_exact_line(
    policy: PressurePolicy, now: float, signals: Signals
) -> None:
    decision = policy.decide(now, signals)

    exact = signals.batch_max - exact_place(decision.pressure, signals)
    assert abs(decision.limit - exact) <= Fraction(1, 2) + Fraction(ROUNDING)


@given(
    policies(ANY_SMOOTHING),
    st.lists(st.tuples(st.floats(), signals(st.floats())), min_size=1, max_size=5),
    signals(st.floats()),
    st.floats(),
)
def test_whatever_the_input_the_limit_is_a_whole_number_within_the_bounds(
    policy: PressurePolicy, past: list[tuple[float, Signals]], present: Signals, now: float
) -> None:
    for at, seen in past:
        policy.advance(at, seen)
    decision = policy.decide(now, present)

    assert type(decision.limit) is int
    assert present.batch_min <= decision.limit <= present.batch_max


@pytest.mark.parametrize("name", ["rps", "p95"])
@given(policies(), TICKS, signals(), st.data())
def test_more_of_a_signal_never_raises_the_limit(
    name: str, policy: PressurePolicy, now: float, signals: Signals, data: st.DataObject
) -> None:
    value = getattr(signals, name)
    higher: dict[str, Any] = {name: data.draw(st.floats(value, 2 * value + 10))}
    more = replace(signals, **higher)
    longer = replace(more, throttled_until=data.draw(st.floats(min_value=signals.throttled_until)))

    limits = [policy.decide(now, seen).limit for seen in (signals, more, longer)]

    assert limits == sorted(limits, reverse=True)


@given(policies(), signals(), st.booleans())
def test_the_endpoints_are_exact(policy: PressurePolicy, signals: Signals, by_rate: bool) -> None:
    by_rate = policy.p95_threshold is None or (by_rate and policy.rps_threshold is not None)
    calm = replace(signals, rps=0.0, p95=0.0, throttled_until=-math.inf)
    at_rate, at_latency = replace(calm, rps=policy.rps_threshold or 0.0), replace(calm, p95=policy.p95_threshold or 0.0)

    assert policy.decide(0.0, calm) == Decision(signals.batch_max, 0.0, "calm", math.inf)
    full = policy.decide(0.0, at_rate if by_rate else at_latency)
    assert (full.limit, full.pressure) == (signals.batch_min, 1.0)


@given(policies(ANY_SMOOTHING), TICKS, st.lists(signals(), max_size=5), TICKS)
def test_two_evaluations_at_one_instant_are_equal(
    policy: PressurePolicy, start: float, past: list[Signals], elapsed: float
) -> None:
    for step, seen in enumerate(past):
        policy.advance(start + step, seen)
    present = past[-1] if past else Signals(batch_max=10)
    now = start + elapsed

    first = policy.decide(now, present)
    policy.decide(now + 1, present)
    policy.decide(now - 1, present)

    assert policy.decide(now, present) == first


@given(smoothing_policies, st.lists(st.tuples(TICKS, signals()), min_size=1, max_size=6), TICKS, TICKS)
def test_a_shift_in_time_changes_nothing(
    policy: PressurePolicy, past: list[tuple[float, Signals]], elapsed: float, shift: float
) -> None:
    shifted = policy.replica()
    now, present = 0.0, past[-1][1]
    for step, seen in past:
        now += step
        policy.advance(now, seen)
        shifted.advance(now + shift, replace(seen, throttled_until=seen.throttled_until + shift))
    now += elapsed

    here = policy.decide(now, present)
    there = shifted.decide(now + shift, replace(present, throttled_until=present.throttled_until + shift))

    assert (there.limit, there.pressure, there.reason) == (here.limit, here.pressure, here.reason)
    assert there.valid_until == pytest.approx(here.valid_until + shift)


@given(
    smoothing_policies,
    st.lists(st.tuples(st.floats(1e-3, 30.0), st.floats(0, 100.0)), min_size=1, max_size=8),
    st.floats(0, 60.0),
)
def test_the_average_is_the_exponential_one(
    policy: PressurePolicy, past: list[tuple[float, float]], elapsed: float
) -> None:
    """y += (1 - exp(-dt / tau)) * (x_held - y), term by term from CONTROL.md."""
    assert policy.smoothing is not None
    average = held = now = 0.0
    for step, level in past:
        now += step
        average += (1 - math.exp(-step / policy.smoothing)) * (held - average)
        rps, p95 = level, level / 3
        held = max(rps / (policy.rps_threshold or math.inf), p95 / (policy.p95_threshold or math.inf))
        policy.advance(now, Signals(batch_max=10, rps=rps, p95_finished=p95))
    average += (1 - math.exp(-elapsed / policy.smoothing)) * (held - average)

    decision = policy.decide(now + elapsed, Signals(batch_max=10))

    assert decision.pressure == pytest.approx(average, rel=1e-9, abs=1e-9)
    assert decision.limit == limit_for(decision.pressure, Signals(batch_max=10))


@given(smoothing_policies, st.data())
def test_the_average_does_not_depend_on_how_often_anybody_looks(policy: PressurePolicy, data: st.DataObject) -> None:
    often = policy.replica()
    now, present = 0.0, Signals(batch_max=10)
    for _ in range(data.draw(st.integers(1, 6))):
        start, now = now, now + data.draw(st.floats(0.01, 20.0))
        for share in sorted(data.draw(st.lists(st.floats(0, 1), max_size=4))):
            # Nothing has changed in between, so the same signals hold.
            often.advance(start + share * (now - start), present)
            often.decide(start + share * (now - start), present)
        present = data.draw(near_signals(policy))
        policy.advance(now, present)
        often.advance(now, present)

    seldom_seen, often_seen = policy.decide(now + 1, present), often.decide(now + 1, present)

    assert often_seen.pressure == pytest.approx(seldom_seen.pressure, rel=1e-9, abs=1e-12)
    assert often_seen.limit == seldom_seen.limit or at_a_step(seldom_seen.pressure, present)


@given(smoothing_policies, st.floats(0.25, 60.0), st.floats(0, 30.0), st.floats(0, 1, exclude_max=True), st.data())
def test_a_decision_stands_until_its_valid_until_and_then_moves(
    policy: PressurePolicy, settled: float, elapsed: float, share: float, data: st.DataObject
) -> None:
    before, present = data.draw(near_signals(policy)), data.draw(near_signals(policy))
    policy.advance(0.0, before)
    policy.advance(settled, present)
    now = settled + elapsed

    decision = policy.decide(now, present)
    assume(not at_a_step(decision.pressure, present))  # there the next moment has another limit

    end = min(decision.valid_until, now + 1000.0)
    assert end > now
    then = policy.decide(now + share * (end - now), present)
    assert then.limit == decision.limit or at_a_step(then.pressure, present)
    at_the_end = policy.decide(end, present)
    if decision.valid_until < math.inf and at_the_end.pressure < 1:  # above 1 the limit has no steps left
        # As far past the step as the pressure needs to be told from it.
        after = policy.decide(end + 0.001 * (end - now) + 1e-6, present)
        assert after.limit != decision.limit or at_a_step(after.pressure, present)


@given(policies(ANY_SMOOTHING), signals(), TICKS, st.floats(1e-3, 1e3))
def test_throttling_is_full_pressure_at_once_and_ends_at_once(
    policy: PressurePolicy, signals: Signals, now: float, rest: float
) -> None:
    policy.advance(now, signals)
    until = now + rest
    throttled = replace(signals, throttled_until=until)
    free = replace(signals, throttled_until=-math.inf)

    during = policy.decide(now, throttled)

    assert during.limit == signals.batch_min
    assert during.pressure == max(1.0, policy.decide(now, free).pressure)
    assert during.reason == "throttled" or policy.decide(now, free).pressure >= 1
    assert during.valid_until == min(until, policy.decide(now, free).valid_until)
    assert policy.decide(until, throttled) == policy.decide(until, free)


@given(smoothing_policies, signals(), TICKS)
def test_an_unfinished_call_acts_unsmoothed_as_soon_as_it_has_joined(
    policy: PressurePolicy, signals: Signals, now: float
) -> None:
    assume(policy.p95_threshold is not None)
    assert policy.p95_threshold is not None
    policy.advance(now, replace(signals, rps=0.0, p95_finished=0.0))
    free = replace(signals, throttled_until=-math.inf)
    joined = replace(free, oldest_unfinished=math.nextafter(policy.p95_threshold, math.inf))
    not_yet = replace(free, oldest_unfinished=policy.p95_threshold)

    assert policy.decide(now, joined).pressure == max(0.0, signals.p95 / policy.p95_threshold)
    assert policy.decide(now, not_yet).pressure == 0.0


@given(policies(ANY_SMOOTHING), st.lists(signals(), max_size=4), signals(), TICKS)
def test_deciding_changes_no_state(policy: PressurePolicy, past: list[Signals], present: Signals, now: float) -> None:
    for step, seen in enumerate(past):
        policy.advance(float(step), seen)
    twin = copy(policy)

    for at in (now, now + 5, 0.0):
        policy.decide(at, present)

    policy.advance(now, present)
    twin.advance(now, present)
    assert policy.decide(now + 1, present) == twin.decide(now + 1, present)
