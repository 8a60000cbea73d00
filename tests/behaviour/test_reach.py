"""The reach that issue 2 asks of the whole: quick for people, and no slower for everybody.

Cap 10, nine of it open to batch, thresholds that never bite (as in the comparison with peers), 20 ms of service: a
thousand batch calls stand in the queue, and 120 interactive calls arrive, one every 15 ms, whatever earlier ones do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from llm_traffic_scheduler import TrafficScheduler
from tests.support import now

Call: TypeAlias = Callable[[str], Awaitable[None]]

SERVICE, GAP = 0.020, 0.015


async def traffic(call: Call) -> tuple[float, float]:
    """Run the story; interactive P95 and the time until everything has ended, in seconds."""
    latencies: list[float] = []

    async def interactive() -> None:
        submitted = now()
        await call("interactive")
        latencies.append(now() - submitted)

    begin = now()
    async with asyncio.TaskGroup() as group:
        for _ in range(1000):
            group.create_task(call("batch"))  # type: ignore[arg-type]
        for _ in range(120):
            group.create_task(interactive())
            await asyncio.sleep(GAP)
    return sorted(latencies)[math.ceil(0.95 * len(latencies)) - 1], now() - begin


async def test_people_wait_at_most_45_ms_and_all_is_done_as_soon_as_with_a_semaphore() -> None:
    scheduler = TrafficScheduler(
        max_concurrency=10,
        batch_max_concurrency=9,
        interactive_rps_threshold=1e9,
        interactive_p95_threshold=1e9,
    )
    semaphore = asyncio.Semaphore(10)

    async def scheduled(kind: str) -> None:
        await scheduler.submit(kind, asyncio.sleep, SERVICE)  # type: ignore[arg-type]

    async def flooded(kind: str) -> None:
        async with semaphore:
            await asyncio.sleep(SERVICE)

    p95, total = await traffic(scheduled)
    p95_flooded, total_flooded = await traffic(flooded)

    assert p95 <= 0.045
    assert total <= 1.05 * total_flooded
    assert p95_flooded > 10 * p95  # the story is one in which somebody has to act
    scheduler.check()
