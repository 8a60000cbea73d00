"""Traffic for the cases of the control loop: steady arrivals, and batch work that never runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.behaviour.doors import start
from tests.scenarios.counted import Counted

__all__ = ["arrivals", "backlog", "limits_seen", "until"]


async def arrivals(
    scheduler: Counted, job: Callable[[int], Awaitable[object]], *, count: int, every: float, **options: Any
) -> list[asyncio.Task[Any]]:
    """Submit `count` interactive calls of `job(number)`, one each `every` seconds; returns their tasks."""
    tasks = []
    for number in range(count):
        tasks.append(start(scheduler.submit("interactive", job, number, **options)))
        await asyncio.sleep(every)
    return tasks


@contextmanager
def backlog(scheduler: Counted, seconds: float, width: int = 12) -> Iterator[None]:
    """`width` batch calls of `seconds` each at any time, until the end of the block."""

    async def worker() -> None:
        while True:
            await scheduler.submit("batch", asyncio.sleep, seconds)

    workers = [start(worker()) for _ in range(width)]
    try:
        yield
    finally:
        for task in workers:
            task.cancel()


async def limits_seen(scheduler: Counted, *, count: int, every: float) -> list[int]:
    """The batch limit at `count` looks, one each `every` seconds."""
    seen = []
    for _ in range(count):
        seen.append(scheduler.snapshot().batch_limit)
        await asyncio.sleep(every)
    return seen


async def until(condition: Callable[[], object], *, every: float) -> None:
    """Wait for what nobody tells of; looks once each `every` seconds, a thousand times."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(every)
    raise AssertionError("it never came about")
