"""What a scheduler says of itself on a bad afternoon: an overnight job still runs while people ask.

python examples/explain.py        a moment: its fifteen minutes pass in virtual time
"""

import asyncio
import os
import sys

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual


async def afternoon() -> None:
    scheduler = TrafficScheduler(
        max_concurrency=8,
        batch_max_concurrency=6,
        interactive_rps_threshold=20.0,
        interactive_p95_threshold=2.0,
        name="gateway",
    )

    async def answer() -> None:
        # The backend slows down with what batch runs; eight at once is more than it can take.
        await asyncio.sleep(0.4 + 0.6 * scheduler.snapshot().batch_running)

    async def people() -> None:
        async with asyncio.TaskGroup() as conversations:
            while True:
                conversations.create_task(scheduler.submit("interactive", answer))
                await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as everybody:
        work = [
            everybody.create_task(scheduler.submit("batch", asyncio.sleep, 200.0, label="summarise")) for _ in range(40)
        ]
        await asyncio.sleep(60.0)
        work.append(everybody.create_task(people()))
        for minutes in (1.5, 13.5):
            await asyncio.sleep(minutes * 60.0)
            print(f"--- {asyncio.get_running_loop().time() / 60:.1f} minutes\n{scheduler.explain()}\n")
        print("--- how the limit moved: minute, limit, pressure, reason")
        for record in scheduler.limit_history()[:8]:
            print(f"{record.time / 60:5.2f}  {record.limit}  {record.pressure:.2f}  {record.reason}")
        for task in work:
            task.cancel()


if __name__ == "__main__":
    try:
        run_virtual(afternoon())
        sys.stdout.flush()
    except* BrokenPipeError:
        # Whoever read it has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
