"""Many runs at a time, spread over processes.

Floor: fourth. Processes, because a run is pure Python and fills a core.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from reprlib import repr as shortened
from threading import Thread
from typing import TypeVar

from .progress import Progress, unheard

__all__ = ["run_parallel"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def run_parallel(
    function: Callable[[ItemT], ResultT],
    items: Sequence[ItemT],
    *,
    jobs: int | None = None,
    progress: Progress = unheard,
) -> list[ResultT]:
    """`function` of every item, in the order of `items`, whatever the order in which they were done.

    With more than one job, `function` and the items go to other processes, so they must be picklable, and a script that
    calls this needs its `if __name__ == "__main__":`.

    Args:
        jobs: processes; left out, one per core; 1: this one.
        progress: hears of each item that is done.

    Raises:
        BrokenProcessPool: a process died.
        Whatever `function` raises, with a note that names the item. Either way the other items are given up at once.
    Signals: an interrupt is for this process; no worker outlives it, whatever ends it.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    if jobs <= 1:
        return [_one(function, item, number, items, progress) for number, item in enumerate(items)]
    # Not fork: that copies a process whose other threads may hold locks.
    context = get_context("spawn")
    # What only this process holds closes when this process ends, also by a signal that nobody can catch.
    far_end, near_end = context.Pipe(duplex=False)
    with far_end, ProcessPoolExecutor(jobs, context, _mind, (far_end,)) as pool, near_end:
        with _uninterrupted():
            futures = {pool.submit(function, item): number for number, item in enumerate(items)}
        for future in as_completed(futures):
            _result(future, futures[future], items)
            progress(1 / len(items))
        return [future.result() for future in futures]


def _mind(far_end: Connection) -> None:
    """In a worker: end when the process it works for has, or wants no more of it, in the middle of whatever it does."""

    def watch() -> None:
        wait((far_end,))
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started in here hears of no interrupts: a terminal sends them to all, and each would print a trace."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _one(
    function: Callable[[ItemT], ResultT],
    item: ItemT,
    number: int,
    items: Sequence[ItemT],
    progress: Progress,
) -> ResultT:
    done: Future[ResultT] = Future()
    try:
        done.set_result(function(item))
    except Exception as error:
        done.set_exception(error)
    result = _result(done, number, items)
    progress(1 / len(items))
    return result


def _result(future: Future[ResultT], number: int, items: Sequence[object]) -> ResultT:
    try:
        return future.result()
    except Exception as error:
        error.add_note(f"in run {number + 1} of {len(items)}: {shortened(items[number])}")
        raise
