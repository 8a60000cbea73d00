"""The adaptive law on any traffic that a scheduler can tell it of: the list under "Properties" in CONTROL.md."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llm_traffic_scheduler import AdaptivePolicy, Arrived, Decision, Ended, FirstToken, Signals
from llm_traffic_scheduler.policies.objective import _AGE_SHARE, _EXPONENT, _HEAVIEST, _KEPT, _TRIM, Objective

Outcome: TypeAlias = Literal["completed", "failed", "cancelled", "timed_out", "rejected"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "completed", "completed", "failed", "cancelled", "timed_out", "rejected")

# In 1/1024 s sums and differences of times are exact, so a shift in time can be compared.
TICK = 1 / 1024
SPANS = st.one_of(st.integers(0, 2**8), st.integers(0, 2**14), st.integers(0, 2**18)).map(lambda ticks: ticks * TICK)
SHIFTS = st.integers(-(2**28), 2**28).map(lambda ticks: ticks * TICK)
TARGETS = st.sampled_from([0.25, 8.0, 64.0])
ROUNDING = 1e-7


@dataclass(frozen=True)
class Step:
    """One thing that happens, `after` seconds from the one before."""

    what: str
    after: float
    which: int = 0
    outcome: Outcome = "completed"
    tokens: int = 0


@dataclass
class Play:
    """A policy, the traffic it hears of, and a clock."""

    policy: AdaptivePolicy
    bounds: Signals
    now: float = 0.0
    calls: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, float] = field(default_factory=dict)
    batch_running: int = 0
    throttled_until: float = -math.inf
    number: int = 0

    def __post_init__(self) -> None:
        self.policy.advance(self.now, self.signals)

    @property
    def signals(self) -> Signals:
        bounds, queued = self.bounds, len(self.calls) // 2
        return Signals(
            max_concurrency=bounds.max_concurrency,
            batch_max=bounds.batch_max,
            batch_min=bounds.batch_min,
            interactive_running=len(self.calls) - queued,
            interactive_queued=queued,
            batch_running=self.batch_running,
            throttled_until=self.throttled_until,
        )

    def act(self, step: Step) -> None:
        self.now += step.after
        if step.what == "advance":
            self.batch_running = step.which % (self.bounds.batch_max + 1)
            self.policy.advance(self.now, self.signals)
        elif step.what == "throttle":
            self.throttled_until = max(self.throttled_until, self.now + step.which)
        elif step.what == "stranger":
            self.policy.observe(self.now, Ended(-1 - step.which, step.after, outcome=step.outcome))
        elif step.what == "arrive" or not self.calls:
            self.number += 1
            self.calls[self.number] = self.now
            self.policy.observe(self.now, Arrived(self.number))
        else:
            self.end(step, list(self.calls)[step.which % len(self.calls)])

    def check(self) -> None:
        for objective in self.policy._objectives:
            objective.check()

    def end(self, step: Step, call: int) -> None:
        elapsed = self.now - self.calls[call]
        if step.what == "token":
            self.tokens.setdefault(call, elapsed)
            self.policy.observe(self.now, FirstToken(call, elapsed))
            return
        first, tokens = self.tokens.pop(call, None), step.tokens
        del self.calls[call]
        for _ in range(1 + (step.what == "end twice")):
            self.policy.observe(self.now, Ended(call, elapsed, first, tokens, step.outcome))

    def decide(self, after: float = 0.0) -> Decision:
        return self.policy.decide(self.now + after, self.signals)


def crowd(number: int, latency: float) -> list[Step]:
    """So many calls, one after the other: enough of them, and the law is past its warm-up."""
    return [step for _ in range(number) for step in (Step("arrive", 0.5), Step("end", latency))]


whats = st.sampled_from(
    [
        "arrive",
        "arrive",
        "arrive",
        "end",
        "end",
        "end",
        "end twice",
        "token",
        "advance",
        "advance",
        "throttle",
        "stranger",
    ]
)
steps = st.builds(Step, whats, SPANS, st.integers(0, 60), st.sampled_from(OUTCOMES), st.integers(0, 500))
programs = st.builds(
    lambda number, latency, tail: crowd(number, latency) + tail,
    st.sampled_from([0, 0, 9, 12, 60]),
    st.sampled_from([0.125, 1.0, 7.0, 20.0]),
    st.lists(steps, max_size=30),
)


@st.composite
def bounds(draw: st.DrawFn) -> Signals:
    batch_max = draw(st.integers(1, 100))
    return Signals(
        max_concurrency=batch_max + 8, batch_max=batch_max, batch_min=draw(st.integers(1, min(8, batch_max)))
    )


targets = st.tuples(st.none() | TARGETS, st.none() | TARGETS, st.none() | st.just(0.0625))


def play(given: tuple[float | None, ...], bounds: Signals, program: list[Step], start: float = 0.0) -> Play:
    playing = Play(AdaptivePolicy(*given), bounds, start)
    for step in program:
        playing.act(step)
    playing.check()
    return playing


@given(targets, bounds(), programs, st.lists(SPANS, max_size=4))
def test_whatever_happens_the_limit_is_a_whole_number_within_the_bounds(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], waits: list[float]
) -> None:
    playing = Play(AdaptivePolicy(*targets), bounds)
    for step in [*program, *(Step("advance", wait) for wait in waits)]:
        playing.act(step)
        for after in (0.0, step.after):
            decision = playing.decide(after)

            assert type(decision.limit) is int
            assert bounds.batch_min <= decision.limit <= bounds.batch_max
            assert 0.0 <= decision.pressure < math.inf
            assert not math.isnan(decision.valid_until)


@given(bounds(), st.integers(0, 300), st.integers(0, 300))
def test_without_a_target_the_endpoints_are_exact(bounds: Signals, running: int, queued: int) -> None:
    playing = Play(AdaptivePolicy(), bounds)
    signals = Signals(
        max_concurrency=bounds.max_concurrency,
        batch_max=bounds.batch_max,
        batch_min=bounds.batch_min,
        interactive_running=running,
        interactive_queued=queued,
    )

    limit = playing.policy.decide(0.0, signals).limit

    assert limit == max(bounds.batch_min, bounds.batch_max - running - queued)


@given(targets, bounds(), programs, SPANS)
def test_throttled_it_is_the_floor_whatever_else_is_so(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], rest: float
) -> None:
    playing = play(targets, bounds, program)
    playing.throttled_until = max(playing.throttled_until, playing.now + rest + TICK)

    decision = playing.decide()

    assert (decision.limit, decision.reason) == (bounds.batch_min, "throttled")
    assert decision.valid_until == playing.throttled_until
    assert decision.pressure >= 1


@given(targets, bounds(), programs, st.data())
def test_more_interactive_calls_never_raise_the_limit(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], data: st.DataObject
) -> None:
    playing = play(targets, bounds, program)
    playing.act(Step("arrive", 0.0))  # where nobody is there the limit may be open
    limits = [playing.decide().limit]
    for _ in range(data.draw(st.integers(1, 4))):
        playing.act(Step("arrive", 0.0))
        limits.append(playing.decide().limit)

    # While nothing has passed to average over, three batch calls beside those that are there are three.
    assume(all(objective._warm_time > 0 for objective in playing.policy._objectives))
    assert limits == sorted(limits, reverse=True)


@given(targets, bounds(), programs, st.lists(SPANS, min_size=1, max_size=4))
def test_two_evaluations_at_one_instant_are_equal(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], looks: list[float]
) -> None:
    playing = play(targets, bounds, program)

    first = playing.decide()
    for look in looks:
        playing.decide(look)
        playing.decide(-look)

    assert playing.decide() == first


@given(targets, bounds(), programs, st.lists(steps, min_size=1, max_size=10), st.lists(SPANS, max_size=3))
def test_how_often_anybody_looks_changes_nothing(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], rest: list[Step], looks: list[float]
) -> None:
    seldom, often = play(targets, bounds, program), play(targets, bounds, program)

    for step in rest:
        for look in looks:
            often.decide(look)
        seldom.act(step)
        often.act(step)

    assert often.decide() == seldom.decide()
    assert often.decide(60.0) == seldom.decide(60.0)


@given(targets, bounds(), programs, SHIFTS, SPANS)
def test_a_shift_in_time_changes_nothing(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], shift: float, after: float
) -> None:
    here, there = play(targets, bounds, program), play(targets, bounds, program, shift)

    one, other = here.decide(after), there.decide(after)

    assert other.pressure == pytest.approx(one.pressure, abs=ROUNDING)
    if one.limit != other.limit:  # by rounding, and only at a step
        assert abs(one.limit - other.limit) == 1
        assert min(here.decide(after - 1e-4).limit, here.decide(after + 1e-4).limit) != one.limit
    else:
        assert other.reason == one.reason
        assert other.valid_until == pytest.approx(one.valid_until + shift, rel=ROUNDING, abs=1e-4)


@given(targets, bounds(), programs, SPANS, st.floats(0, 0.999))
def test_before_its_valid_until_a_limit_moves_neither_up_nor_down(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step], after: float, share: float
) -> None:
    playing = play(targets, bounds, program)

    decision = playing.decide(after)

    span = min(decision.valid_until, playing.now + after + 1e6) - (playing.now + after)
    assume(span > 0)
    assert playing.decide(after + share * span).limit == decision.limit


@given(targets, bounds(), programs)
def test_a_limit_never_goes_up_by_itself_but_where_a_decision_ends(
    targets: tuple[float | None, ...], bounds: Signals, program: list[Step]
) -> None:
    """With the policy told how things are once a slice, as a scheduler does, and nothing else going on."""
    playing = play(targets, bounds, program)
    playing.batch_running = bounds.batch_max  # so that nothing is slewed
    playing.act(Step("advance", 0.0, bounds.batch_max))
    decision = playing.decide()

    for _ in range(200):
        playing.act(Step("advance", 0.125, bounds.batch_max))
        later = playing.decide()
        if playing.now >= decision.valid_until - ROUNDING:
            decision = later  # here a timer has it looked at again
        else:
            assert later.limit <= decision.limit


@given(st.integers(10, 60), st.floats(2.5, 90.0), st.lists(st.floats(0.01, 20.0), min_size=1, max_size=8))
def test_a_total_without_calls_does_not_depend_on_how_often_it_is_moved(
    samples: int, total: float, spans: list[float]
) -> None:
    seldom, often = Objective(8.0), Objective(8.0)
    for objective in (seldom, often):
        objective.advance(0.0, 40, 1, 40)
        for call in range(samples):
            objective.arrive(0.0, call)
            objective.served(0.0, call, 0.0, 8.0 / (1 + call % 7))
        objective._total = total
    for at in range(len(spans)):
        often.advance(sum(spans[: at + 1]), 40, 1, 40)

    assert often.total(sum(spans)) == pytest.approx(seldom.total(sum(spans)))


@settings(max_examples=10)
@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=5), st.floats(0.0, 3.0))
def test_a_total_that_batch_does_not_use_grows_no_further_than_one_call_tells(shares: list[float], gap: float) -> None:
    target, now = 4.0, 0.0
    objective = Objective(target)
    for call in range(5 * _KEPT):
        share = 0.5 * shares[call % len(shares)]
        objective.advance(now, 0, 1, 10_000)
        objective.arrive(now, 1)
        now += share * target
        objective.served(now, 1, share * target, share * target)
        now += gap

    # All there ever was is one call, at its heaviest, scaled up to the target and by as much as the trim may say.
    heaviest = 1 + _AGE_SHARE * _HEAVIEST
    assert objective.total(now) <= heaviest * (2 / min(shares) * math.exp(-_TRIM[0])) ** (1 / _EXPONENT)


@pytest.mark.parametrize("hung", [0, 1, 5])
def test_memory_follows_the_calls_that_are_there_and_not_those_that_have_been(hung: int) -> None:
    playing = Play(AdaptivePolicy(8.0, 8.0, 0.05), Signals(max_concurrency=40, batch_max=30))
    for _ in range(hung):
        playing.act(Step("arrive", 0.0))
    sizes = []
    for _ in range(3):
        for _ in range(1000):
            playing.policy.observe(playing.now, Arrived(-1))
            playing.now += 0.02
            playing.policy.observe(playing.now, Ended(-1, 0.02, 0.01, 7))
        sizes.append(len(pickle.dumps(playing.policy)))

    assert sizes[2] < sizes[1] + 200
