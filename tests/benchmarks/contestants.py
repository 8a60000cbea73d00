"""Who competes in the benchmarks, and how a fair race on a noisy machine is run.

The contestants take turns in one process, block by block, every other round in reverse. A ratio is the
median over the rounds of the ratio within a round, since neighbours meet the same weather: with five other
processes per core the ratio of two minima of 0.2 s blocks varied by 9 % over ten rounds, the median by 3 %.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from statistics import median
from time import process_time
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

from llm_traffic_scheduler import TrafficScheduler

__all__ = [
    "IN_A_ROW",
    "NEVER_BITES",
    "ORDERS",
    "OURS",
    "PEERS",
    "SEMAPHORE",
    "WORKERS",
    "Block",
    "Call",
    "Kind",
    "Limiter",
    "Tasks",
    "Times",
    "dismiss",
    "forever",
    "in_a_row",
    "in_a_row_through",
    "nothing",
    "one_yield",
    "passes",
    "power",
    "ratio",
    "reach",
    "scheduled",
    "scheduled_by_priority",
    "start",
    "table",
    "take_turns",
    "unlimited",
    "without_collector",
    "workers",
]

Kind: TypeAlias = Literal["interactive", "batch"]
Work: TypeAlias = Callable[[], Awaitable[None]]
Tasks: TypeAlias = "list[asyncio.Task[None]]"
Block: TypeAlias = Callable[[], Awaitable[float]]  # returns seconds per call
Times: TypeAlias = list[float]  # what a block returned, one for each round
KeyT = TypeVar("KeyT", bound=Hashable)

OURS: Final = "submit"
SEMAPHORE: Final = "asyncio.Semaphore"
WORKERS: Final = "PriorityQueue and workers"
NEVER_BITES: Final = 1e9
# The window folds samples in some hundreds at a time, by powers of two: a block of so many calls pays for whole folds.
IN_A_ROW: Final = 1_024


class Call(Protocol):
    """Runs `work` within a limit and waits for its end."""

    def __call__(self, kind: Kind, work: Work, /) -> Coroutine[object, object, None]: ...


# Lets so many calls run at a time, until it is left.
Limiter: TypeAlias = Callable[[int], AbstractAsyncContextManager[Call]]


@asynccontextmanager
async def scheduled(slots: int, threshold: float | None = NEVER_BITES) -> AsyncIterator[Call]:
    """This scheduler, with the pressure law at work unless `threshold` is None; one slot is closed to batch."""
    yield TrafficScheduler(
        max_concurrency=slots,
        batch_max_concurrency=slots - 1,
        interactive_rps_threshold=threshold,
        interactive_p95_threshold=threshold,
    ).submit


@asynccontextmanager
async def scheduled_by_priority(slots: int) -> AsyncIterator[Call]:
    """The same, each call with a priority of its own: nothing comes in the order in which it leaves."""
    draw = random.Random(1).random
    scheduler = TrafficScheduler(
        max_concurrency=slots,
        batch_max_concurrency=slots - 1,
        interactive_rps_threshold=NEVER_BITES,
        interactive_p95_threshold=NEVER_BITES,
    )
    yield lambda kind, work, /: scheduler.submit(kind, work, priority=draw())


@asynccontextmanager
async def semaphore(slots: int) -> AsyncIterator[Call]:
    """First come, first served, whatever the kind."""
    gate = asyncio.Semaphore(slots)

    async def call(kind: Kind, work: Work, /) -> None:
        async with gate:
            await work()

    yield call


@asynccontextmanager
async def workers(slots: int) -> AsyncIterator[Call]:
    """The hand-written way to put interactive calls first: a queue by priority and a worker per slot."""
    queue: asyncio.PriorityQueue[tuple[bool, int, Work, asyncio.Future[None]]] = asyncio.PriorityQueue()
    number = 0

    async def call(kind: Kind, work: Work, /) -> None:
        nonlocal number
        number += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.put_nowait((kind == "batch", number, work, done))
        await done

    async def worker() -> None:
        while True:
            _, _, work, done = await queue.get()
            if done.done():  # its caller has left
                continue
            try:
                await work()
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)

    crew = [asyncio.create_task(worker()) for _ in range(slots)]
    await passes()
    yield call
    await dismiss(crew)


@asynccontextmanager
async def unlimited(slots: int) -> AsyncIterator[Call]:
    """No limit: what the harness costs."""

    async def call(kind: Kind, work: Work, /) -> None:
        await work()

    yield call


ORDERS: Final[Mapping[str, Callable[[Tasks], Tasks]]] = {
    "first to last": list,
    "last to first": lambda tasks: tasks[::-1],
    "random order": lambda tasks: random.Random(1).sample(tasks, len(tasks)),
}
PEERS: Final[Mapping[str, Limiter]] = {OURS: scheduled, SEMAPHORE: semaphore, WORKERS: workers}


async def nothing() -> None:
    """Return at once."""


async def one_yield() -> None:
    """Let the loop make one pass."""
    await asyncio.sleep(0)


async def forever() -> None:
    """Run until cancelled."""
    await asyncio.get_running_loop().create_future()


async def passes() -> None:
    """Let follow what follows from a cancel or a grant; three passes of the loop are enough."""
    for _ in range(4):
        await asyncio.sleep(0)


@contextmanager
def without_collector() -> Iterator[None]:
    """It would look at the first again and again while the last come; of 10^5 new tasks that took half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def start(call: Call, kind: Kind, work: Work, number: int = 1) -> Tasks:
    """So many calls that run or wait, each in a task."""
    with without_collector():
        tasks = [asyncio.create_task(call(kind, work)) for _ in range(number)]
        await passes()
    return tasks


async def dismiss(tasks: Tasks) -> None:
    """Cancel them in this order, and let them end."""
    with without_collector():
        for task in tasks:
            task.cancel()
        await passes()
    assert all(task.done() for task in tasks)


async def in_a_row(call: Call, kind: Kind, number: int = IN_A_ROW) -> float:
    """A block: seconds per call of a coroutine that does nothing, one after another."""
    began = process_time()
    for _ in range(number):
        await call(kind, nothing)
    return (process_time() - began) / number


async def in_a_row_through(gate: asyncio.Semaphore) -> float:
    """The same through a Semaphore, as one writes it: no function around."""
    began = process_time()
    for _ in range(IN_A_ROW):
        async with gate:
            await nothing()
    return (process_time() - began) / IN_A_ROW


async def take_turns(rounds: int, blocks: Mapping[KeyT, Block]) -> dict[KeyT, Times]:
    """Run every block once a round."""
    times: dict[KeyT, Times] = {name: [] for name in blocks}
    for turn in range(rounds):
        for name in list(blocks)[:: -1 if turn % 2 else 1]:
            times[name].append(await blocks[name]())
    return times


def ratio(ours: Times, theirs: Times) -> float:
    """How many times as much as `theirs`."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=False))


def reach(figure: float, of: str, most: float) -> str:
    """The figure beside what it ought to be."""
    return f"{figure:.2f} x {of}, at most {most:g}: {'ok' if figure <= most else 'over'}"


def power(number: int) -> str:
    """As people write it: 10^5."""
    exponent = round(math.log10(number))
    return f"10^{exponent}" if number == 10**exponent and number > 10 else str(number)


def table(title: str, times: Mapping[str, Times], notes: Mapping[str, str], unit: str = "us/call") -> None:
    """Print the fastest block of each, in microseconds or as it is, and its ratios to the peers present."""
    print(f"\n{title}\n  {'':<31}{unit:>11}{'/Semaphore':>12}{'/workers':>10}")
    for name, own in times.items():
        shares = [f"{ratio(own, times[peer]):.3g}" if peer in times else "" for peer in (SEMAPHORE, WORKERS)]
        figure = min(own) * (1e6 if unit == "us/call" else 1)
        print(f"  {name:<31}{figure:>11.2f}{shares[0]:>12}{shares[1]:>10}  {notes.get(name, '')}".rstrip(), flush=True)
