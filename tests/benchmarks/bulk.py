"""What bulk work costs per item, and whether its memory stays where it is.

    python tests/benchmarks/bulk.py           a million items per line; some minutes
    python tests/benchmarks/bulk.py --quick   for CI: twenty thousand items per line

Each line runs a function that does nothing but `await asyncio.sleep(0)` over all items, in a process of its own, eight
calls at a time. Compared with `asyncio.gather` over chunks of sixteen items, which knows no limit, no order of
importance and no slow consumer. "peak" is how much the process's resident memory grew from the thousandth item on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from llm_traffic_scheduler import FixedPolicy, TrafficScheduler

CHUNK: Final = 16
WARM_UP: Final = 1_000


async def nothing(_: int) -> None:
    await asyncio.sleep(0)


async def streamed(items: range) -> AsyncIterator[int]:
    for item in items:
        yield item


def make(**settings: Any) -> TrafficScheduler:
    return TrafficScheduler(max_concurrency=9, batch_max_concurrency=8, policy=FixedPolicy(8), **settings)


async def gather(items: range) -> None:
    for first in range(0, len(items), CHUNK):
        await asyncio.gather(*map(nothing, items[first : first + CHUNK]))


async def map_(items: range) -> None:
    async for _ in make().map("batch", nothing, items):
        pass


async def as_completed(items: range) -> None:
    async for _ in make().as_completed("batch", nothing, items):
        pass


async def map_of_a_stream(items: range) -> None:
    async for _ in make().map("batch", nothing, streamed(items)):
        pass


async def map_with_a_bound(items: range) -> None:
    async for _ in make(max_queued_batch=4).map("batch", nothing, items):
        pass


ARMS: Final[dict[str, Callable[[range], Awaitable[None]]]] = {
    "gather in chunks": gather,
    "map": map_,
    "as_completed": as_completed,
    "map, async items": map_of_a_stream,
    "map, bounded queue": map_with_a_bound,
}


def peak() -> float:
    """The most memory the process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(arm: str, items: int) -> tuple[float, float]:
    """Microseconds per item, and MB that the peak grew by."""

    async def main() -> tuple[float, float]:
        await ARMS[arm](range(WARM_UP))
        memory, began = peak(), time.perf_counter()
        await ARMS[arm](range(items))
        return (time.perf_counter() - began) / items * 1e6, peak() - memory

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description="What bulk work costs per item.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--arm", choices=ARMS)
    given = parser.parse_args()
    items = 20_000 if given.quick else 1_000_000
    if given.arm:
        print(json.dumps(measure(given.arm, items)))
        return
    print(f"{items} items\n{'':20} us/item  ratio  peak MB")
    first = None
    for arm in ARMS:
        quick = ["--quick"] if given.quick else []
        ran = subprocess.run(
            [sys.executable, __file__, "--arm", arm, *quick], capture_output=True, text=True, check=True
        )
        cost, grown = json.loads(ran.stdout)
        first = first or cost
        print(f"{arm:20} {cost:7.1f} {cost / first:6.2f} {grown:8.1f}", flush=True)


if __name__ == "__main__":
    main()
