"""Which policies hear of single calls: those that want to, from when they come until they go."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from llm_traffic_scheduler import AdaptivePolicy, FixedPolicy, ObservingPolicy
from tests.heard import Heard
from tests.support import hold, make_scheduler, noop, settle


class Deaf(Heard):
    observing = False


@pytest.mark.parametrize("policy", [FixedPolicy(1), Deaf()])
async def test_for_a_policy_that_does_not_want_to_hear_nothing_is_made(policy: Any) -> None:
    made: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("observation.py"):
            made.append(frame.f_code.co_name)

    scheduler = make_scheduler(policy=policy)
    sys.setprofile(trace)
    try:
        for _ in range(5):
            await scheduler.submit("interactive", noop)
    finally:
        sys.setprofile(None)

    assert made == []
    assert getattr(policy, "told", []) == []


def test_the_protocol_is_for_those_that_observe() -> None:
    assert isinstance(Heard(), ObservingPolicy)
    assert not isinstance(FixedPolicy(1), ObservingPolicy)


async def test_a_policy_that_comes_in_the_middle_hears_of_ends_of_calls_it_does_not_know() -> None:
    first, second = Heard(), Heard()
    scheduler = make_scheduler(policy=first)
    old = hold(scheduler)
    await settle()

    scheduler.configure(policy=second)
    new = hold(scheduler)
    await settle()
    old.release()
    new.release()
    await settle()

    assert first.names == ["Arrived"]
    assert second.names == ["Arrived", "completed", "completed"]
    assert second.strangers == 1
    second.check()


async def test_a_policy_that_comes_back_has_forgotten_the_calls_that_ended_without_it() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    held = hold(scheduler)
    await settle()

    scheduler.configure(policy=FixedPolicy(1))
    held.release()
    await settle()
    scheduler.configure(policy=heard)

    assert heard.unfinished == {}
    await scheduler.submit("interactive", noop)
    assert heard.names == ["Arrived", "completed"]


async def test_the_adaptive_law_is_not_stalled_by_calls_that_ended_without_it() -> None:
    law = AdaptivePolicy(p95_target=1.0)
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=law)
    held = [hold(scheduler) for _ in range(5)]
    await asyncio.sleep(3)
    scheduler.configure(policy=FixedPolicy(1))
    for call in held:
        call.release()
    await settle()

    scheduler.configure(policy=law)
    await scheduler.submit("interactive", noop)
    await asyncio.sleep(20)

    assert "stalled" not in scheduler.snapshot().detail
