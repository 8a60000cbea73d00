"""A policy object that remembers what it hears serves one scheduler at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    ConfigError,
    ExternalPolicy,
    FixedPolicy,
    Gauge,
    LimitPolicy,
    PressurePolicy,
    Shadow,
    TrafficScheduler,
)
from tests.heard import Heard
from tests.support import make_scheduler, noop


@pytest.mark.parametrize(
    "policy", [AdaptivePolicy(p95_target=1.0), AdaptivePolicy(), PressurePolicy(rps_threshold=1.0), Heard()]
)
async def test_a_policy_in_use_is_refused_by_the_constructor_and_by_configure(policy: LimitPolicy) -> None:
    first, other = make_scheduler(policy=policy, name="first"), make_scheduler()
    await first.submit("interactive", noop)

    for take in (lambda: make_scheduler(policy=policy), lambda: other.configure(policy=policy, max_concurrency=7)):
        with pytest.raises(ConfigError, match=r"policy serves scheduler 'first'.*make one for each"):
            take()

    assert other.snapshot().max_concurrency == 2
    first.configure(policy=policy, max_concurrency=3)
    assert first.snapshot().max_concurrency == 3


async def test_a_policy_without_memory_may_serve_many() -> None:
    policy = FixedPolicy(1)

    schedulers = [make_scheduler(policy=policy) for _ in range(2)]

    assert [scheduler._policy for scheduler in schedulers] == [policy, policy]


async def test_a_scheduler_that_is_closed_has_another_policy_or_is_gone_frees_its_own() -> None:
    policy = AdaptivePolicy()
    first = make_scheduler(policy=policy)
    await first.close()
    second = make_scheduler(policy=policy)
    second.configure(policy=FixedPolicy(1))
    third = make_scheduler(policy=policy)
    await third.submit("interactive", noop)
    del third

    assert make_scheduler(policy=policy)._policy is policy


def test_a_scheduler_whose_loop_is_closed_frees_its_policy() -> None:
    policy, kept = AdaptivePolicy(), []

    async def use() -> None:
        kept.append(TrafficScheduler(max_concurrency=2, policy=policy))
        await kept[-1].submit("interactive", noop)

    asyncio.run(use())
    asyncio.run(use())

    assert len(kept) == 2


@pytest.mark.parametrize(
    "around",
    [
        lambda policy: policy,
        lambda policy: Shadow(policy, FixedPolicy(1)),
        lambda policy: Shadow(FixedPolicy(1), policy),
        lambda policy: ExternalPolicy(Gauge(), also=policy),
    ],
    ids=["itself", "acting in a Shadow", "in the shadow", "beside a gauge"],
)
async def test_a_policy_inside_of_another_is_in_use_too(around: Callable[[LimitPolicy], LimitPolicy]) -> None:
    policy = AdaptivePolicy()
    first = make_scheduler(policy=Shadow(policy, FixedPolicy(1)), name="first")

    with pytest.raises(ConfigError, match="serves scheduler 'first'"):
        make_scheduler(policy=around(policy))
    await first.close()

    assert make_scheduler(policy=around(policy)).snapshot().running == 0
