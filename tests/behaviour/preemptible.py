"""Batch calls that may be preempted, as many as keep a scheduler busy, and which of them were stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_traffic_scheduler import TrafficScheduler
from tests.behaviour.doors import start
from tests.support import hold, make_scheduler, now, settle

__all__ = ["Job", "busy", "slots", "stopped"]


class Job:
    """A batch call that may be preempted: when each of its runs began, and when each that was stopped heard of it."""

    def __init__(
        self,
        scheduler: TrafficScheduler,
        *,
        lasts: float = 1000.0,
        cleans_up: float = 0.0,
        preemptible: bool = True,
        kind: Any = "batch",
        **options: Any,
    ) -> None:
        self.lasts = lasts
        self.cleans_up = cleans_up
        self.began: list[float] = []
        self.stopped: list[float] = []
        self.task = start(scheduler.submit(kind, self.run, preemptible=preemptible, **options))

    async def run(self) -> str:
        self.began.append(now())
        try:
            await asyncio.sleep(self.lasts)
        except asyncio.CancelledError:
            self.stopped.append(now())
            if self.cleans_up:
                await asyncio.sleep(self.cleans_up)
            raise
        return "done"

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def slots(number: int, *, batch: int | None = None, **settings: Any) -> TrafficScheduler:
    """A scheduler of so many slots, all but one of them, or `batch`, open to batch."""
    return make_scheduler(max_concurrency=number, batch_max_concurrency=batch or number - 1, **settings)


async def busy(scheduler: TrafficScheduler, number: int, **options: Any) -> list[Job]:
    """So many batch calls that may be preempted, one after the other, and one interactive call; they run."""
    hold(scheduler)
    await settle()
    jobs = []
    for _ in range(number):
        jobs.append(Job(scheduler, **options))
        await settle()
    return jobs


def stopped(*jobs: Job) -> list[int]:
    """How often each of them was stopped."""
    return [len(job.stopped) for job in jobs]
