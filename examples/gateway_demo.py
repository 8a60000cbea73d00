"""Three people read their answers while `gateway.py` is told to stop: `python examples/gateway.py --demo` shows."""

import asyncio
import signal
import socket

import httpx
import uvicorn
from fake_llm_server import FakeLLM
from local_server import local_server
from openai import AsyncOpenAI

from llm_traffic_scheduler import TrafficScheduler

PEOPLE, SENTENCES, WORDS = 3, 12, 8


async def read(client: httpx.AsyncClient, reading: asyncio.Barrier) -> int:
    """Ask, and count the sentences of the answer."""
    async with client.stream("POST", "/chat", params={"question": "why is the sky blue?"}) as response:
        pieces = response.raise_for_status().aiter_text()
        text = await anext(pieces)
        await reading.wait()
        text += "".join([piece async for piece in pieces])
    return text.count(".")


async def knock(client: httpx.AsyncClient) -> str:
    """Ask once more."""
    try:
        return f"status {(await client.post('/chat', params={'question': 'am I late?'})).status_code}"
    except httpx.ConnectError:
        return "refused"


async def demo(server: uvicorn.Server, scheduler: TrafficScheduler, llm: AsyncOpenAI) -> None:
    engine = FakeLLM(tokens=SENTENCES * WORDS)
    with local_server(engine) as llm.base_url, socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        url, reading = f"http://127.0.0.1:{listening.getsockname()[1]}", asyncio.Barrier(PEOPLE + 1)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            people = [asyncio.create_task(read(client, reading)) for _ in range(PEOPLE)]
            await reading.wait()
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)  # the signal's callback
            then = scheduler.snapshot()
            read_whole = (await asyncio.gather(*people)).count(SENTENCES)
            late = await knock(client)
        await serving
        await llm.close()
    batch, started = scheduler.snapshot().totals["batch"], then.totals["batch"].started
    print(f"SIGTERM   {then.interactive_running} answers are being sent, {then.batch_running} evaluation calls run")
    print(f"chat      {read_whole} of {PEOPLE} people read their answer to its end, {SENTENCES} sentences each")
    print(f"          a question after the signal: {late}")
    print(f"batch     {started} calls started before the signal, {batch.started - started} after it")
    print(f"          {batch.completed} of them ended, {batch.started - batch.completed} were cut off")
