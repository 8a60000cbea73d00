"""What the seam says of one call, and of what a policy has beside its two methods."""

from __future__ import annotations

from dataclasses import fields

import pytest

from llm_traffic_scheduler import Decision, Ended, FixedPolicy, LimitPolicy, PressurePolicy, Signals
from llm_traffic_scheduler.policies.base import reads_of, replica_of, reset


class Plain:
    """A policy with nothing optional."""

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(1)


class Unreadable(Plain):
    @property
    def reads(self) -> frozenset[str]:
        raise RuntimeError("not now")


def test_the_pace_of_a_call_is_that_of_its_tokens_after_the_first() -> None:
    assert Ended(latency=5.0, first_token=1.0, tokens=9).pace == pytest.approx(0.5)


@pytest.mark.parametrize("first_token, tokens", [(None, 9), (1.0, 1), (1.0, 0)])
def test_a_call_that_reports_too_little_has_no_pace(first_token: float | None, tokens: int) -> None:
    assert Ended(latency=5.0, first_token=first_token, tokens=tokens).pace is None


@pytest.mark.parametrize("policy", [Plain(), Unreadable()])
def test_a_policy_that_does_not_say_what_it_reads_reads_all_there_is(policy: LimitPolicy) -> None:
    assert reads_of(policy) == {field.name for field in fields(Signals)}
    assert reads_of(FixedPolicy(3)) == frozenset()


def test_a_policy_without_a_replica_is_its_own() -> None:
    plain: LimitPolicy = Plain()
    smoothed = PressurePolicy(5, smoothing=1.0)

    assert replica_of(plain) is plain
    assert replica_of(smoothed) is not smoothed


def test_only_a_policy_that_can_be_reset_is() -> None:
    smoothed = PressurePolicy(5, smoothing=1.0)
    smoothed.advance(0.0, Signals(rps=5.0))

    reset(smoothed)
    reset(Plain())

    assert smoothed.decide(9.0, Signals()).pressure == 0
