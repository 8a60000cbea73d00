"""A scheduler whose backend asks it to wait, and a crowd of batch calls that has to."""

from __future__ import annotations

from typing import Any

from llm_traffic_scheduler import PressurePolicy, TrafficScheduler
from tests.support import Held, hold, make_scheduler

__all__ = ["BATCH_MAX", "BATCH_MIN", "crowd", "plain", "scheduler_of", "started", "throttle"]

BATCH_MAX, BATCH_MIN = 4, 2


def scheduler_of(policy: Any, **settings: Any) -> TrafficScheduler:
    """Eight slots, two to four of them for batch."""
    bounds = {"max_concurrency": 8, "batch_max_concurrency": BATCH_MAX, "batch_min_concurrency": BATCH_MIN}
    return make_scheduler(**bounds, policy=policy, **settings)


def plain() -> TrafficScheduler:
    """The same, at ease: traffic alone never lowers its limit."""
    return scheduler_of(PressurePolicy(rps_threshold=1e6))


def crowd(scheduler: TrafficScheduler, count: int = BATCH_MAX + 2) -> list[Held]:
    """Batch calls, two more than may run unless the test says otherwise."""
    return [hold(scheduler, "batch") for _ in range(count)]


def started(batch: list[Held]) -> int:
    """How many of them have started."""
    return sum(call.started for call in batch)


async def throttle(scheduler: TrafficScheduler, *retry_after: Any, kind: Any = "interactive") -> None:
    """One call that is told to wait, and ends."""
    async with scheduler.slot(kind) as slot:
        slot.throttled(*retry_after)
