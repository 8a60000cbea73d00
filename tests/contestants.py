"""Who stands in the README's comparison; `tests/comparison.py` asks them.

Each is used as its manual says, with what it has and no more: where it has no such feature, its adapter raises
`Lacks` and says what there is instead. `python -m tests.contestants` says which of them limits a forked child too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar

import anyio

from llm_traffic_scheduler import QueueFull, TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual
from tests.support import settle

__all__ = ["CAP", "CONTESTANTS", "AcrossProcesses", "Contestant", "Kind", "Lacks"]

T = TypeVar("T")
Kind: TypeAlias = Literal["interactive", "batch"]


CAP: Final = 4


class Lacks(Exception):
    """The contestant has no such feature; the message says what there is instead."""


class Contestant(Protocol):
    """What the probes ask for: `cap` calls at once, and at most `max_queued` that wait."""

    title: ClassVar[str]

    def __init__(self, cap: int, max_queued: int | None = None) -> None: ...

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T: ...

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        """As `call`, or TimeoutError if no slot is free within `seconds`; the run takes as long as it takes."""

    def resize(self, cap: int) -> None: ...

    def waiting(self, refusal: BaseException | None) -> int:
        """How many calls wait, read from the refusal of one that may not."""

    async def close(self) -> tuple[int, int]:
        """Take no more calls; when those that run have ended, say how many did, and how many were refused."""


class NoLimit:
    """Plain `await`."""

    title: ClassVar = "no limit"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        if max_queued is not None:
            raise Lacks("nothing ever waits")

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        raise Lacks("nothing ever waits")

    def resize(self, cap: int) -> None:
        raise Lacks("there is no limit")

    def waiting(self, refusal: BaseException | None) -> int:
        raise Lacks("nothing is refused")

    async def close(self) -> tuple[int, int]:
        raise Lacks("nobody knows what runs")


class Semaphore:
    """`async with semaphore:` around every call; `asyncio.timeout` around the wait."""

    title: ClassVar = "`asyncio.Semaphore`"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        if max_queued is not None:
            raise Lacks("any number may wait, and how many do is private")
        self._semaphore = asyncio.Semaphore(cap)

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        async with self._semaphore:
            return await work()

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(seconds):
            await self._semaphore.acquire()
        try:
            return await work()
        finally:
            self._semaphore.release()

    def resize(self, cap: int) -> None:
        raise Lacks("the value has no setter; writing `_value` over-grants once the limit was below what runs")

    def waiting(self, refusal: BaseException | None) -> int:
        raise Lacks("nothing is refused")

    async def close(self) -> tuple[int, int]:
        raise Lacks("there is `locked()`, and nothing to wait for")


class PriorityWorkers:
    """The hand-written one: a priority queue, as many workers as slots, a future per call.

    Written with more care than most: calls of one kind keep their order, and one whose caller has left is skipped.
    """

    title: ClassVar = "`PriorityQueue` + workers"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        self._queue: asyncio.PriorityQueue[tuple[bool, int, Callable[[], Awaitable[Any]], asyncio.Future[Any]]]
        self._queue = asyncio.PriorityQueue(max_queued or 0)
        self._order = itertools.count()
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(self._worker()) for _ in range(cap)]

    async def _worker(self) -> None:
        while True:
            _, _, work, answer = await self._queue.get()
            if answer.done():
                continue
            try:
                result = await work()
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((kind == "batch", next(self._order), work, answer))
        return await answer

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        # The future knows nothing of the start, so a bound on the wait is one on the run too.
        async with asyncio.timeout(seconds):
            return await self.call(kind, work)

    def resize(self, cap: int) -> None:
        raise Lacks("workers can be added, but cancelling one cancels the call it runs")

    def waiting(self, refusal: BaseException | None) -> int:
        raise Lacks("asyncio.QueueFull has no fields")

    async def close(self) -> tuple[int, int]:
        raise Lacks("`join()` waits for the queue too, refuses nothing and reports nothing")


class Limiter:
    """`async with limiter:` around every call; `fail_after` around the wait, `total_tokens` to resize."""

    title: ClassVar = "`anyio.CapacityLimiter`"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        if max_queued is not None:
            raise Lacks("any number may wait; `acquire_nowait` lets none")
        self._limiter = anyio.CapacityLimiter(cap)

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        async with self._limiter:
            return await work()

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        with anyio.fail_after(seconds):
            await self._limiter.acquire()
        try:
            return await work()
        finally:
            self._limiter.release()

    def resize(self, cap: int) -> None:
        self._limiter.total_tokens = cap

    def waiting(self, refusal: BaseException | None) -> int:
        raise Lacks("`statistics()` knows how many wait, but nothing is refused")

    async def close(self) -> tuple[int, int]:
        raise Lacks("`statistics()` knows how many run, and there is nothing to wait for")


class Ours:
    """One threshold, everything else as it comes."""

    title: ClassVar = "`TrafficScheduler`"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        self._scheduler = TrafficScheduler(
            max_concurrency=cap,
            interactive_p95_threshold=0.5,
            max_queued_interactive=max_queued,
            max_queued_batch=max_queued,
        )

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        return await self._scheduler.submit(kind, work)

    async def call_within(self, seconds: float, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        return await self._scheduler.submit(kind, work, queue_timeout=seconds)

    def resize(self, cap: int) -> None:
        self._scheduler.configure(max_concurrency=cap)

    def waiting(self, refusal: BaseException | None) -> int:
        assert isinstance(refusal, QueueFull)
        return refusal.queued

    async def close(self) -> tuple[int, int]:
        report = await self._scheduler.close()
        return report.finished, report.rejected


CONTESTANTS: Final[tuple[type[Contestant], ...]] = (NoLimit, Semaphore, PriorityWorkers, Limiter, Ours)


class AcrossProcesses(NoLimit):
    """A limit that processes do share, to show that the question can be answered with yes."""

    title: ClassVar = "`multiprocessing.Semaphore`"

    def __init__(self, cap: int, max_queued: int | None = None) -> None:
        super().__init__(cap, max_queued)
        self._semaphore = multiprocessing.Semaphore(cap)

    async def call(self, kind: Kind, work: Callable[[], Awaitable[T]]) -> T:
        while not self._semaphore.acquire(block=False):  # noqa: ASYNC110 - asyncio's events end at the process
            await asyncio.sleep(1)
        try:
            return await work()
        finally:
            self._semaphore.release()


async def limits_a_forked_child_too(contestant: type[Contestant]) -> bool:
    """Forked while idle: the child's call must wait while the parent's take all slots, and run when they have ended."""
    limiter = contestant(CAP)
    await settle()
    (question, ask), (answer, reply) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_virtual(_child(limiter, question, reply))
        finally:
            os._exit(0)
    os.close(reply)
    gate = asyncio.Event()
    calls = [asyncio.create_task(limiter.call("interactive", gate.wait)) for _ in range(CAP)]
    await settle()
    os.write(ask, b"?")
    ran_while_full = os.read(answer, 1)
    gate.set()
    await asyncio.gather(*calls)
    os.write(ask, b"?")
    ran_afterwards = os.read(answer, 1)
    os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else runs here
    assert ran_afterwards, f"the child broke, with {contestant.title}"
    return (ran_while_full, ran_afterwards) == (b"n", b"y")


async def _child(limiter: Contestant, question: int, reply: int) -> None:
    """Submit one call, and say each time one is asked whether it has run by then."""
    ran = asyncio.Event()

    async def work() -> None:
        ran.set()

    os.read(question, 1)
    call = asyncio.create_task(limiter.call("interactive", work))
    await asyncio.sleep(60)
    os.write(reply, b"y" if ran.is_set() else b"n")
    os.read(question, 1)
    await asyncio.sleep(60)
    os.write(reply, b"y" if ran.is_set() else b"n")
    call.cancel()


if __name__ == "__main__":
    asked: tuple[type[Contestant], ...] = (*CONTESTANTS, AcrossProcesses)
    print(json.dumps({each.title: run_virtual(limits_a_forked_child_too(each)) for each in asked}))
