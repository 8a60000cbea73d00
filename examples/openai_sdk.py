"""The openai SDK, its calls as they are: one line puts its client under a scheduler, one more says what is batch.

python examples/openai_sdk.py        a few seconds, on the server of fake_llm_server.py
"""

import argparse
import asyncio
import sys

from llm_traffic_scheduler import TrafficKind, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client

try:
    from openai import AsyncOpenAI
except ModuleNotFoundError:
    sys.exit("openai is not installed: pip install openai starlette uvicorn")
try:
    from fake_llm_server import FakeLLM
    from local_server import local_server
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not beside this file: run it in a checkout")

SUMMARIES = 20


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


async def office(client: AsyncOpenAI, kind: TrafficKind) -> int:
    """Ask for summaries, then one question; how many summaries are ready before its answer."""
    with traffic(kind):
        summaries = [asyncio.create_task(summarise(client, f"document {number}")) for number in range(SUMMARIES)]
    with traffic("interactive"):
        answer = asyncio.create_task(chat(client, "Why is the sky blue?"))
    await answer
    ready = sum(summary.done() for summary in summaries)
    await asyncio.gather(*summaries)
    return ready


async def main() -> None:
    engine = FakeLLM(max_num_seqs=4)
    scheduler = TrafficScheduler(max_concurrency=4)
    with local_server(engine) as url:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            schedule_client(client, scheduler)
            for kind in (TrafficKind.INTERACTIVE, TrafficKind.BATCH):
                ready = await office(client, kind)
                print(f"summaries as {kind:<12} {ready:>3} of {SUMMARIES} are ready before the answer in the chat")
    calls = scheduler.snapshot().totals
    print(f"{calls['interactive'].completed} interactive calls, {calls['batch'].completed} batch calls", end=", ")
    print(f"never more than {engine.most_running} at the server")
    await scheduler.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    asyncio.run(main())
