"""The nightly evaluation calls the functions that the chat calls, as batch, and nobody in the chat notices.

python examples/evaluation.py        a moment: its minutes pass in virtual time
"""

import argparse
import asyncio
import random

from llm_traffic_scheduler import TrafficKind, TrafficScheduler, traffic
from llm_traffic_scheduler.testing import run_virtual

CASES, PEOPLE = 200, 40
scheduler = TrafficScheduler(max_concurrency=8)


async def complete(prompt: str) -> str:
    """Stands for the model."""
    luck = random.Random(prompt)
    await asyncio.sleep(luck.uniform(0.8, 1.2))
    return "blue" if luck.random() < 0.9 else "green"


async def rewrite(question: str) -> str:
    return await scheduler.submit("interactive", complete, f"rewrite: {question}")


async def answer(question: str) -> str:
    """What the service does; it knows of no evaluation."""
    return await scheduler.submit("interactive", complete, f"{question}: {await rewrite(question)}")


async def evaluate(kind: TrafficKind) -> float:
    """The share of right answers, from 0 to 1."""
    with traffic(kind):
        answers = await asyncio.gather(*(answer(f"case {number}") for number in range(CASES)))
    return answers.count("blue") / CASES


async def ask() -> float:
    """How long somebody waits for an answer, in seconds."""
    began = asyncio.get_running_loop().time()
    await answer("what colour is the sky?")
    return asyncio.get_running_loop().time() - began


async def people() -> float:
    """Somebody asks every three seconds; the longest wait of all, in seconds."""
    async with asyncio.TaskGroup() as asking:
        waits = []
        for _ in range(PEOPLE):
            waits.append(asking.create_task(ask()))
            await asyncio.sleep(3.0)
    return max(wait.result() for wait in waits)


async def night(kind: TrafficKind) -> None:
    before = scheduler.snapshot().totals
    async with asyncio.TaskGroup() as both:
        score, longest = both.create_task(evaluate(kind)), both.create_task(people())
    after = scheduler.snapshot().totals
    chat, batch = (after[each].completed - before[each].completed for each in ("interactive", "batch"))
    print(f"{kind:<20} {longest.result():>12.1f} s {score.result():>6.0%} {chat:>12} {batch:>6}")


async def main() -> None:
    print(f"{'the evaluation is':<20} {'longest wait':>14} {'right':>6} {'interactive':>12} {'batch':>6}  calls")
    await night(TrafficKind.INTERACTIVE)
    await night(TrafficKind.BATCH)
    await scheduler.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    run_virtual(main())
