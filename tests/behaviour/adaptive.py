"""A scheduler with the adaptive law, and traffic for it; for the tests of that law in virtual time.

`from tests.behaviour.adaptive import adaptive, backlog, interactive, learn, limit, running`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llm_traffic_scheduler import (
    AdaptivePolicy,
    TrafficScheduler,
)
from tests.support import Held, make_scheduler

__all__ = [
    "BATCH_MAX",
    "BATCH_MIN",
    "SLICE",
    "STEP",
    "TARGET",
    "adaptive",
    "backlog",
    "interactive",
    "learn",
    "limit",
    "running",
    "started",
    "unfinished",
]

TARGET = 2.0
BATCH_MAX, BATCH_MIN = 24, 1
STEP = (BATCH_MAX - BATCH_MIN) // 8
SLICE = 0.1


def adaptive(policy: AdaptivePolicy | None = None, **settings: Any) -> TrafficScheduler:
    return make_scheduler(
        max_concurrency=32,
        batch_max_concurrency=BATCH_MAX,
        policy=AdaptivePolicy(p95_target=TARGET) if policy is None else policy,
        **settings,
    )


def limit(scheduler: TrafficScheduler) -> int:
    return scheduler.snapshot().batch_limit


def running(scheduler: TrafficScheduler) -> int:
    return scheduler.snapshot().batch_running


def unfinished(policy: AdaptivePolicy) -> int:
    """How many calls the policy waits for."""
    return sum(len(objective.unfinished) for objective in policy._objectives)


async def interactive(scheduler: TrafficScheduler, seconds: float, times: int = 1, gap: float = 0.0) -> None:
    """One call after the other."""
    for _ in range(times):
        await scheduler.submit("interactive", asyncio.sleep, seconds)
        await asyncio.sleep(gap)


@asynccontextmanager
async def backlog(scheduler: TrafficScheduler, seconds: float = 1.0) -> AsyncIterator[None]:
    """Batch work that never runs out, in calls of this length."""

    async def work() -> None:
        while True:
            await scheduler.submit("batch", asyncio.sleep, seconds)

    workers = [asyncio.create_task(work()) for _ in range(2 * BATCH_MAX)]
    try:
        yield
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def started(held: list[Held]) -> int:
    return sum(each.started for each in held)


async def learn(scheduler: TrafficScheduler, seconds: float = 1.0, times: int = 60) -> None:
    """Interactive calls beside all the batch that may run, until the total has settled."""
    async with backlog(scheduler, 0.1):
        await interactive(scheduler, seconds, times)
