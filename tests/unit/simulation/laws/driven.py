"""A law driven by hand, slice by slice; and in a scheduler, before a backend in which something goes wrong.

`from tests.unit.simulation.laws.driven import Driven, Crowd`
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

from llm_traffic_scheduler import Ended, LimitPolicy, ObservingPolicy, Signals, TrafficScheduler
from llm_traffic_scheduler.simulation import Backend, Broken, Overloaded, Reporting, Throttled

__all__ = ["Crowd", "Driven"]

SIGNALS = Signals(max_concurrency=128, batch_max=64, batch_min=1, slice_length=0.1)


@dataclass
class Driven:
    """A law, and batch work that always uses all that it may have."""

    law: LimitPolicy
    now: float = 1000.0
    signals: Signals = SIGNALS
    uses: bool = True
    limits: list[int] = field(default_factory=list)

    @property
    def limit(self) -> int:
        return self.law.decide(self.now, self.signals).limit

    def run(self, seconds: float, *, pace: float | None = None, outcome: str = "completed", **signals: float) -> int:
        """Let time pass, with one interactive call of 1 s and 10 tokens, `pace` seconds each, ending per second."""
        for step in range(round(seconds / 0.1)):
            self.now += 0.1
            self.signals = replace(self.signals, **signals)  # type: ignore[arg-type]
            if self.uses:
                self.signals = replace(self.signals, batch_running=self.limit)
            if pace is not None and step % 10 == 0 and isinstance(self.law, ObservingPolicy):
                self.law.observe(self.now, Ended(0, 10 * pace, None, 10, outcome))  # type: ignore[arg-type]
            self.law.advance(self.now, self.signals)
            self.limits.append(self.limit)
        return self.limits[-1]


class Crowd:
    """Interactive calls, four per second, beside 24 batch callers that come again two seconds after a failure."""

    def __init__(self, policy: LimitPolicy, backend: Backend) -> None:
        self.scheduler = TrafficScheduler(
            max_concurrency=48, batch_max_concurrency=20, batch_min_concurrency=1, policy=policy
        )
        self.backend = Reporting(backend)
        self.limits: list[int] = []  # at each second
        self.reasons: set[str] = set()

    async def run(self, seconds: int) -> list[int]:
        """The batch limit at each of so many seconds."""
        tasks = [asyncio.create_task(self._batch()) for _ in range(24)]
        tasks.append(asyncio.create_task(self._interactive()))
        for _ in range(seconds):
            await asyncio.sleep(1)
            snapshot = self.scheduler.snapshot()
            self.limits.append(snapshot.batch_limit)
            self.reasons.add(snapshot.reason)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.scheduler.close(timeout=0)
        return self.limits

    async def _batch(self) -> None:
        while True:
            if not await self._call("batch", 1000, 200):
                await asyncio.sleep(2)

    async def _interactive(self) -> None:
        draw = random.Random(1)
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(draw.expovariate(4.0))
                group.create_task(self._call("interactive", 200, 40))

    async def _call(self, kind: str, prompt: int, output: int) -> bool:
        try:
            await self.scheduler.submit(kind, self.backend.serve, prompt, output)  # type: ignore[arg-type]
        except (Broken, Overloaded, Throttled, TimeoutError):
            return False
        return True
