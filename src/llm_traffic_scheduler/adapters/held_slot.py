"""A slot that is taken in one place and given back in another: with the last byte, in another task, by the collector.

Floor: fourth. A `slot()` block belongs to a stretch of code; an HTTP response is an object that is handed around. The
block is entered and left in a copy of the caller's context, so the code that reads the response is not inside of it:
what it submits in its loop body is a call of its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, TypeVar

from llm_traffic_scheduler import CallAborted, QueueTimeout, RunTimeout, Slot, TrafficScheduler

from .body_account import BodyAccount
from .http_rules import Response, Unsuccessful
from .http_words import impatient

__all__ = ["Body", "HeldSlot", "HeldStream"]

T = TypeVar("T")

# A task that only the loop knows may be collected before it has run.
_closing: Final[set[asyncio.Task[None]]] = set()


class Body(Protocol):
    """An async body of an HTTP response."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Inside:
    """Awaits the rest of a coroutine in another context, still in the task that awaits it.

    `asked` is what it has waited for since its first step.
    """

    __slots__ = ("_asked", "_context", "_coroutine")

    def __init__(self, context: Context, coroutine: Coroutine[Any, Any, Slot], asked: object) -> None:
        self._context = context
        self._coroutine = coroutine
        self._asked = asked

    def __await__(self) -> Generator[object, object, Slot]:
        value: Any = None
        asked, self._asked = self._asked, None
        try:
            while True:
                try:
                    value = yield asked
                    step: Callable[[Any], object] = self._coroutine.send
                except BaseException as error:
                    value, step = error, self._coroutine.throw
                try:
                    asked = self._context.run(step, value)
                except StopIteration as done:
                    slot: Slot = done.value
                    return slot
        finally:
            value = None  # an exception holds this frame, which would hold it


class HeldSlot:
    """A slot, from `take` until `give_back`, which may be called anywhere on the loop's thread, and twice.

    `run_until`: the loop's time at which the scheduler's `run_timeout` ends; the scheduler would cancel the task that
    took the slot, wherever it may be by then, so it is told of no bound, and `bounded` keeps it.
    """

    __slots__ = ("_block", "_context", "_patience", "loop", "run_until", "slot")

    slot: Slot
    _block: AbstractAsyncContextManager[Slot] | None

    def __init__(self, scheduler: TrafficScheduler, patience: float) -> None:
        queue_timeout, run_timeout = scheduler.timeouts_in_force()
        self.loop = asyncio.get_running_loop()
        self.run_until = run_timeout
        self._patience = patience if patience < queue_timeout else None
        self._context = copy_context()
        self._block = scheduler.slot(queue_timeout=min(queue_timeout, patience), run_timeout=math.inf)

    @classmethod
    async def take(cls, scheduler: TrafficScheduler, patience: float) -> HeldSlot:
        """Wait for a slot of the kind in force, `patience` seconds at most, or less if less is in force.

        Raises, and cancellation: as entering `scheduler.slot()`.
        """
        held = cls(scheduler, patience)
        assert held._block is not None
        try:
            entering: Any = held._block.__aenter__()
            try:
                asked = held._context.run(entering.send, None)
            except StopIteration as done:  # it need not wait
                held.slot = done.value
            else:
                held.slot = await _Inside(held._context, entering, asked)
        except QueueTimeout as error:
            if held._patience is None:
                raise
            raise impatient(error, held._patience) from None
        held.run_until += held.loop.time()
        return held

    def give_back(self, error: BaseException | None = None) -> None:
        """The call has ended, with `error` if it failed. Only the first time counts.

        Raises:
            CallAborted: `error` is a CancelledError of close()'s.
        """
        block, self._block = self._block, None
        if block is not None:
            leaving = block.__aexit__(None if error is None else type(error), error, None)
            with suppress(StopIteration):  # it does not wait
                self._context.run(leaving.send, None)

    @property
    def over(self) -> bool:
        """The slot has been given back."""
        return self._block is None

    def bounded(self, step: Awaitable[T]) -> Awaitable[T]:
        """What `step` returns; RunTimeout when the run timeout ends first."""
        return step if self.run_until == math.inf else self._bounded(step)

    async def _bounded(self, step: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(self.run_until) as scope:
                return await step
        except TimeoutError:
            if not scope.expired():
                raise
            self.slot.overran()
            raise RunTimeout("the run_timeout in force ended the request: raise it, or ask for less") from None


class HeldStream:
    """A response's body whose call ends with it: read, failed, closed, cancelled, or not read on for `idle` seconds.

    Whoever reads is not referred to, so that he can be collected; then `drop` is to be called.
    """

    __slots__ = (
        "_aborted",
        "_account",
        "_body",
        "_chunks",
        "_error",
        "_held",
        "_idle",
        "_read_at",
        "_reading",
        "_timer",
        "_whole",
        "idled",
    )

    def __init__(self, response: Response, held: HeldSlot, idle: float, error: Unsuccessful | None) -> None:
        self._body: Body = response.stream
        self._chunks: AsyncIterator[bytes] = aiter(self._body)
        self._held = held
        self._error = error
        self._account = BodyAccount(held.slot, response, searched=error is None)
        self._idle = idle
        self._reading = False
        self._read_at = held.loop.time()
        self.idled = False
        self._aborted = self._whole = False
        held.slot.unattended(self._closed_around)
        self._timer = held.loop.call_at(self._read_at + idle, self._look) if idle < math.inf else None

    async def read(self) -> bytes:
        """The next bytes.

        Raises:
            RunTimeout: the run timeout has ended. StopAsyncIteration: there are no more.
            CallAborted: the scheduler was closed meanwhile, or while nobody read.
        """
        if self._aborted:
            raise CallAborted(
                "the response was not being read when close() of its scheduler ran out of time: "
                "give close() a longer timeout, or close the response when you have had enough"
            )
        held, account = self._held, self._account
        held.slot.attended()
        account.thought += held.loop.time() - self._read_at
        self._reading = True
        try:
            chunk = await held.bounded(self._chunks.__anext__())
            self._reading = False
            self._read_at = held.loop.time()
            account.came(chunk)
            held.slot.unattended(self._closed_around)
        except StopAsyncIteration:
            self._whole = True
            self._end(self._error)
            raise
        except BaseException as error:
            self._end(error)
            raise
        return chunk

    async def close(self) -> None:
        """Close the body, then the call."""
        if self._whole:
            await self._body.aclose()
            return
        try:
            # Nothing else closes a generator that was left in its midst, but the collector.
            if isinstance(self._chunks, AsyncGenerator) and not self._reading:
                await self._chunks.aclose()
            await self._body.aclose()
        except BaseException as error:
            self._end(error)
            raise
        self._end(self._error or self._account.unread())

    @property
    def over(self) -> bool:
        """The slot has been given back."""
        return self._held.over

    def drop(self) -> None:
        """Nobody has the body any more; called from whatever code the collector interrupts."""
        with suppress(RuntimeError):  # the loop is closed
            self._held.loop.call_soon_threadsafe(self._abandon)

    def _end(self, error: BaseException | None) -> None:
        try:
            if not self.over:
                self._account.thought += 0.0 if self._reading else self._held.loop.time() - self._read_at
                self._account.close()
        finally:
            self._reading = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._held.give_back(error)

    def _look(self) -> None:
        loop = self._held.loop
        since = loop.time() if self._reading else self._read_at
        if loop.time() < since + self._idle:
            self._timer = loop.call_at(since + self._idle, self._look)
        elif not self.over:
            self.idled = True
            self._abandon()

    def _closed_around(self) -> None:
        """close() of the scheduler has lost patience while nobody reads."""
        self._aborted = True
        self._held.loop.call_soon(self._abandon)

    def _abandon(self) -> None:
        """The caller has walked away: the call ends now, and the connection is closed behind it."""
        if not self.over:
            self._end(asyncio.CancelledError())
            self._close_behind()

    def _close_behind(self) -> None:
        began = False

        async def close_quietly() -> None:
            nonlocal began
            began = True
            with suppress(Exception):
                await self._body.aclose()

        def closed(task: asyncio.Task[None]) -> None:
            _closing.discard(task)
            if not began:  # whoever cancels all tasks has cancelled it before its first step
                self._close_behind()

        task = self._held.loop.create_task(close_quietly())
        _closing.add(task)
        task.add_done_callback(closed)
