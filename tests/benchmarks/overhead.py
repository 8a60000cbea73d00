"""What a call pays for the scheduler, beside what it would pay for the two usual ways without one.

    python tests/benchmarks/overhead.py           minutes, and 5 GB of memory
    python tests/benchmarks/overhead.py --quick   for CI: fewer rounds, shorter queues

Peers: an `asyncio.Semaphore`, which knows no priority, and the hand-written way to have priority, an
`asyncio.PriorityQueue` with a worker per slot. Lines that they win are printed like the others.

How it is measured: microseconds are those of the fastest block, and this machine's; ratios are medians over rounds
in which all contestants take turns (contestants.py says why), so they are not quite the ratios of the microseconds.
Time is `time.process_time`, without what other processes take. Where calls come many at once, a call includes its
task, and the collector, which is on, has just run or does not look at what was there before. Never fails on speed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import platform
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual
from tests.benchmarks.contestants import (
    IN_A_ROW,
    NEVER_BITES,
    ORDERS,
    OURS,
    PEERS,
    SEMAPHORE,
    WORKERS,
    Block,
    Call,
    Limiter,
    Tasks,
    Times,
    dismiss,
    forever,
    in_a_row,
    in_a_row_through,
    one_yield,
    passes,
    power,
    ratio,
    reach,
    scheduled,
    scheduled_by_priority,
    start,
    table,
    take_turns,
    unlimited,
    without_collector,
    workers,
)

BARE: Final = "bare tasks"
# A Semaphore searches its queue for each that leaves: all of them would take minutes.
SEMAPHORE_LEAVERS: Final = 100


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds of blocks of about 5, 20, 200 and 2,000 ms; lengths of queues; calls cancelled."""

    short_rounds: int
    medium_rounds: int
    long_rounds: int
    longest_rounds: int
    lengths: tuple[int, ...]
    cancelled: int


FULL: Final = Effort(100, 40, 15, 3, (1_000, 100_000, 1_000_000), 100_000)
QUICK: Final = Effort(40, 15, 5, 4, (1_000, 100_000), 5_000)


async def show_uncontended(effort: Effort) -> None:
    interactive, batch = "submit, interactive", "submit, batch"
    async with scheduled(100) as ours, workers(100) as crew:
        blocks: dict[str, Block] = {
            interactive: partial(in_a_row, ours, "interactive"),
            SEMAPHORE: partial(in_a_row_through, asyncio.Semaphore(100)),
            batch: partial(in_a_row, ours, "batch"),
            WORKERS: partial(in_a_row, crew, "interactive"),
        }
        times = await take_turns(effort.short_rounds, blocks)
    most = 2.5 if sys.version_info >= (3, 12) else 3.0
    notes = {interactive: reach(ratio(times[interactive], times[SEMAPHORE]), "Semaphore", most)}
    table("Uncontended: one call after another, of a coroutine that does nothing", times, notes)


async def all_at_once(limiter: Limiter, number: int = 10_000) -> float:
    async with limiter(100) as call:
        await call("batch", one_yield)
        gc.collect()
        began = process_time()
        await asyncio.gather(*[call("batch" if i % 10 else "interactive", one_yield) for i in range(number)])
        return (process_time() - began) / number


async def show_contended(effort: Effort) -> None:
    limiters = {**PEERS, "no limit: the harness": unlimited}
    blocks: dict[str, Block] = {name: partial(all_at_once, limiter) for name, limiter in limiters.items()}
    times = await take_turns(effort.long_rounds, blocks)
    notes = {OURS: reach(ratio(times[OURS], times[SEMAPHORE]), "Semaphore", 1.15)}
    table("Contended: 10^4 calls at once by gather, 100 slots, 10 % interactive, one bare yield each", times, notes)


class Traffic:
    """A scheduler with so many samples in its window before a block adds its own; made anew once those are a tenth."""

    def __init__(self, samples: int) -> None:
        self._samples = self._added = samples

    async def block(self, *, batch_waits: bool) -> float:
        if self._added > self._samples / 10:
            await self._renew()
        # A decision folds what there is, so there a shorter block will do.
        number = IN_A_ROW // 4 if batch_waits else IN_A_ROW
        self._added += number
        batch = await start(self._scheduler.submit, "batch", forever, 2 if batch_waits else 0)
        seconds = await in_a_row(self._scheduler.submit, "interactive", number)
        assert self._scheduler.snapshot().batch_queued == batch_waits
        await dismiss(batch)
        return seconds

    async def _renew(self) -> None:
        # Any arrival is far more than full pressure, so the second of two batch calls waits for the law to let it go.
        self._scheduler = TrafficScheduler(
            max_concurrency=100, interactive_rps_threshold=1e-9, interactive_p95_threshold=NEVER_BITES, window=3_600
        )
        clients = min(1_000, self._samples)

        async def client() -> None:
            for _ in range(self._samples // clients):
                await self._scheduler.submit("interactive", one_yield)

        # More clients than slots, so that they wait: latencies from microseconds to tens of milliseconds.
        await asyncio.gather(*[client() for _ in range(clients)])
        self._added = 0


async def show_window(effort: Effort) -> None:
    gate, sizes = asyncio.Semaphore(100), (10, 1_000, 100_000)
    traffic = {size: Traffic(size) for size in sizes}
    for batch_waits, name in ((False, OURS), (True, "submit and decide")):
        blocks: dict[int, Block] = {size: partial(traffic[size].block, batch_waits=batch_waits) for size in sizes}
        times = await take_turns(effort.medium_rounds, {**blocks, 0: partial(in_a_row_through, gate)})
        rows = {f"{name}, {power(size)} samples": times[size] for size in sizes}
        growth = {row: reach(ratio(own, times[10]), "10 samples", 1.2) for row, own in list(rows.items())[1:]}
        what = "batch waits, so each submit and each end decides anew" if batch_waits else "nothing waits"
        table(f"Samples in the window: interactive, one after another, {what}", {**rows, SEMAPHORE: times[0]}, growth)


class StandingQueue:
    """Calls that wait for one slot, always so many: in a block as many join as run."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tasks: Tasks = []
        self._to_run = 0
        self._gate = self._stands = asyncio.get_running_loop().create_future()

    async def fill(self, length: int) -> None:
        self._tasks += await start(self._call, "interactive", forever)
        self._tasks += await start(self._call, "batch", self._work, length + 1)

    async def block(self, number: int = 1_000) -> float:
        # Out of the collector's sight: to look at millions of objects now and then is not the cost of these calls.
        gc.freeze()
        began = process_time()
        joining = [asyncio.create_task(self._call("batch", self._work)) for _ in range(number)]
        await asyncio.sleep(0)
        self._to_run, self._stands = number - 1, asyncio.get_running_loop().create_future()
        self._gate.set_result(None)
        await self._stands
        seconds = process_time() - began
        self._tasks += joining
        return seconds / number

    async def empty(self) -> None:
        # Those with a slot go last: while one is free, 3.13's Semaphore looks through its queue for each that leaves.
        left = [task for task in self._tasks if not task.done()]
        await dismiss(left[2:])
        await dismiss(left[:2])
        self._tasks.clear()

    async def _work(self) -> None:
        if self._to_run:
            self._to_run -= 1
            await asyncio.sleep(0)
        else:
            self._stands.set_result(None)
            self._gate = asyncio.get_running_loop().create_future()
            await self._gate


async def queued_calls(lengths: tuple[int, ...], rounds: int) -> dict[tuple[int, str], Times]:
    async with AsyncExitStack() as stack:
        queues: dict[tuple[int, str], StandingQueue] = {}
        for length in lengths:
            more = {} if length == lengths[-1] else {"submit, random priorities": scheduled_by_priority}
            for name, limiter in {**PEERS, **more}.items():
                queue = queues[length, name] = StandingQueue(await stack.enter_async_context(limiter(2)))
                await queue.fill(length)
        times = await take_turns(rounds, {key: queue.block for key, queue in queues.items()})
        with without_collector():
            for queue in queues.values():
                await queue.empty()
        gc.unfreeze()
    return times


async def show_queued(effort: Effort) -> None:
    times, shortest = await queued_calls(effort.lengths, effort.medium_rounds), effort.lengths[0]
    gc.collect()
    for length in effort.lengths:
        rows = {name: own for (queued, name), own in times.items() if queued == length}
        growth = {name: ratio(own, times[shortest, name]) for name, own in rows.items() if length > shortest}
        notes = {name: f"{figure:.2f} x {power(shortest)}" for name, figure in growth.items()}
        if OURS in growth:
            notes[OURS] = reach(growth[OURS], power(shortest), 1.6)
        table(f"{power(length)} calls queued, and always so many: make a task, submit, wait, wake, run", rows, notes)


async def cancelling(limiter: Limiter, order: Callable[[Tasks], Tasks], queued: int, leavers: int) -> float:
    async with limiter(2) as call:
        holders = [*await start(call, "interactive", forever), *await start(call, "batch", forever)]
        waiting = await start(call, "batch", forever, queued)
        leaving = order(waiting)[:leavers]
        gc.freeze()
        began = process_time()
        for task in leaving:
            task.cancel()
        await passes()
        seconds = (process_time() - began) / leavers
        await dismiss([*waiting, *holders])
        gc.unfreeze()
    return seconds


async def show_cancelling(effort: Effort) -> None:
    number = effort.cancelled
    leavers = {OURS: number, BARE: number, WORKERS: number, SEMAPHORE: SEMAPHORE_LEAVERS}
    for name, order in ORDERS.items():
        ways = {**PEERS, BARE: unlimited}
        blocks: dict[str, Block] = {who: partial(cancelling, ways[who], order, number, leavers[who]) for who in leavers}
        times = await take_turns(effort.longest_rounds, blocks)
        notes = {OURS: reach(ratio(times[OURS], times[BARE]), BARE, 2), SEMAPHORE: f"{SEMAPHORE_LEAVERS} of them"}
        table(f"Cancelling {power(number)} queued calls, {name}", times, notes)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def memory(limiter: Limiter, number: int) -> tuple[float, float]:
    """Bytes for each call that waits, and those left in all after every one was cancelled."""
    async with limiter(2) as call:
        holders = [*await start(call, "interactive", forever), *await start(call, "batch", forever)]
        before = traced()
        waiting = await start(call, "batch", forever, number)
        queued = traced()
        await dismiss(waiting if limiter is PEERS[SEMAPHORE] else ORDERS["random order"](waiting))
        del waiting
        left = traced()
        await dismiss(holders)
    return (queued - before) / number, left - before


async def show_memory(effort: Effort) -> None:
    number = effort.cancelled
    tracemalloc.start()
    bare, _ = await memory(unlimited, number)  # first, for asyncio's own tables grow once
    found = {name: await memory(limiter, number) for name, limiter in PEERS.items()}
    tracemalloc.stop()
    waiting = {name: [queued] for name, (queued, _) in found.items()} | {BARE: [bare]}
    notes = {OURS: reach(ratio(waiting[OURS], waiting[SEMAPHORE]), "Semaphore", 1.3)}
    table(f"Memory of a waiting call, its task included, of {power(number)}", waiting, notes, "bytes")
    print(f"\nMemory left behind by {power(number)} calls cancelled in random order (Semaphore: first to last)")
    for name, (_, left) in found.items():
        # An empty deque keeps 16 blocks of 528 bytes for its next items.
        note = f"  at most 16 kB, however many: {'ok' if left <= 16_000 else 'over'}" if name == OURS else ""
        print(f"  {name:<31}{left / 1e3:>8.1f} kB{note}", flush=True)


async def people_and_backlog(limiter: Limiter) -> tuple[float, float]:
    """Interactive P95 and time to the end, in seconds."""
    loop, latencies = asyncio.get_running_loop(), list[float]()

    async def serve() -> None:
        await asyncio.sleep(0.020)

    async def person(number: int) -> None:
        await asyncio.sleep(0.015 * number)
        began = loop.time()
        await call("interactive", serve)
        latencies.append(loop.time() - began)

    async with limiter(10) as call:
        backlog = [asyncio.create_task(call("batch", serve)) for _ in range(1_000)]
        await asyncio.gather(*backlog, *[person(number) for number in range(120)])
        total = loop.time()
    return sorted(latencies)[math.ceil(0.95 * 120) - 1], total


def show_policy() -> None:
    by_default = f"{OURS}, no thresholds"
    limiters: dict[str, Limiter] = {**PEERS, by_default: partial(scheduled, threshold=None)}
    found = {name: run_virtual(people_and_backlog(limiter)) for name, limiter in limiters.items()}
    p95, total = found[OURS]
    print("\nFor what: 10 slots, 20 ms a call, 1,000 batch calls queued, 120 people one every 15 ms, in virtual time")
    print(f"  {'':<31}{'P95':>11}{'all done':>12}")
    for name, (latency, end) in found.items():
        print(f"  {name:<31}{latency * 1e3:>8.1f} ms{end:>10.3f} s")
    print(f"  P95 {p95 * 1e3:.1f} ms, at most 45: {'ok' if p95 <= 0.045 else 'over'}")
    print(f"  all done in {reach(total / found[SEMAPHORE][1], 'Semaphore', 1.05)}")
    p95, total = found[by_default]
    print(
        f"  without thresholds a slot stays free for the next interactive call, always: P95 {p95 * 1e3:.1f} ms,"
        f" all done in {total / found[SEMAPHORE][1]:.2f} x Semaphore"
    )


async def show_costs(effort: Effort) -> None:
    for show in (show_uncontended, show_contended, show_window, show_queued, show_cancelling, show_memory):
        await show(effort)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    effort = QUICK if parser.parse_args().quick else FULL
    began, processor = perf_counter(), process_time()
    print(f"{platform.python_implementation()} {platform.python_version()}; fastest block, median ratios")
    asyncio.run(show_costs(effort))
    show_policy()
    print(f"\n{perf_counter() - began:.0f} s, {process_time() - processor:.0f} s of processor time")


if __name__ == "__main__":
    main()
