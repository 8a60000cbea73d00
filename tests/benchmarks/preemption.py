"""How much sooner interactive calls run if batch calls may be preempted, and what that costs the batch job.

    python tests/benchmarks/preemption.py           ten minutes of traffic, five times per line; about a minute
    python tests/benchmarks/preemption.py --quick   for CI: two minutes of traffic, once per line

Traffic: a batch job that always has calls waiting, of 5 to 15 s each (uniform), and a burst of interactive calls of
0.5 to 1.5 s every 20 s. Both arms see the same calls; in one all batch calls are `preemptible`, in the other none.
Time is virtual. The first minute counts for nothing: the share that may be lost is one of the last 60 s.

Backends: "stops" ends a call at once when its client hangs up, as vLLM and SGLang do; "A100" is the simulated engine of
the simulation, which does not notice and computes preempted calls to their ends: the worst that a backend can do. There
calls have lengths in tokens, and take as long as what runs beside them makes them.

What is lost is measured from outside, from begin to end of each run of the batch function, cleaning up included:
in the whole run, and in the worst 60 s before such an end; the reach is a twentieth. "gap" is the longest time from
the end of a preempted run to the next start of an interactive call, if one waited then: the reach is 0, the same pass
of the loop or the next.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.simulation.batching_server import BatchingServer
from llm_traffic_scheduler.testing import run_virtual

WARM_UP: Final = 60.0
MINUTE: Final = 60.0
EVERY: Final = 20.0

Serve = Callable[[float], Awaitable[object]]
"""Work of so many seconds on an idle backend."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One line of the table."""

    backend: str
    slots: int
    batch: int
    burst: int


SETUPS: Final = (
    Setup("stops", 8, 7, 6),
    Setup("stops", 16, 15, 8),
    Setup("stops", 32, 31, 16),
    Setup("stops", 64, 63, 32),
    Setup("stops", 32, 24, 16),
    Setup("A100", 32, 31, 16),
    Setup("A100", 64, 63, 32),
)


@dataclass(slots=True)
class Run:
    """What was seen of one arm after the warm-up."""

    waits: list[float] = field(default_factory=list)
    ends: int = 0
    batch_ends: int = 0
    runs: list[tuple[float, float, bool]] = field(default_factory=list)  # begin, end, for nothing
    freed: list[float] = field(default_factory=list)  # when a preempted run ended for which somebody waited
    starts: list[float] = field(default_factory=list)  # of interactive calls
    preempted: int = 0
    most: int = 0

    def share_lost(self, since: float, until: float) -> float:
        """Of the batch slot-seconds in between, what preempted runs that ended in between have had."""
        taken = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end, _ in self.runs)
        return sum(end - begin for begin, end, lost in self.runs if lost and since < end <= until) / taken

    def worst(self, since: float) -> float:
        """The highest share of a minute that ends when a preempted run does."""
        ends = {end for _, end, lost in self.runs if lost and end >= since}
        return max((self.share_lost(end - MINUTE, end) for end in ends), default=0.0)

    def gap(self) -> float:
        """The longest time from a preempted run's end to the next start of an interactive call."""
        gaps = [min((start - end for start in self.starts if start >= end), default=math.inf) for end in self.freed]
        return max(gaps, default=0.0)


def backend(name: str) -> Serve:
    """A new one."""
    if name == "stops":
        return asyncio.sleep
    server = BatchingServer()
    return lambda seconds: server.serve(1000, max(1, round(seconds * 60)))


async def one_arm(setup: Setup, preemptible: bool, seconds: float, seed: int) -> Run:
    """The traffic through one scheduler."""
    loop, seen, serve = asyncio.get_running_loop(), Run(), backend(setup.backend)
    begin = loop.time() + WARM_UP
    end = begin + seconds
    scheduler = TrafficScheduler(max_concurrency=setup.slots, batch_max_concurrency=setup.batch)
    draw_batch, draw_people = random.Random(f"batch {seed}"), random.Random(f"people {seed}")

    async def batch(seconds: float, runs: list[int]) -> None:
        began, lost = loop.time(), True
        runs.append(1)
        try:
            await serve(seconds)
            lost = False
        finally:
            seen.runs.append((began, loop.time(), lost))
            if lost and scheduler.snapshot().interactive_queued:
                seen.freed.append(loop.time())

    async def batch_worker() -> None:
        while loop.time() < end:
            runs: list[int] = []
            await scheduler.submit("batch", batch, draw_batch.uniform(5, 15), runs, preemptible=preemptible)
            seen.batch_ends += begin <= loop.time() < end
            seen.most = max(seen.most, len(runs))

    async def person(seconds: float) -> None:
        came = loop.time()

        async def work() -> None:
            if came >= begin:
                seen.waits.append(loop.time() - came)
            seen.starts.append(loop.time())
            await serve(seconds)

        await scheduler.submit("interactive", work)

    async def people() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(round((end - loop.time()) / EVERY)):
                await asyncio.sleep(EVERY * (number + draw_people.random()) - (loop.time() - begin + WARM_UP))
                for _ in range(setup.burst):
                    _ = group.create_task(person(draw_people.uniform(0.5, 1.5)))

    workers = [asyncio.create_task(batch_worker()) for _ in range(2 * setup.batch)]
    await people()
    await asyncio.gather(*workers)
    seen.preempted = scheduler.snapshot().totals["batch"].preempted
    return seen


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def line(setup: Setup, seconds: float, seeds: int) -> str:
    """Both arms, all seeds."""
    cells = [f"{setup.backend:>6} {setup.slots:>5} {setup.batch:>5} {setup.burst:>5}"]
    arms = {
        preemptible: [run_virtual(one_arm(setup, preemptible, seconds, seed)) for seed in range(seeds)]
        for preemptible in (False, True)
    }
    for runs in arms.values():
        waits = [wait for run in runs for wait in run.waits]
        cells.append(f"{statistics.fmean(waits):8.2f} {quantile(waits, 0.95):6.2f} {max(waits):6.2f}")
    with_it = arms[True]
    whole = statistics.fmean(run.share_lost(WARM_UP, WARM_UP + seconds) for run in with_it)
    worst = max(run.worst(WARM_UP) for run in with_it)
    done = sum(run.batch_ends for run in with_it) / sum(run.batch_ends for run in arms[False])
    per_minute = sum(run.preempted for run in with_it) / (seeds * (seconds + WARM_UP) / MINUTE)
    most, gap = max(run.most for run in with_it), max(run.gap() for run in with_it)
    cells.append(f"{whole:9.1%} {worst:7.1%} {done - 1:+7.1%} {per_minute:7.1f} {most:5} {gap:6.3f}")
    return " |".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seconds, seeds = (120.0, 1) if given.quick else (600.0, 5)
    print("seconds that interactive calls wait for a slot; batch time that is lost; batch calls that end; preemptions")
    print(f"{'':24} |    none preemptible    |    all preemptible     | time lost")
    print(f"backend slots batch burst |{2 * '     mean    P95    max |'}   in all   worst  ended per min  runs    gap")
    for setup in SETUPS:
        print(line(setup, seconds, seeds), flush=True)


if __name__ == "__main__":
    main()
