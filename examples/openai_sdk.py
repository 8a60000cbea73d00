"""The openai SDK, its calls as they are: one line puts its client under a scheduler, one more says what is batch.

python examples/openai_sdk.py        two seconds, on the server of fake_llm_server.py
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from llm_traffic_scheduler import TrafficKind, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client

try:
    from fake_llm_server import FakeLLM
    from local_server import local_server
    from openai import AsyncOpenAI
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed: pip install openai starlette uvicorn")


async def summarise(client: AsyncOpenAI, document: str) -> str:
    completion = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": f"Summarise {document}"}]
    )
    return completion.choices[0].message.content or ""


async def chat(client: AsyncOpenAI, question: str) -> str:
    stream = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": question}], stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def timed(ask: Callable[[AsyncOpenAI, str], Awaitable[str]], client: AsyncOpenAI, text: str) -> float:
    began = asyncio.get_running_loop().time()
    assert (await ask(client, text)).startswith("The sky is blue")
    return asyncio.get_running_loop().time() - began


async def office(client: AsyncOpenAI, kind: TrafficKind) -> tuple[float, float]:
    """Twenty summaries, and meanwhile four people, one after the other; the slowest of each, in seconds."""
    with traffic(kind):
        summaries = [asyncio.create_task(timed(summarise, client, f"document {number}")) for number in range(20)]
    with traffic("interactive"):
        slowest = max([await timed(chat, client, "Why is the sky blue?") for _ in range(4)])
    return slowest, max(await asyncio.gather(*summaries))


async def main() -> None:
    engine = FakeLLM(max_num_seqs=4)
    scheduler = TrafficScheduler(max_concurrency=4)
    with local_server(engine) as url:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            schedule_client(client, scheduler)
            print("20 summaries are    slowest chat    slowest summary")
            for kind in (TrafficKind.INTERACTIVE, TrafficKind.BATCH):
                people, documents = await office(client, kind)
                print(f"{kind:<17} {people:>12.2f} s {documents:>16.2f} s")
    calls = scheduler.snapshot().totals
    print(f"{calls['interactive'].completed} interactive calls and {calls['batch'].completed} batch calls", end=", ")
    print(f"never more than {engine.most_running} at the server")
    await scheduler.close()


if __name__ == "__main__":
    asyncio.run(main())
