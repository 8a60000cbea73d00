"""What a call pays for the scheduler, beside what it would pay for the two usual ways without one.

    python tests/benchmarks/overhead.py           about three minutes
    python tests/benchmarks/overhead.py --quick   half a minute; fewer blocks, at most 10^5 calls queued

Peers: an `asyncio.Semaphore`, which knows no priority, and the hand-written way to have priority, an
`asyncio.PriorityQueue` with as many workers as slots. Lines that they win are printed like the others.

How it is measured: the contestants of a table take turns in one process, block by block, every other round in
reverse; of each the fastest block counts. A block's time is `time.process_time`: on a shared machine
what other processes take is not ours, and what they spoil is gone with the slower blocks. The garbage collector is
on, and has just run where a block makes many tasks. So ratios repeat within a few percent; microseconds are this
machine's, and 10^5 tasks or more leave its caches, whoever queues them. Memory is counted by tracemalloc.
Figures only: it never fails on speed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import platform
import random
import sys
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual

Kind: TypeAlias = Literal["interactive", "batch"]
Work: TypeAlias = Callable[[], Awaitable[None]]
Waiting: TypeAlias = "asyncio.Task[None]"
KeyT = TypeVar("KeyT", bound=Hashable)

SEMAPHORE: Final = "asyncio.Semaphore"
WORKERS: Final = "PriorityQueue and workers"
BARE: Final = "no limit at all"
OURS: Final = "submit"
NEVER_BITES: Final = 1e9
WINDOW: Final = 60.0


class Call(Protocol):
    def __call__(self, kind: Kind, work: Work, /) -> Coroutine[object, object, None]: ...


Limiter: TypeAlias = Callable[[int], AbstractAsyncContextManager[Call]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How often, and up to which length."""

    short_blocks: int
    long_blocks: int
    cancel_blocks: int
    lengths: tuple[int, ...]
    cancelled: int = 100_000


FULL: Final = Effort(200, 30, 7, (1_000, 100_000, 1_000_000))
QUICK: Final = Effort(40, 7, 2, (1_000, 100_000))


# The contestants: each lets `slots` calls run at a time.


@asynccontextmanager
async def scheduled(slots: int) -> AsyncIterator[Call]:
    yield TrafficScheduler(
        max_concurrency=slots,
        batch_max_concurrency=slots - 1,
        interactive_rps_threshold=NEVER_BITES,
        interactive_p95_threshold=NEVER_BITES,
    ).submit


@asynccontextmanager
async def scheduled_without_thresholds(slots: int) -> AsyncIterator[Call]:
    yield TrafficScheduler(max_concurrency=slots, batch_max_concurrency=slots - 1).submit


@asynccontextmanager
async def scheduled_by_priority(slots: int) -> AsyncIterator[Call]:
    scheduler, draw = TrafficScheduler(max_concurrency=slots, batch_max_concurrency=slots - 1), random.Random(1).random
    yield lambda kind, work, /: scheduler.submit(kind, work, priority=draw())


@asynccontextmanager
async def semaphore(slots: int) -> AsyncIterator[Call]:
    gate = asyncio.Semaphore(slots)

    async def call(_: Kind, work: Work, /) -> None:
        async with gate:
            await work()

    yield call


@asynccontextmanager
async def workers(slots: int) -> AsyncIterator[Call]:
    queue: asyncio.PriorityQueue[tuple[bool, int, Work, asyncio.Future[None]]] = asyncio.PriorityQueue()
    number = 0

    async def call(kind: Kind, work: Work, /) -> None:
        nonlocal number
        number += 1
        done = asyncio.get_running_loop().create_future()
        queue.put_nowait((kind == "batch", number, work, done))
        await done

    async def worker() -> None:
        while True:
            _, _, work, done = await queue.get()
            if done.done():
                continue
            try:
                await work()
            except Exception as error:
                done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)

    crew = [asyncio.create_task(worker()) for _ in range(slots)]
    await passes()
    yield call
    await dismiss(crew)


@asynccontextmanager
async def unlimited(_: int) -> AsyncIterator[Call]:
    async def call(_: Kind, work: Work, /) -> None:
        await work()

    yield call


PEERS: Final[Mapping[str, Limiter]] = {OURS: scheduled, SEMAPHORE: semaphore, WORKERS: workers}


# What is called, and small words


async def nothing() -> None:
    pass


async def one_yield() -> None:
    await asyncio.sleep(0)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def passes(number: int = 4) -> None:
    """A cancel or a grant has reached everybody within three passes of the loop."""
    for _ in range(number):
        await asyncio.sleep(0)


async def dismiss(tasks: Sequence[Waiting]) -> None:
    for task in tasks:
        task.cancel()
    await passes()
    assert all(task.done() for task in tasks)


async def queue_up(call: Call, number: int) -> tuple[list[Waiting], list[Waiting]]:
    """Two calls that hold both slots, and `number` batch calls that wait."""
    holders = [asyncio.create_task(call("interactive", forever)), asyncio.create_task(call("batch", forever))]
    await passes()
    waiting = [asyncio.create_task(call("batch", forever)) for _ in range(number)]
    await passes()
    return holders, waiting


def fastest(rounds: int, blocks: Mapping[KeyT, Callable[[], float]]) -> dict[KeyT, float]:
    """Seconds per call of each block's best run; they take turns."""
    best = dict.fromkeys(blocks, math.inf)
    for turn in range(rounds):
        for name in reversed(blocks) if turn % 2 else blocks:
            best[name] = min(best[name], blocks[name]())
    return best


def power(number: int) -> str:
    return str(number) if number < 1_000 else f"10^{round(math.log10(number))}"


def bound(ratio: float, most: float, of: str = "") -> str:
    return f"{ratio:.2f} x {of}at most {most}: {'ok' if ratio <= most else 'over'}"


def table(title: str, figures: Mapping[str, float], notes: Mapping[str, str], *, scale: float = 1e6) -> None:
    print(f"\n{title}")
    for name, figure in figures.items():
        ratios = (f"{figure / figures[peer]:11.3g}" if peer in figures else " " * 11 for peer in (SEMAPHORE, WORKERS))
        print(f"  {name:<34}{figure * scale:10.2f}{''.join(ratios)}  {notes.get(name, '')}".rstrip(), flush=True)


# A call on its own


async def uncontended(limiter: Limiter, kind: Kind, number: int = 2_560) -> float:
    async with limiter(100) as call:
        await call(kind, nothing)
        began = process_time()
        for _ in range(number):
            await call(kind, nothing)
        return (process_time() - began) / number


async def uncontended_semaphore(number: int = 2_560) -> float:
    gate = asyncio.Semaphore(100)
    began = process_time()
    for _ in range(number):
        async with gate:
            await nothing()
    return (process_time() - began) / number


def show_uncontended(runner: asyncio.Runner, effort: Effort) -> None:
    blocks: dict[str, Callable[[], float]] = {
        "submit, interactive": lambda: runner.run(uncontended(scheduled, "interactive")),
        "submit, batch": lambda: runner.run(uncontended(scheduled, "batch")),
        SEMAPHORE: lambda: runner.run(uncontended_semaphore()),
        WORKERS: lambda: runner.run(uncontended(workers, "interactive")),
    }
    figures = fastest(effort.short_blocks, blocks)
    most = 2.5 if sys.version_info >= (3, 12) else 3.0
    notes = {"submit, interactive": bound(figures["submit, interactive"] / figures[SEMAPHORE], most)}
    table("Uncontended, one call after another around a coroutine that does nothing", figures, notes)


# Many calls at once


async def contended(limiter: Limiter, number: int = 10_000) -> float:
    async with limiter(100) as call:
        await call("batch", one_yield)
        gc.collect()
        began = process_time()
        await asyncio.gather(*[call("batch" if i % 10 else "interactive", one_yield) for i in range(number)])
        return (process_time() - began) / number


def show_contended(runner: asyncio.Runner, effort: Effort) -> None:
    def block(limiter: Limiter) -> Callable[[], float]:
        return lambda: runner.run(contended(limiter))

    figures = fastest(effort.long_blocks, {name: block(limiter) for name, limiter in {**PEERS, BARE: unlimited}.items()})
    net = (figures[OURS] - figures[BARE]) / (figures[SEMAPHORE] - figures[BARE])
    notes = {
        OURS: bound(figures[OURS] / figures[SEMAPHORE], 1.15) + f"; {net:.2f} x without the harness",
        BARE: "the harness",
    }
    table("Contended, 10^4 calls at once by gather, 100 slots, 10 % interactive, one bare yield each", figures, notes)


# A full window


class Traffic:
    """A scheduler with so many samples in its window, on a virtual loop of its own; each block adds 256.

    It is made anew when blocks have added a tenth. 256: samples are folded so many at a time, so a block pays for one fold.
    Spread over 100 clients, latencies and slices vary; while a block runs, the loop's clock stands still.
    """

    def __init__(self, samples: int, *, batch_waits: bool) -> None:
        self._samples = samples
        self._batch_waits = batch_waits
        self._added = samples
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)

    def block(self) -> float:
        if self._added > self._samples / 10:
            self._runner.close()
            self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
            self._runner.run(self._fill())
            self._added = 0
        self._added += 256
        return self._runner.run(self._block())

    async def _fill(self) -> None:
        # Any arrival at all is far more than full pressure: of two batch calls one waits, and each change asks the law.
        self._scheduler = TrafficScheduler(
            max_concurrency=200, interactive_rps_threshold=1e-9, interactive_p95_threshold=NEVER_BITES, window=WINDOW
        )
        draw, clients = random.Random(1).random, min(100, self._samples)
        pause = WINDOW / 3 * clients / self._samples

        async def client() -> None:
            for _ in range(self._samples // clients):
                await self._scheduler.submit("interactive", lambda: asyncio.sleep(pause * draw()))

        await asyncio.gather(*[client() for _ in range(clients)])
        if self._batch_waits:
            self._batch = [asyncio.create_task(self._scheduler.submit("batch", forever)) for _ in range(2)]
            await passes()

    async def _block(self) -> float:
        began = process_time()
        for _ in range(256):
            await self._scheduler.submit("interactive", nothing)
        seconds = (process_time() - began) / 256
        snapshot = self._scheduler.snapshot()
        assert snapshot.interactive.sample_count == self._samples + self._added
        assert snapshot.batch_queued == self._batch_waits
        return seconds


