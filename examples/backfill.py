"""Embeds a shelf of documents beside live traffic: progress on the terminal, failures kept for another try.

python examples/backfill.py        a moment: its minutes pass in virtual time
"""

import argparse
import asyncio
import random
from collections.abc import AsyncIterator

from llm_traffic_scheduler import RunTimeout, TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual

DOCUMENTS = 2_000
chance = random.Random(7)


async def embed(text: str) -> list[float]:
    """Stands for a request to an embedding endpoint, which now and then fails or hangs."""
    luck = chance.random()
    await asyncio.sleep(600.0 if luck < 0.001 else chance.uniform(0.2, 0.4))
    if luck > 0.99:
        raise ConnectionError("connection reset by peer")
    return [float(len(text))]


async def documents() -> AsyncIterator[str]:
    """Stands for a database cursor: no more rows are read than are under way."""
    for number in range(DOCUMENTS):
        if number % 100 == 0:
            await asyncio.sleep(0.05)
        yield f"document {number}"


async def people(scheduler: TrafficScheduler, waited: list[float]) -> None:
    time = asyncio.get_running_loop().time
    while True:
        asked = time()
        await scheduler.submit("interactive", asyncio.sleep, 0.3)
        waited.append(time() - asked)
        await asyncio.sleep(1.0)


def say(done: int, total: int | None) -> None:
    if done % 500 == 0:
        print(f"{asyncio.get_running_loop().time():6.1f} s  {done} of {DOCUMENTS} documents")


async def backfill() -> None:
    vectors: dict[str, list[float]] = {}
    left: AsyncIterator[str] | list[str] = documents()
    waited: list[float] = []
    async with TrafficScheduler(max_concurrency=8, max_queued_batch=4) as scheduler:
        chat = asyncio.create_task(people(scheduler, waited))
        while left:
            again: list[str] = []
            # progress=True shows a bar: pip install 'llm-traffic-scheduler[progress]'.
            work = scheduler.as_completed("batch", embed, left, progress=say, run_timeout=5.0, tenant="backfill")
            async with work as outcomes:
                async for outcome in outcomes:
                    if isinstance(outcome.error, ConnectionError | RunTimeout):
                        again.append(outcome.item)
                    else:
                        vectors[outcome.item] = outcome.get()
            print(f"{len(vectors)} embedded, {len(again)} failed")
            left = again
        chat.cancel()
        print(f"nobody in the chat waited longer than {max(waited):.1f} s for an answer")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    run_virtual(backfill())
