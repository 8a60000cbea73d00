"""What the adaptive law makes of single calls: first tokens, paces, ends of every kind, and a loop that goes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from llm_traffic_scheduler import AdaptivePolicy, Ended, FirstToken
from llm_traffic_scheduler.policies.objective import _AGE_SHARE, _GAIN, _SHARE, WARM_UP, Objective
from tests.unit.policies.test_adaptive import TARGET, Room

KEPT_TARGET, MISSED_TARGET = -_GAIN * _SHARE, _GAIN * (1 - _SHARE)


def only(room: Room) -> Objective:
    """The objective of the one target that was given."""
    (objective,) = room.policy._objectives
    return objective


def test_a_first_token_serves_the_call_as_far_as_its_target_goes() -> None:
    room = Room(AdaptivePolicy(ttft_target=1.0))
    room.arrive(0.0, 1)
    assert only(room).held_back == _AGE_SHARE

    room.policy.observe(0.5, FirstToken(1, 0.5))
    room.advance(100.0)  # it streams on for long

    assert (only(room).samples, only(room).held_back) == (1, 0.0)
    assert only(room)._trim == pytest.approx(KEPT_TARGET)
    assert only(room)._latencies == [0.5]


def test_only_the_first_of_first_tokens_counts_and_the_end_after_it_does_not() -> None:
    room = Room(AdaptivePolicy(ttft_target=1.0))
    room.arrive(0.0, 1)
    room.policy.observe(0.5, FirstToken(1, 0.5))
    before = only(room).samples, only(room)._trim

    room.policy.observe(2.0, FirstToken(1, 2.0))
    room.end(9.0, 1, 9.0, first_token=0.5, tokens=20)

    assert (only(room).samples, only(room)._trim) == before


def test_a_call_that_reports_no_first_token_has_its_end_for_one() -> None:
    room = Room(AdaptivePolicy(ttft_target=1.0))

    room.serve(0.0, 3.0)

    assert only(room)._latencies == [3.0]
    assert only(room)._trim == pytest.approx(MISSED_TARGET)


def test_a_call_that_fails_before_its_first_token_waits_for_it_no_longer() -> None:
    room = Room(AdaptivePolicy(ttft_target=1.0))

    room.serve(0.0, 0.5, outcome="failed")

    assert (only(room).samples, only(room)._trim, only(room).held_back) == (0, 0.0, 0.0)


def test_a_first_token_says_nothing_of_the_latency_end_to_end() -> None:
    room = Room()
    room.arrive(0.0, 1)

    room.policy.observe(0.5, FirstToken(1, 0.5))

    assert (only(room).samples, only(room).held_back) == (0, _AGE_SHARE)


def test_a_pace_is_the_seconds_per_token_after_the_first() -> None:
    room = Room(AdaptivePolicy(pace_target=0.25))

    room.serve(0.0, 5.0, first_token=1.0, tokens=17)  # sixteen tokens in four seconds
    room.serve(10.0, 5.0, first_token=1.0, tokens=16)

    assert only(room)._latencies == [0.25, 4 / 15]
    assert only(room)._trim == pytest.approx(KEPT_TARGET + MISSED_TARGET)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"tokens": 20},
        {"first_token": 1.0},
        {"first_token": 1.0, "tokens": 1},
        {"first_token": 1.0, "tokens": 20, "outcome": "failed"},
    ],
)
def test_a_call_that_tells_no_pace_is_not_judged_by_it(how: dict[str, Any]) -> None:
    room = Room(AdaptivePolicy(pace_target=0.25))

    room.serve(0.0, 50.0, times=5, **how)

    assert (only(room).samples, only(room)._trim, only(room).held_back) == (0, 0.0, 0.0)


def test_a_call_ends_once() -> None:
    room = Room()
    now = room.serve(0.0, 1.0, 20)
    before = only(room).samples, only(room)._trim

    room.policy.observe(now, Ended(19, 1.0))
    room.policy.observe(now + 50, Ended(19, 51.0, outcome="failed"))

    assert (only(room).samples, only(room)._trim) == before
    only(room).check()


def test_a_call_of_which_only_the_end_is_heard_changes_nothing() -> None:
    room = Room(AdaptivePolicy(TARGET, TARGET, 0.25))
    room.arrive(0.0, 1)
    before = room.decide(0.0)

    room.policy.observe(0.0, FirstToken(7, 5.0))
    room.policy.observe(0.0, Ended(7, 9.0, 5.0, 30))
    room.policy.observe(0.0, Ended(8, 9.0, outcome="timed_out"))

    assert room.decide(0.0) == before
    assert [objective.samples for objective in room.policy._objectives] == [0, 0, 0]


def test_a_call_that_is_refused_as_it_comes_leaves_nothing_behind() -> None:
    room = Room()
    now = room.learnt()
    before = only(room).samples, only(room)._trim, room.limit(now)

    for call in range(1000):
        room.arrive(now, call)
        room.end(now, call, 0.0, outcome="rejected")

    assert (only(room).samples, only(room)._trim, room.limit(now)) == before
    assert len(only(room).unfinished) == 0


def test_a_reset_keeps_what_was_learnt_and_forgets_who_was_there() -> None:
    room = Room()
    now = room.learnt()
    total, goal, samples = only(room).total(now), only(room)._goal, only(room).samples
    room.arrive(now, 1, 2, 3)
    room.advance(now + 2 * TARGET)
    assert only(room).stalled

    room.policy.reset()
    room.present.clear()
    room.advance(-1000.0)

    assert not only(room).stalled
    assert (only(room).samples, len(only(room).unfinished)) == (samples, 0)
    assert only(room).total(-1000.0) == pytest.approx(total, rel=0.1)
    assert only(room)._goal <= goal  # three have missed
    assert room.decide(-1000.0).valid_until == pytest.approx(-1000.0 + 60.0, abs=60.0)
    room.end(-999.0, 1, 5.0)  # one of the old ones ends after all
    assert only(room).samples == samples


def test_a_reset_is_fit_for_a_policy_that_has_not_begun() -> None:
    policy = AdaptivePolicy(p95_target=TARGET)

    policy.reset()

    room = Room(policy)
    assert room.limit(0.0) >= 1
    assert room.decide(0.0).valid_until > 0.0
    assert not math.isnan(room.decide(0.0).pressure)
    assert only(room).samples < WARM_UP
