"""What a policy costs, beside an uncontended `async with Semaphore` around a coroutine that does nothing.

    python tests/benchmarks/policies.py           about a minute
    python tests/benchmarks/policies.py --quick   for CI

Two figures per law: one evaluation (`decide`, with `advance` once per slice of the window, at a hundred evaluations
per second) and one interactive call (its arrival and its end, by `observe`). Traffic differs in the calls that are
unfinished meanwhile and in their distance, for weights are renewed at most four times a second. Last, a whole
interactive submit while batch work waits, so that the limit is asked for. As in overhead.py, ratios are medians over
rounds in which all take turns, time is `time.process_time`, and nothing fails on speed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    Ended,
    FixedPolicy,
    LimitPolicy,
    PressurePolicy,
    Signals,
    TrafficScheduler,
)
from tests.benchmarks.contestants import (
    SEMAPHORE,
    Block,
    in_a_row_through,
    nothing,
    ratio,
    reach,
    table,
    take_turns,
)

TARGET: Final = 10.0
MOST_PER_DECISION: Final = 4.0
MOST_PER_CALL: Final = 33.0
IN_A_ROW: Final = 2_000


class Traffic:
    """A policy amid interactive calls that come `gap` seconds apart and end out of order."""

    def __init__(self, policy: AdaptivePolicy, *, unfinished: int, gap: float) -> None:
        self.policy, self.gap = policy, gap
        self.now, self.number = 0.0, 0
        self.draw = random.Random(1)
        self.live: dict[int, float] = {}
        self.signals = Signals(max_concurrency=128, batch_max=64, batch_running=20, batch_queued=100)
        policy.advance(self.now, self.signals)
        for _ in range(unfinished):
            self.arrive(TARGET / unfinished)

    def arrive(self, gap: float) -> None:
        self.now += gap
        self.number += 1
        self.live[self.number] = self.now
        self.policy.observe(self.now, Arrived(self.number))

    async def calls(self) -> float:
        """Seconds per call for an arrival and an end, with the advances between them."""
        latencies = [self.draw.lognormvariate(1.0, 0.8) for _ in range(IN_A_ROW)]
        advance, observe, signals, gap = self.policy.advance, self.policy.observe, self.signals, self.gap
        oldest = iter(list(self.live))
        ended = [next(oldest, 0) for _ in range(IN_A_ROW)]
        now, number, advanced = self.now, self.number, self.now
        began = process_time()
        for latency, end in zip(latencies, ended, strict=True):
            now += gap
            number += 1
            if now - advanced >= 0.1:
                advanced = now
                advance(now, signals)
            observe(now, Arrived(number))
            observe(now, Ended(end or number, latency))
        took = (process_time() - began) / IN_A_ROW
        for end, new in zip(ended, range(self.number + 1, number + 1), strict=True):
            if end:
                del self.live[end]
                self.live[new] = now
        self.now, self.number = now, number
        return took


async def decisions(policy: LimitPolicy) -> float:
    """Seconds per evaluation at a hundred a second, with one `advance` in ten."""
    signals = Signals(
        max_concurrency=128, batch_max=64, interactive_running=9, batch_running=20, batch_queued=100, rps=3.0, p95=4.0
    )
    now = 1000.0
    began = process_time()
    for step in range(IN_A_ROW):
        now += 0.01
        if not step % 10:
            policy.advance(now, signals)
        policy.decide(now, signals)
    return (process_time() - began) / IN_A_ROW


def learnt(policy: AdaptivePolicy) -> AdaptivePolicy:
    """The policy after a thousand calls."""
    now, draw = 0.0, random.Random(2)
    for call in range(1, 1001):
        now += 0.5
        policy.observe(now, Arrived(call))
        now += (latency := draw.lognormvariate(0.0, 0.5))
        policy.advance(now, Signals(max_concurrency=128, batch_max=64, batch_running=20))
        policy.observe(now, Ended(call, latency))
    return policy


@asynccontextmanager
async def under_load(policy: LimitPolicy) -> AsyncIterator[TrafficScheduler]:
    """A scheduler with 20 batch calls that never end, while 180 more wait for what its policy says."""
    async with TrafficScheduler(max_concurrency=128, batch_max_concurrency=64, policy=FixedPolicy(20)) as scheduler:
        forever = asyncio.Event()
        tasks = [asyncio.create_task(scheduler.submit("batch", forever.wait)) for _ in range(200)]
        await asyncio.sleep(0)
        await scheduler.submit("interactive", nothing)
        scheduler.configure(policy=policy)
        yield scheduler
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def submits(scheduler: TrafficScheduler) -> float:
    began = process_time()
    for _ in range(IN_A_ROW):
        await scheduler.submit("interactive", nothing)
    return (process_time() - began) / IN_A_ROW


async def show(rounds: int) -> None:
    semaphore = partial(in_a_row_through, asyncio.Semaphore(100))
    laws: dict[str, LimitPolicy] = {
        "FixedPolicy": FixedPolicy(8),
        "PressurePolicy": PressurePolicy(20.0, 5.0),
        "PressurePolicy, smoothed": PressurePolicy(20.0, 5.0, smoothing=5.0),
        "AdaptivePolicy, no target": AdaptivePolicy(),
        "AdaptivePolicy, p95_target": learnt(AdaptivePolicy(p95_target=TARGET)),
    }
    blocks: dict[str, Block] = {SEMAPHORE: semaphore, **{name: partial(decisions, law) for name, law in laws.items()}}
    times = await take_turns(rounds, blocks)
    notes = {name: reach(ratio(times[name], times[SEMAPHORE]), "Semaphore", MOST_PER_DECISION) for name in laws}
    table("One evaluation of the law, amortised", times, notes)

    traffic = {
        f"{unfinished:,} unfinished, a call every {gap:g} s": Traffic(
            AdaptivePolicy(p95_target=TARGET), unfinished=unfinished, gap=gap
        )
        for unfinished, gap in ((0, 20.0), (10, 0.3), (10, 0.001), (1_000, 0.3), (100_000, 0.3), (100_000, 0.0001))
    }
    blocks = {SEMAPHORE: semaphore, **{name: each.calls for name, each in traffic.items()}}
    times = await take_turns(rounds, blocks)
    notes = {name: reach(ratio(times[name], times[SEMAPHORE]), "Semaphore", MOST_PER_CALL) for name in traffic}
    table("AdaptivePolicy(p95_target=10): arrival and end of one interactive call", times, notes)

    async with (
        under_load(FixedPolicy(20)) as fixed,
        under_load(PressurePolicy(rps_threshold=1e-3, p95_threshold=10.0)) as pressure,
        under_load(learnt(AdaptivePolicy(p95_target=TARGET))) as adaptive,
    ):
        blocks = {
            SEMAPHORE: semaphore,
            "FixedPolicy": partial(submits, fixed),
            "PressurePolicy": partial(submits, pressure),
            "AdaptivePolicy": partial(submits, adaptive),
        }
        table("A whole interactive submit while batch work waits", await take_turns(rounds, blocks), {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    asyncio.run(show(10 if parser.parse_args().quick else 60))


if __name__ == "__main__":
    main()
