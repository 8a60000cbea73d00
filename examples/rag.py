"""A RAG service: two backends with a scheduler each, two tenants, and an index that grows meanwhile.

The door says once whose request it is and what kind; the calls to both backends inherit that. One tenant asks sixty
questions at once, the other one at a time, and they take turns.

python examples/rag.py        a moment: its minutes pass in virtual time
"""

import argparse
import asyncio

from llm_traffic_scheduler import TrafficScheduler, traffic
from llm_traffic_scheduler.testing import run_virtual

embedding = TrafficScheduler(max_concurrency=8, name="embedding")
chat = TrafficScheduler(max_concurrency=4, name="chat")
index: dict[str, list[tuple[float, str]]] = {"acme": [], "birds": []}


async def embed(text: str) -> float:
    """Stands for the embedding model."""
    await asyncio.sleep(0.1)
    return float(len(text))


async def complete(prompt: str) -> str:
    """Stands for the chat model."""
    await asyncio.sleep(1.0)
    return f"as {prompt} says"


async def answer(tenant: str, question: str) -> str:
    with traffic("interactive", tenant=tenant):
        vector = await embedding.submit(None, embed, question)
        _, passage = min(index[tenant], key=lambda entry: abs(entry[0] - vector), default=(0.0, "nobody"))
        return await chat.submit(None, complete, passage)


async def add(tenant: str, documents: list[str]) -> None:
    with traffic("batch", tenant=tenant):
        async with embedding.as_completed(None, embed, documents) as outcomes:
            async for outcome in outcomes:
                index[tenant].append((outcome.get(), outcome.item))


async def waits(tenant: str, together: int, rounds: int) -> list[float]:
    """Ask so many questions at once, so many times; how long each took, in seconds."""
    clock = asyncio.get_running_loop().time

    async def ask(number: int) -> float:
        began = clock()
        await answer(tenant, f"question {number} of {tenant}")
        return clock() - began

    return [wait for _ in range(rounds) for wait in await asyncio.gather(*(ask(number) for number in range(together)))]


async def main() -> None:
    async with embedding, chat, asyncio.TaskGroup() as day:
        for tenant in index:
            day.create_task(add(tenant, [f"{tenant} document {number}" for number in range(200)]))
        asking = {"acme": day.create_task(waits("acme", 60, 1)), "birds": day.create_task(waits("birds", 1, 8))}
    print(f"{'tenant':<8} {'questions':>9} {'mean':>8} {'longest':>9} {'documents':>10}")
    for tenant, task in asking.items():
        took, known = task.result(), len(index[tenant])
        print(f"{tenant:<8} {len(took):>9} {sum(took) / len(took):>6.1f} s {max(took):>7.1f} s {known:>10}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    run_virtual(main())
