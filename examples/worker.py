"""A synchronous worker with threads, as Celery has them: no task is a coroutine, each takes a slot from its thread.

Two queues, with threads of their own, share one model. `scheduling()` belongs where a worker process begins, after the
fork: in Celery the signal `worker_process_init`.

python examples/worker.py        a second
"""

import argparse
import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from llm_traffic_scheduler import TrafficKind, TrafficScheduler, traffic

scheduler = TrafficScheduler(max_concurrency=4)
under_way: set[str] = set()
at_once: list[int] = []


def complete(prompt: str) -> str:
    """Stands for a request that blocks its thread, such as `OpenAI().chat.completions.create(...)`."""
    with scheduler.slot_from_thread(run_timeout=60.0):
        under_way.add(prompt)
        at_once.append(len(under_way))
        time.sleep(0.03)
        under_way.remove(prompt)
        return prompt.upper()


def summarise(number: int) -> str:
    return complete(f"summary of document {number}")


def reply(number: int) -> str:
    return complete(f"answer to question {number}")


@contextmanager
def scheduling() -> Iterator[None]:
    """An event loop in a thread, for the scheduler; no task sees it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scheduler")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(scheduler.drain(), loop).result()  # this is its loop from here on
        yield
    finally:
        asyncio.run_coroutine_threadsafe(scheduler.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def run(kind: TrafficKind, task: Callable[[int], str], number: int) -> str:
    """What the pools of both queues do with a task."""
    with traffic(kind):
        return task(number)


def main() -> None:
    with scheduling(), ThreadPoolExecutor(8) as batch_queue, ThreadPoolExecutor(2) as interactive_queue:
        batch = [batch_queue.submit(run, TrafficKind.BATCH, summarise, number) for number in range(40)]
        chat = [interactive_queue.submit(run, TrafficKind.INTERACTIVE, reply, number) for number in range(10)]
        replies = [task.result() for task in chat]
        done = sum(task.done() for task in batch)
        summaries = [task.result() for task in batch]
    print(f"{len(summaries)} summaries, then {len(replies)} replies asked for: all replies out after {done} summaries")
    print(f"10 threads, never more than {max(at_once)} requests at once")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes none
    main()
