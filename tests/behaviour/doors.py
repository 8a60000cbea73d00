"""The two doors to a slot, and what must be so after whatever has happened in it.

Every promise about running code holds for `submit()` and for `slot()`; `@each_door` asks both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import pytest

from llm_traffic_scheduler import TrafficScheduler
from tests.support import account, hold, settle

__all__ = [
    "Door",
    "Job",
    "assert_whole",
    "each_door",
    "each_kind",
    "outcome",
    "start",
    "through_slot",
    "through_submit",
]

Job = Callable[..., Awaitable[Any]]
Door = Callable[..., Coroutine[Any, Any, Any]]


async def through_submit(scheduler: TrafficScheduler, kind: Any, job: Job, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` by `submit`."""
    return await scheduler.submit(kind, job, *args, **options)


async def through_slot(scheduler: TrafficScheduler, kind: Any, job: Job, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` in a `slot()` block."""
    async with scheduler.slot(kind, **options):
        return await job(*args)


each_door: Final = pytest.mark.parametrize("run", [through_submit, through_slot], ids=["submit", "slot"])
each_kind: Final = pytest.mark.parametrize("kind", ["interactive", "batch"])


def start(awaitable: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task for `awaitable`, whose failure is nobody's surprise if the test does not look at it."""
    task = asyncio.ensure_future(awaitable)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    assert isinstance(task, asyncio.Task)
    return task


async def outcome(awaitable: Awaitable[Any]) -> type[BaseException] | None:
    """The type of what it raises, None if it returns."""
    try:
        await awaitable
    except BaseException as error:
        return type(error)
    return None


async def assert_whole(scheduler: TrafficScheduler) -> None:
    """Nothing runs or waits, each call is counted once, and as many calls as ever fit in at the same time."""
    await settle()
    scheduler.check()
    before = scheduler.snapshot()
    assert (before.running, before.interactive_queued, before.batch_queued) == (0, 0, 0)
    account(scheduler, "interactive")
    account(scheduler, "batch")

    crowd = [hold(scheduler, "interactive") for _ in range(before.max_concurrency + 1)]
    await settle()
    assert sum(held.started for held in crowd) == before.max_concurrency
    for held in crowd:
        held.release()
    await asyncio.gather(*(held.task for held in crowd))
    scheduler.check()
