"""Many runs at a time, spread over processes.

Floor: fourth. Processes, because a run is pure Python and fills a core.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from reprlib import repr as shortened
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
        Whatever `function` raises, with a note that names the item. Either way the other items are given up.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    if jobs <= 1:
        return [_one(function, item, number, items, progress) for number, item in enumerate(items)]
    # Not fork: that copies a process whose other threads may hold locks.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(function, item): number for number, item in enumerate(items)}
        try:
            for future in as_completed(futures):
                _result(future, futures[future], items)
                progress(1 / len(items))
        finally:
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]


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
