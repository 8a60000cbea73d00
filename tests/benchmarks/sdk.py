"""What a request pays for passing through the scheduler's transport.

    python tests/benchmarks/sdk.py           seconds

The transport inside answers at once with a body of one piece, and makes what a real one makes: a response of the
library's. A request is sent, its body read and closed. What the scheduler adds is the difference to the bare
transport, as a multiple of an uncontended `asyncio.Semaphore`'s acquire and release around nothing.
Ratios are medians over rounds in which all take turns; time is `time.process_time`. Never fails on speed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from llm_traffic_scheduler import TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import SchedulingTransport

REQUESTS: Final = 1_000
MOST: Final = 80.0
URL: Final = "http://llm/v1/chat/completions"
SSE: Final = {"content-type": "text/event-stream"}
TOKEN: Final = b'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "The"}}]}\n\n'


class Body(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield TOKEN


class Stub(httpx.AsyncBaseTransport):
    """Answers at once, with a document or with an event."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=self._headers, stream=Body())


async def send(transport: Any) -> float:
    """Seconds for one request of many."""
    request = httpx.Request("POST", URL, extensions={"timeout": {"pool": 600.0}})
    began = process_time()
    for _ in range(REQUESTS):
        response = await transport.handle_async_request(request)
        async for _ in response.stream:
            pass
        await response.stream.aclose()
    return (process_time() - began) / REQUESTS


async def acquire(semaphore: asyncio.Semaphore) -> float:
    """Seconds for one acquire and release of many."""
    began = process_time()
    for _ in range(REQUESTS * 10):
        async with semaphore:
            pass
    return (process_time() - began) / REQUESTS / 10


async def main(rounds: int) -> None:
    document, events = {"content-type": "application/json"}, SSE
    scheduler = TrafficScheduler(max_concurrency=8)
    semaphore = asyncio.Semaphore(8)
    blocks: dict[str, Callable[[], Awaitable[float]]] = {
        "semaphore": lambda: acquire(semaphore),
        "bare": lambda: send(Stub(document)),
        "document": lambda: send(SchedulingTransport(Stub(document), scheduler)),
        "stream, with its first token": lambda: send(SchedulingTransport(Stub(events), scheduler)),
    }
    times: dict[str, list[float]] = {name: [] for name in blocks}
    with traffic("interactive"):
        for _ in range(rounds):
            for name, block in blocks.items():
                times[name].append(await block())
    print(f"{rounds} rounds of {REQUESTS} requests, httpx {httpx.__version__}, Python {sys.version.split()[0]}")
    print(f"Semaphore {min(times['semaphore']) * 1e6:.2f} us; bare transport {min(times['bare']) * 1e6:.1f} us")
    for name in list(blocks)[2:]:
        added = [after - before for after, before in zip(times[name], times["bare"], strict=True)]
        multiple = median(each / one for each, one in zip(added, times["semaphore"], strict=True))
        verdict = "within" if multiple <= MOST else "ABOVE"
        print(f"{name}: {min(added) * 1e6:.1f} us more, {multiple:.0f} x a Semaphore ({verdict} {MOST:.0f} x)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what a request pays for passing through the scheduler's transport")
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args().rounds))
