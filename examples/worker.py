"""A synchronous worker with threads, as Celery has them: no task is a coroutine, each takes a slot from its thread.

Two queues, with threads of their own, share one model. `scheduling()` belongs where a worker process begins, after the
fork: in Celery the signal `worker_process_init`.

python examples/worker.py        a second
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from llm_traffic_scheduler import TrafficKind, TrafficScheduler, traffic

scheduler = TrafficScheduler(max_concurrency=4)
at_once: list[int] = []


def complete(prompt: str) -> str:
    """Stands for a request that blocks its thread, such as `OpenAI().chat.completions.create(...)`."""
    with scheduler.slot_from_thread(run_timeout=60.0):
        at_once.append(scheduler.snapshot().running)
        time.sleep(0.03)
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
        asyncio.run_coroutine_threadsafe(scheduler.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def timed(kind: TrafficKind, task: Callable[[int], str], number: int) -> float:
    """Run one task of a queue; the seconds it took."""
    began = time.monotonic()
    with traffic(kind):
        assert task(number).endswith(str(number))
    return time.monotonic() - began


def main() -> None:
    with scheduling(), ThreadPoolExecutor(8) as batch_queue, ThreadPoolExecutor(2) as interactive_queue:
        batch = [batch_queue.submit(timed, TrafficKind.BATCH, summarise, number) for number in range(40)]
        chat = [interactive_queue.submit(timed, TrafficKind.INTERACTIVE, reply, number) for number in range(10)]
        slowest = [max(task.result() for task in queue) for queue in (chat, batch)]
    print(f"requests of 0.03 s, at most {max(at_once)} at a time from 10 threads")
    print(f"interactive  {len(chat):>3} tasks, the slowest took {slowest[0]:.2f} s")
    print(f"batch        {len(batch):>3} tasks, the slowest took {slowest[1]:.2f} s")


if __name__ == "__main__":
    main()
