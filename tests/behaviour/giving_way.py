"""Batch calls with checkpoints, and people for whom they may have to give way; for the tests of promise 19."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_traffic_scheduler import TrafficScheduler, checkpoint
from tests.support import Held, hold, make_scheduler, now, settle

__all__ = ["Steps", "gauges", "people", "three_slots"]


class Steps:
    """A batch call that does steps of a second each, with a checkpoint in between."""

    def __init__(self, scheduler: TrafficScheduler, *, steps: int = 3, kind: Any = "batch", **options: Any) -> None:
        self.scheduler = scheduler
        self.left = steps
        self.done: list[float] = []
        self.task = asyncio.create_task(scheduler.submit(kind, self.run, **options))

    async def run(self) -> list[float]:
        for _ in range(self.left):
            await asyncio.sleep(1)
            await checkpoint()
            self.done.append(now())
        return self.done


def gauges(scheduler: TrafficScheduler) -> tuple[int, int, int, int]:
    """What runs and waits: interactive running and queued, batch running and queued."""
    snapshot = scheduler.snapshot()
    return (
        snapshot.interactive_running,
        snapshot.interactive_queued,
        snapshot.batch_running,
        snapshot.batch_queued,
    )


async def people(scheduler: TrafficScheduler, number: int) -> list[Held]:
    """Interactive calls that stay until they are released, if there is a slot for them."""
    held = [hold(scheduler) for _ in range(number)]
    await settle()
    return held


def three_slots(**settings: Any) -> TrafficScheduler:
    """Of three slots batch may have two."""
    return make_scheduler(max_concurrency=3, batch_max_concurrency=2, **settings)
