"""One bulk operation while it goes on: who pulls items, who runs them, who waits for what comes of them.

Floor: third. A task for each item that is submitted and not yet consumed, `buffer` of them at most, and one more to
pull from an async source: an async generator has to be resumed, and closed, in one and the same task. A plain source
is pulled by the consumer. Nobody polls, and nothing goes on when nobody consumes but what was submitted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from .errors import SchedulerMisuse
from .outcome import Outcome
from .progress import Tell

__all__ = ["Run"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Run(Generic[ItemT, ResultT]):
    """Items, calls and outcomes of one `map` or `as_completed`.

    Tasks, and functions of an item, run in copies of the context that the operation was made in.

    Args:
        items, stream: where items come from, one by one, as they are needed: one of the two.
        call: runs one item.
        buffer: how many may be submitted and not consumed, now.
        in_order: outcomes come in the order of the items, and after an error none comes.
        refused: after an item that ended with this error, and so many that were pulled: None, or what to raise in place
            of the others.
        tell: hears how many have ended.
    """

    def __init__(
        self,
        items: Iterator[ItemT] | None,
        stream: AsyncIterator[ItemT] | None,
        call: Callable[[ItemT], Coroutine[Any, Any, ResultT]],
        *,
        buffer: Callable[[], int],
        in_order: bool,
        refused: Callable[[BaseException, int], BaseException | None],
        tell: Tell,
    ) -> None:
        self.closed = False
        self._items = items
        self._stream = stream
        self._call = call
        self._buffer = buffer
        self._in_order = in_order
        self._refused = refused
        self._tell = tell
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()  # the calls, and who pulls
        self._ready: OrderedDict[int, Outcome[ItemT, ResultT]] = OrderedDict()  # ended and not consumed, as they ended
        self._pulled = self._consumed = self._ended = 0
        self._dry = False  # no more items are pulled
        self._last: BaseException | None = None  # why, if the source did not end by itself: raised after all outcomes
        self._fault: BaseException | None = None  # raised before them
        self._consumer: asyncio.Future[None] | None = None
        self._puller: asyncio.Future[None] | None = None
        self._starting = False  # a task of its own; an eager one runs meanwhile

    # For whoever consumes

    @property
    def open(self) -> bool:
        """It has begun, and was not closed."""
        return self._loop is not None and not self.closed

    async def next(self) -> Outcome[ItemT, ResultT] | None:
        """The next outcome, None when there is none any more; whatever it raises, it has closed everything before.

        Raises:
            SchedulerMisuse: another consumer is waiting, or this is another event loop.
            What the source raised, when all outcomes before it were consumed; what a function given as `progress` did;
            in order, what the item raised whose turn it is.
        Cancellation: closes everything, as leaving a loop over an async generator would.
        """
        if self.closed:
            return None
        self._bind()
        try:
            outcome = await self._wait()
            error = self._last if outcome is None else outcome.error if self._in_order else None
            if error is not None:
                raise _raisable(error)
            if outcome is not None:
                self._pull()  # what takes the place of this one runs while the consumer is busy
                return outcome
        except BaseException:
            await self.close()
            raise
        await self.close()
        return None

    async def close(self) -> None:
        """Cancel what goes on, and return when it has ended.

        Raises:
            SchedulerMisuse: called by a call of its own, which would wait for itself, or on another loop than its own.
            What closing an async source raised.
        Cancellation: still waits for the end, then passes it on.
        """
        if self._starting or (self._loop is not None and asyncio.current_task() in self._tasks):
            raise SchedulerMisuse("a call of map() or as_completed() cannot close it: it would wait for itself")
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            if not self._loop.is_closed():
                raise SchedulerMisuse("map() or as_completed() is closed in the loop it began in, this is another")
            self._tasks.clear()  # they have ended with their loop, and so has the source
            self._stream = None
        self.stop()
        cancelled: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        if self._stream is not None:  # nobody has begun to pull, who would have closed it
            await self._close_source()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def stop(self) -> None:
        """Cancel what goes on; nothing more is submitted, pulled or told."""
        if self.closed:
            return
        self.closed = self._dry = True
        self._last = self._fault = None
        self._ready.clear()
        self._tell.close()
        for task in list(self._tasks):
            task.cancel()
        self._wake()

    def lose(self) -> None:
        """`stop` from any thread, in the loop's next pass: nobody will consume any more."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # a closed loop
            self._loop.call_soon_threadsafe(self.stop, context=self._context)

    # How it goes on

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            if self._stream is not None:
                self._start(self._feed(), self._fed)
        elif loop is not self._loop:
            raise SchedulerMisuse("map() or as_completed() goes on in the event loop it began in, this is another")
        if self._consumer is not None:
            raise SchedulerMisuse("another task waits for the next outcome of this map() or as_completed() already")

    async def _wait(self) -> Outcome[ItemT, ResultT] | None:
        assert self._loop is not None
        self._pull()
        while True:
            if self._fault is not None:
                raise self._fault
            if (outcome := self._take()) is not None:
                return outcome
            if self.closed or (self._dry and self._pulled == self._consumed):
                return None
            self._consumer = self._loop.create_future()
            try:
                await self._consumer
            finally:
                self._consumer = None

    def _take(self) -> Outcome[ItemT, ResultT] | None:
        if self._in_order:
            outcome = self._ready.pop(self._consumed, None)
        else:
            outcome = self._ready.popitem(last=False)[1] if self._ready else None
        self._consumed += outcome is not None
        return outcome

    def _pull(self) -> None:
        """Submit as many items as there is room for."""
        if self._items is None:
            if self._puller is not None and not self._puller.done() and self._room():
                self._puller.set_result(None)
            return
        while self._room():
            try:
                item = next(self._items)
            except StopIteration:
                self._dry = True
            except Exception as error:
                self._dry, self._last = True, error
            else:
                self._begin(item)

    async def _feed(self) -> None:
        assert self._loop is not None
        assert self._stream is not None
        stream = self._stream
        try:
            while not self._dry:
                if not self._room():
                    self._puller = self._loop.create_future()
                    await self._puller
                    continue
                try:
                    item = await anext(stream)
                except StopAsyncIteration:
                    return
                if not self.closed:
                    self._begin(item)
        finally:
            await self._close_source()

    async def _close_source(self) -> None:
        stream, self._stream = self._stream, None
        if (aclose := getattr(stream, "aclose", None)) is not None:
            await aclose()

    def _fed(self, task: asyncio.Task[Any]) -> None:
        self._dry = True
        error = _error_of(task)
        if not self.closed:
            self._last = self._last or error
        elif not isinstance(error, asyncio.CancelledError):
            self._fault = error

    def _room(self) -> bool:
        return not self._dry and self._pulled - self._consumed < self._buffer()

    def _begin(self, item: ItemT) -> None:
        index, self._pulled = self._pulled, self._pulled + 1
        self._start(self._call(item), partial(self._settle, index, item))

    def _start(self, work: Coroutine[Any, Any, Any], ended: Callable[[asyncio.Task[Any]], None]) -> None:
        assert self._loop is not None
        before, self._starting = self._starting, True
        try:
            # Not `create_task(context=...)`, which a task factory need not know.
            task = self._context.run(self._loop.create_task, work)
        finally:
            self._starting = before
        self._tasks.add(task)

        def over(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            ended(task)
            self._wake()

        task.add_done_callback(over, context=self._context)

    def _settle(self, index: int, item: ItemT, task: asyncio.Task[ResultT]) -> None:
        error = _error_of(task)
        if self.closed:
            return
        self._ready[index] = Outcome(index, item, None if error is not None else task.result(), error)
        if error is not None:
            refused = self._refused(error, self._pulled)
            if self._in_order or (refused is not None and not self._dry):
                self._dry, self._last = True, self._last or refused
        self._ended += 1
        try:
            self._tell.done(self._ended)
        except Exception as fault:
            self._fault = fault

    def _wake(self) -> None:
        for sleeper in (self._consumer, self._puller if self._dry else None):
            if sleeper is not None and not sleeper.done():
                sleeper.set_result(None)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """What the task raised; asking keeps asyncio from logging that nobody did."""
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return error


def _raisable(error: BaseException) -> BaseException:
    """The error, or what stands for it where it would be taken for the end of the items."""
    if isinstance(error, StopAsyncIteration):
        stand_in = RuntimeError("an item of map() or as_completed(), or its function, raised StopAsyncIteration")
        stand_in.__cause__ = error
        return stand_in
    return error
