"""Agents that give their slot up while a tool runs: the model works for somebody else meanwhile.

python examples/agent.py        a moment: its minutes pass in virtual time
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from llm_traffic_scheduler import TrafficScheduler, released
from llm_traffic_scheduler.testing import run_virtual

AGENTS, ROUNDS, SLOTS = 12, 3, 2  # slots for batch
COMPLETION = 2.0  # seconds
Meanwhile = Callable[[], AbstractAsyncContextManager[None]]


@dataclass
class Reply:
    text: str
    tool: str | None = None


async def complete(messages: list[str]) -> Reply:
    """Stands for the model: it asks for two tools, one after the other, and then answers."""
    await asyncio.sleep(COMPLETION)
    wanted = ["search", "database"][len(messages) - 1 :]
    return Reply("let me see", wanted[0]) if wanted else Reply(f"{messages[0]}: {messages[1]}, {messages[2]}")


async def search(_: str) -> str:
    await asyncio.sleep(4.0)
    return "three pages"


async def database(_: str) -> str:
    await asyncio.sleep(6.0)
    return "forty rows"


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {"search": search, "database": database}


async def agent(task: str, meanwhile: Meanwhile = released) -> str:
    messages = [task]
    while (reply := await complete(messages)).tool is not None:
        async with meanwhile():
            result = await TOOLS[reply.tool](reply.text)
        messages.append(result)
    return reply.text


async def run(name: str, meanwhile: Meanwhile) -> None:
    began = asyncio.get_running_loop().time()
    async with TrafficScheduler(max_concurrency=4, batch_max_concurrency=SLOTS) as scheduler:
        tasks = [f"task {number}" for number in range(AGENTS)]
        answers = await asyncio.gather(*(scheduler.submit("batch", agent, task, meanwhile) for task in tasks))
    took = asyncio.get_running_loop().time() - began
    assert answers[-1] == f"task {AGENTS - 1}: three pages, forty rows"
    busy = AGENTS * ROUNDS * COMPLETION / (SLOTS * took)
    print(f"{name:<26} {len(answers):>6} {took:>6.0f} s {busy:>10.0%}")


async def main() -> None:
    print(f"{'slot during a tool call':<26} {'agents':>6} {'took':>8} {'model busy':>10}")
    await run("kept", nullcontext)
    await run("given up, by released()", released)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    run_virtual(main())
