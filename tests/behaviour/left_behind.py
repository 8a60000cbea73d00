"""A loop that went away in the middle of everything, for the tests of what remains."""

from __future__ import annotations

import asyncio
from typing import Any

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, outcome, start
from tests.support import settle

__all__ = ["Left"]


class Left:
    """A loop that was left with two calls running and four waiting, each of them with a timeout."""

    def __init__(self, scheduler: TrafficScheduler, run: Door) -> None:
        self.loop = VirtualTimeLoop()
        self.gate = asyncio.Event()
        self.tasks = self.loop.run_until_complete(self._begin(scheduler, run))

    async def _begin(self, scheduler: TrafficScheduler, run: Door) -> list[asyncio.Task[Any]]:
        options = {"queue_timeout": 50, "run_timeout": 50}
        kinds = ["interactive"] * 4 + ["batch"] * 2
        tasks = [start(run(scheduler, kind, self.gate.wait, **options)) for kind in kinds]
        await settle()
        return tasks

    def finish(self) -> list[type[BaseException] | None]:
        """Let the loop run again, to its end."""
        self.gate.set()

        async def end() -> list[type[BaseException] | None]:
            return [await outcome(task) for task in self.tasks]

        endings = self.loop.run_until_complete(end())
        self.loop.close()
        return endings

    def drop(self) -> None:
        """Close the loop as it is, and leave the rest to the garbage collector."""
        self.loop.close()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.clear()
