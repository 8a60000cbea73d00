"""A scheduler on which a batch call is about to be preempted, and what makes that happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from llm_traffic_scheduler import TrafficScheduler
from tests.behaviour.doors import start
from tests.support import Held, account, hold, make_scheduler, settle

__all__ = ["Work", "person", "preempted", "run", "stage"]


class Work:
    """A function that is safe to run again: counts its runs, and waits in each as `wait` does."""

    def __init__(self, wait: Callable[[], Awaitable[object]] | None = None) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self._wait = wait

    async def __call__(self) -> str:
        self.runs += 1
        await (self.gate.wait() if self._wait is None else self._wait())
        return "done"


async def stage(**settings: Any) -> tuple[TrafficScheduler, Held]:
    """Three slots, and of them one for a batch call that stays, and one for an interactive call."""
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2, **settings)
    hold(scheduler, "batch")
    held = hold(scheduler)
    await settle()
    return scheduler, held


async def run(scheduler: TrafficScheduler, work: Callable[[], Awaitable[Any]], **options: Any) -> asyncio.Task[Any]:
    """A batch call that may be preempted, in the third slot."""
    task = start(scheduler.submit("batch", work, preemptible=True, **options))
    await settle()
    return task


async def person(scheduler: TrafficScheduler) -> Held:
    """An interactive call for which there is no slot."""
    held = hold(scheduler)
    await settle()
    return held


def preempted(scheduler: TrafficScheduler) -> int:
    return account(scheduler, "batch").preempted
