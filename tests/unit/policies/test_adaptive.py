"""The adaptive law: which part of it rules when, by examples; `test_objective` says what is learnt."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    ConfigError,
    Decision,
    Ended,
    FirstToken,
    LimitPolicy,
    ObservingPolicy,
    Signals,
)
from llm_traffic_scheduler.policies.adaptive import _IDLE_AFTER, _IDLE_GAPS, _OPENS_WITHIN
from llm_traffic_scheduler.policies.objective import _AGE_SHARE, _LATE, _START, WARM_UP

TARGET = 8.0
SLICE = 0.1


class Room:
    """A policy, and what a scheduler of 48 slots, 40 of them open to batch, would tell it.

    Batch uses all it may, unless the test says otherwise, so that no start has to wait for the next slice.
    """

    def __init__(self, policy: AdaptivePolicy | None = None, **signals: Any) -> None:
        self.policy = AdaptivePolicy(p95_target=TARGET) if policy is None else policy
        self.given: dict[str, Any] = {"max_concurrency": 48, "batch_max": 40, "batch_running": 40}
        self.given |= {"slice_length": SLICE, **signals}
        self.present: set[int] = set()
        self.advance(0.0)

    def signals(self, **changes: Any) -> Signals:
        return Signals(**{**self.given, "interactive_running": len(self.present), **changes})

    def advance(self, now: float, **changes: Any) -> None:
        self.given |= changes
        self.policy.advance(now, self.signals())

    def arrive(self, now: float, *calls: int) -> None:
        for call in calls:
            self.present.add(call)
            self.policy.observe(now, Arrived(call))

    def end(self, now: float, call: int, latency: float, **how: Any) -> None:
        self.present.discard(call)
        self.policy.observe(now, Ended(call, latency, **how))

    def serve(self, start: float, latency: float, times: int = 1, **how: Any) -> float:
        """One call after the other; returns when the last has ended."""
        now = start
        for call in range(times):
            self.arrive(now, call)
            now += latency
            self.end(now, call, latency, **how)
        return now

    def decide(self, now: float, **changes: Any) -> Decision:
        return self.policy.decide(now, self.signals(**changes))

    def limit(self, now: float, **changes: Any) -> int:
        return self.decide(now, **changes).limit

    def learnt(self, latency: float = 4.0, times: int = 100) -> float:
        """Calls of one length until the total has settled; returns when the last has ended."""
        now = self.serve(0.0, latency, times)
        self.advance(now)
        return now


def test_it_is_a_policy_that_observes() -> None:
    policy = AdaptivePolicy(p95_target=1.0)

    assert isinstance(policy, LimitPolicy)
    assert isinstance(policy, ObservingPolicy)
    assert policy.observing
    assert not AdaptivePolicy().observing


@pytest.mark.parametrize("name", ["p95_target", "ttft_target", "pace_target"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, "8", True, 10**400])
def test_a_target_that_is_no_finite_number_above_0_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        AdaptivePolicy(**{name: value})


def test_it_shows_the_targets_it_was_given() -> None:
    assert repr(AdaptivePolicy(p95_target=8, pace_target=0.05)) == "AdaptivePolicy(p95_target=8, pace_target=0.05)"
    assert repr(AdaptivePolicy()) == "AdaptivePolicy()"


@pytest.mark.parametrize("running, queued, limit", [(0, 0, 40), (1, 0, 39), (3, 4, 33), (0, 39, 1), (8, 60, 1)])
def test_without_a_target_each_interactive_call_takes_one_from_batch_at_once(
    running: int, queued: int, limit: int
) -> None:
    room = Room(AdaptivePolicy())

    decision = room.decide(0.0, interactive_running=running, interactive_queued=queued)

    assert (decision.limit, decision.valid_until) == (limit, math.inf)


def test_without_a_target_nothing_is_slewed() -> None:
    room = Room(AdaptivePolicy(), batch_running=0)

    assert room.limit(0.0, interactive_running=30) == 10
    assert room.limit(0.0) == 40


def test_without_a_target_pressure_is_the_share_of_the_range_that_interactive_calls_take() -> None:
    room = Room(AdaptivePolicy(), batch_min=10)

    assert room.decide(0.0).pressure == 0.0
    assert room.decide(0.0, interactive_running=15).pressure == 0.5
    assert room.decide(0.0, interactive_running=45).pressure == 1.5
    assert room.decide(0.0, batch_min=40, interactive_running=15).pressure == 0.0


def test_the_first_calls_run_beside_three_batch_calls() -> None:
    room = Room()

    room.arrive(0.0, 1)

    assert (room.limit(0.0), room.decide(0.0).reason) == (_START, "learning")
    assert room.limit(5.0) == _START


def test_while_nothing_is_known_the_total_is_an_average_over_time() -> None:
    room = Room()
    room.arrive(10.0, 1)

    # Three for ten seconds, and now what one call takes on top: the average comes after.
    assert room.limit(10.0) == math.floor(_START - 1 - _AGE_SHARE)
    assert room.limit(1000.0) == math.floor((10 * _START + 990 * (_START + 1 + _AGE_SHARE)) / 1000 - 1 - _AGE_SHARE)


def test_the_limit_is_the_total_less_the_calls_and_what_their_ages_hold_back() -> None:
    room = Room()
    now = room.learnt()
    total = room.limit(now)
    assert 10 < total < 40

    room.arrive(now, 1, 2, 3)

    # `total` is rounded down, and so is this.
    assert room.limit(now) in (math.floor(total - 3 * (1 + _AGE_SHARE)), math.floor(total + 1 - 3 * (1 + _AGE_SHARE)))
    assert room.decide(now).reason == "budget"


def test_the_limit_follows_each_arrival_and_each_end_at_once() -> None:
    room = Room()
    now = room.learnt()
    limits = [room.limit(now)]

    for call in range(4):
        room.arrive(now, call)
        limits.append(room.limit(now))
    for call in range(4):
        room.end(now, call, 0.0, outcome="cancelled")
        limits.append(room.limit(now))

    assert limits[:5] == sorted(set(limits[:5]), reverse=True)
    assert limits[5:] == limits[3::-1]


def test_a_call_of_the_scheduler_that_is_not_observed_takes_its_slot_all_the_same() -> None:
    room = Room()
    now = room.learnt()

    assert room.limit(now, interactive_queued=5) == room.limit(now) - 5


def test_one_hung_call_takes_one_slot_and_holds_back_ten_weights() -> None:
    room = Room(batch_max=1000, batch_running=1000)
    now = room.learnt(1.0)
    room.arrive(now, 1)
    now += 1000.0

    room.advance(now)

    total = room.policy._objectives[0].total(now)
    assert room.limit(now) == math.floor(total - (1 + _AGE_SHARE * _LATE))


@pytest.mark.parametrize("late, alive, stalled", [(2, 2, False), (3, 3, True), (3, 6, True), (3, 7, False)])
def test_three_late_calls_that_are_half_of_those_alive_give_batch_its_floor(
    late: int, alive: int, stalled: bool
) -> None:
    room = Room(batch_min=2, batch_max=1000, batch_running=1000)
    now = room.learnt(0.001)
    now += 1000
    room.advance(now)
    room.arrive(now, *range(late))
    room.arrive(now + TARGET, *range(late, alive))
    now += TARGET + 0.1

    room.advance(now)

    decision = room.decide(now)
    assert (decision.limit == 2, decision.reason == "stalled") == (stalled, stalled)


def test_after_a_minute_without_interactive_calls_the_limit_opens_within_fifty_seconds() -> None:
    room = Room()
    last = room.serve(0.0, 7.0, 20)
    room.advance(last)
    before = room.limit(last)
    assert before < 20
    begins = last + _IDLE_AFTER

    limits = []
    now = begins
    while now <= begins + _OPENS_WITHIN:
        room.advance(now)
        limits.append(room.limit(now))
        now += 0.5

    assert room.limit(begins) == before
    assert limits == sorted(limits)
    assert (limits[0], limits[-1]) == (before, 40)
    assert max(after - each for each, after in pairwise(limits)) == 1
    assert room.decide(now).reason == "idle"


def test_a_gap_that_is_not_much_longer_than_others_is_no_absence() -> None:
    room = Room()
    now, last = 0.0, 0.0
    for call in range(20):
        last = now
        room.arrive(now, call)
        room.end(now + 7.0, call, 7.0)
        now += 50.0
    room.advance(now)
    before = room.limit(last + 50.0)

    last += 7.0
    within = last + _IDLE_GAPS * 50.0 - 1
    room.advance(within)
    assert room.limit(within) == before
    after = last + _IDLE_GAPS * 50.0 + _OPENS_WITHIN
    room.advance(after)
    assert room.limit(after) == 40


def test_a_call_that_took_minutes_does_not_open_the_limit_as_it_ends() -> None:
    room = Room()
    now = room.learnt(7.0)
    room.arrive(now, 1)
    now += 600.0
    room.end(now, 1, 600.0)
    room.advance(now)

    assert room.decide(now).reason == "budget"
    room.advance(now + _IDLE_AFTER + _OPENS_WITHIN)
    assert room.limit(now + _IDLE_AFTER + _OPENS_WITHIN) == 40


def test_where_nobody_ever_came_the_limit_opens_at_once() -> None:
    room = Room()

    assert room.limit(0.0) == _START
    assert _START < room.limit(_OPENS_WITHIN / 2) < 40
    assert room.limit(_OPENS_WITHIN) == 40


def test_the_first_arrival_restores_what_was_learnt() -> None:
    room = Room()
    now = room.learnt(7.0)
    total = room.policy._objectives[0].total(now)
    later = now + 1000.0
    room.advance(later)
    assert room.limit(later) == 40

    room.arrive(later, 1)

    assert room.limit(later) == math.floor(room.policy._objectives[0].total(later) - 1 - _AGE_SHARE)
    assert room.policy._objectives[0].total(later) < total + 5


@pytest.mark.parametrize("batch_max", [1, 2, 3, 4, 7, 40])
def test_a_small_range_opens_too(batch_max: int) -> None:
    room = Room(batch_max=batch_max, batch_running=batch_max)

    assert room.limit(0.0) == min(_START, batch_max)
    assert room.limit(_OPENS_WITHIN) == batch_max


def test_an_opening_limit_says_when_it_takes_the_next_step_from_the_very_start() -> None:
    room = Room()

    assert_opens(room, 0.0)


def test_an_opening_limit_says_when_it_overtakes_the_total() -> None:
    room = Room()
    last = room.serve(0.0, 7.0, 20)
    now = last + _IDLE_AFTER
    room.advance(now)

    assert_opens(room, now)


def assert_opens(room: Room, now: float) -> None:
    """From one `valid_until` to the next, the limit goes up to its maximum."""
    for _ in range(200):
        decision = room.decide(now)
        if decision.valid_until == math.inf:
            assert decision.limit == 40
            return
        assert room.limit(now + 0.999 * (decision.valid_until - now)) == decision.limit
        now = decision.valid_until + 1e-6
        room.advance(now)
    raise AssertionError("it never opens")


@pytest.mark.parametrize("policy", [AdaptivePolicy(), AdaptivePolicy(p95_target=TARGET)], ids=["without", "with"])
def test_while_the_backend_asks_us_to_wait_batch_has_its_floor(policy: AdaptivePolicy) -> None:
    room = Room(policy, batch_min=2)

    decision = room.decide(5.0, throttled_until=9.0)

    assert (decision.limit, decision.reason, decision.valid_until) == (2, "throttled", 9.0)
    assert decision.pressure >= 1.0


@pytest.mark.parametrize("batch_max", [2, 8, 9, 16, 40, 100])
def test_after_throttling_the_limit_reopens_by_an_eighth_of_its_range_per_slice(batch_max: int) -> None:
    room = Room(AdaptivePolicy(), batch_max=batch_max, throttled_until=10.0)
    step = max(1, (batch_max - 1) // 8)

    limits, now = [1], 10.0
    for _ in range(batch_max):
        decision = room.decide(now)
        limits.append(decision.limit)
        now = min(decision.valid_until, now + 1) + 1e-6

    assert limits[-1] == batch_max
    assert {after - before for before, after in pairwise(limits)} <= set(range(step + 1))
    assert now - 10.0 >= min(8, batch_max - 2) * SLICE


def test_reopening_hides_no_lower_limit() -> None:
    room = Room(AdaptivePolicy(), throttled_until=10.0)

    assert room.decide(10.0, interactive_running=38).limit == 2
    assert room.decide(10.0, interactive_running=38).reason == "headroom"
    assert room.decide(10.0, interactive_running=3).reason == "ramp"


def test_no_more_than_an_eighth_of_the_range_starts_beyond_what_ran_at_least_in_the_slice() -> None:
    room = Room(batch_running=0)
    now = room.learnt(1.0)
    room.advance(now, batch_running=7)

    decision = room.decide(now)

    assert (decision.limit, decision.reason) == (7 + 39 // 8, "ramp")
    assert room.limit(now, batch_lowest=3) == 3 + 39 // 8
    assert decision.valid_until == now + SLICE
    room.advance(now + SLICE, batch_running=decision.limit)
    assert room.limit(now + SLICE) == 7 + 2 * (39 // 8)


def test_the_floor_is_not_slewed() -> None:
    room = Room(batch_running=0, batch_min=30)

    assert room.limit(0.0) == 30


def test_a_fall_is_not_slewed() -> None:
    room = Room(batch_running=40)
    now = room.learnt(1.0)
    before = room.limit(now)

    room.arrive(now, *range(20))

    assert before == 40
    assert room.limit(now) == math.floor(room.policy._objectives[0].total(now) - 20 * (1 + _AGE_SHARE)) < 40


def test_with_several_targets_the_lowest_limit_holds_and_gives_the_reason() -> None:
    tight, loose = AdaptivePolicy(p95_target=5.0), AdaptivePolicy(p95_target=50.0)
    both = AdaptivePolicy(p95_target=50.0, ttft_target=5.0)
    limits = []
    for policy in (tight, loose, both):
        room = Room(policy)
        now = room.learnt(4.0)
        room.arrive(now, 1)
        limits.append(room.limit(now))

    assert limits[0] < limits[1]
    assert limits[2] == limits[0]


def test_of_two_targets_the_one_that_holds_gives_the_reason() -> None:
    room = Room(AdaptivePolicy(p95_target=1000.0, ttft_target=1.0))
    room.arrive(0.0, *range(WARM_UP))
    for call in range(WARM_UP):
        room.policy.observe(50.0, FirstToken(call, 50.0))  # far too late, and nobody has ended yet

    assert room.decide(60.0).reason == "budget"


def test_a_stall_holds_though_another_total_is_below_nothing() -> None:
    room = Room(AdaptivePolicy(p95_target=TARGET, pace_target=1.0), batch_min=3)
    room.arrive(0.0, 1, 2, 3)
    room.advance(TARGET + 1)

    assert room.limit(TARGET + 1) == 3


@pytest.mark.parametrize("throttled_until", [0.1, 9.7, 10.0, 13.001, 1e6])
def test_a_step_of_a_reopening_limit_is_taken_at_the_instant_it_is_announced_for(throttled_until: float) -> None:
    policy, now = AdaptivePolicy(), throttled_until
    signals = Signals(max_concurrency=30, batch_max=20, throttled_until=throttled_until, slice_length=0.1)

    while (decision := policy.decide(now, signals)).reason == "ramp":
        assert decision.valid_until > now
        now = decision.valid_until
    assert decision.limit == 20
