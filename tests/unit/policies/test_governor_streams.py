"""What the governor makes of first tokens and paces: signals, and when the policy is asked because of them."""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler import PressurePolicy
from tests.unit.policies.governed import SLICE, WINDOW, Asked, AskedOnRate, House


class AskedOnStreams(Asked):
    """A policy that looks at streams only."""

    reads = frozenset({"ttft_p95", "pace"})


def test_without_a_report_nothing_is_known_of_streams_and_nothing_is_kept_for_them() -> None:
    house = House(policy := Asked())
    house.completed(1.0, 0.5)
    house.governor.limit(1.0)

    assert (policy.signals.ttft_p95, policy.signals.pace) == (None, None)
    assert house.governor.streams is None


@pytest.mark.parametrize("policy", [Asked(), AskedOnStreams()])
def test_a_report_asks_the_policy_again_and_it_sees_what_was_reported(policy: Asked) -> None:
    house = House(policy)
    house.governor.limit(1.0)

    house.governor.first_token(1.0, 0.25)
    house.governor.limit(1.0)
    house.governor.pace(1.0, 0.02)
    house.governor.limit(1.0)

    assert policy.decided == [1.0, 1.0, 1.0]
    assert policy.signals.ttft_p95 == pytest.approx(0.25, rel=0.01)
    assert policy.signals.pace == pytest.approx(0.02, rel=0.01)


def test_the_policy_is_asked_again_when_a_first_token_leaves_the_window() -> None:
    policy = AskedOnStreams()
    house = House(policy)
    house.governor.first_token(1.0, 0.25)

    for now in (1.05, 5.0, 10.9, 11.0, 15.0):
        house.governor.limit(now)

    assert policy.decided == [1.05, 11.0]
    assert policy.signals.ttft_p95 is None


@pytest.mark.parametrize("report", ["first_token", "pace"])
@pytest.mark.parametrize("policy", [Asked(), AskedOnStreams(), AskedOnRate(), PressurePolicy(p95_threshold=3.0)])
def test_what_has_left_the_window_needs_no_look_any_more(policy: Asked, report: str) -> None:
    house = House(policy)
    getattr(house.governor, report)(1.0, 0.25)
    house.governor.limit(1.0)

    looks, now = 0, 1.0
    while (now := house.governor.next_look(now)) < math.inf and looks < 100:
        house.governor.limit(now)
        looks += 1

    assert looks <= 4


def test_the_next_look_after_a_report_is_when_it_leaves() -> None:
    house = House(AskedOnStreams())
    house.governor.first_token(1.0, 0.25)
    house.governor.limit(1.0 + SLICE)

    assert house.governor.next_look(2.0) == pytest.approx(1.0 + WINDOW)


def test_the_first_report_of_a_slice_advances_the_policy_first() -> None:
    policy = Asked()
    house = House(policy)

    house.governor.first_token(1.0, 0.25)
    house.governor.pace(1.0 + SLICE, 0.02)
    house.governor.pace(1.0 + SLICE, 0.02)

    assert policy.advanced == pytest.approx([1.0, 1.0 + SLICE])


def test_a_reader_sees_streams_whatever_the_policy_looks_at() -> None:
    house = House(AskedOnRate())
    house.governor.first_token(1.0, 0.25)

    _, signals, _ = house.governor.read(1.0)

    assert signals.ttft_p95 == pytest.approx(0.25, rel=0.01)
    assert house.governor.read(1.0 + WINDOW)[1].ttft_p95 is None


def test_another_window_keeps_the_streams_that_fit_it() -> None:
    policy = Asked()
    house = House(policy)
    house.governor.first_token(1.0, 0.25)
    house.governor.first_token(8.0, 0.5)
    house.governor.pace(8.0, 0.02)

    house.governor.set_window(house.governor.window.resized(WINDOW / 2, 9.0), 9.0)
    house.governor.limit(9.0)

    assert policy.signals.ttft_p95 == pytest.approx(0.5, rel=0.01)
    assert policy.signals.pace == pytest.approx(0.02, rel=0.01)
    house.governor.limit(13.0)
    assert (policy.signals.ttft_p95, policy.signals.pace) == (None, None)
