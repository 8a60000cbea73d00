"""What a stream reads from, in its three forms, and the context that it runs in.

Floor: third.

An async generator runs in the context of whoever asks it for the next item (PEP 525), so a slot that is entered in it
would be in force in the reader's own code, and a variable that it sets in one task could not be reset in another. Here
the source has a context of its own from its first step to its last, and each step is taken inside it, in whatever
task.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context
from types import AsyncGeneratorType
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from .errors import SchedulerMisuse

__all__ = ["PLAIN", "Opened", "Source", "inside", "refuse_stream"]

# To look for an attribute that is not there costs more than to find the type in here. No result of these is a stream.
PLAIN: Final = frozenset({bytes, bool, dict, float, int, list, str, tuple})

T = TypeVar("T")
R = TypeVar("R")

Opened: TypeAlias = AsyncIterator[T] | Awaitable[AsyncIterator[T]] | AbstractAsyncContextManager[AsyncIterator[T]]


class Source(Generic[T]):
    """Opened by the first `next`, closed once.

    Cancellation: goes on to the source's own code. What is open then is for `close` to close.
    """

    __slots__ = ("_function", "_iterator", "_open", "_step")

    def __init__(self, function: Callable[[], Opened[T]]) -> None:
        self._function = function
        self._iterator: AsyncIterator[T] | None = None
        self._open = AsyncExitStack()  # what is to be closed, the last to be opened first
        self._step: _Step[T] | None = None  # a generator's last

    async def next(self) -> T:
        """The next item.

        Raises:
            StopAsyncIteration: there is none.
            SchedulerMisuse: the function returned what is no source.
        """
        if self._step is not None and self._iterator is not None:
            self._step = step = _Step(self._iterator.__anext__())
            return await step
        if self._iterator is not None:
            return await self._iterator.__anext__()
        try:
            self._iterator = await self._open_it(self._function())
        except StopAsyncIteration as error:
            # It would look like the end of the stream, and that like a whole one.
            raise RuntimeError("the source of a stream raised StopAsyncIteration as it was opened") from error
        if not isinstance(self._iterator, AsyncGeneratorType):
            return await self._iterator.__anext__()
        self._step = step = _Step(_first(self._iterator))
        return await step

    async def close(self, error: BaseException | None = None) -> None:
        """Close what is open, because of `error` if there is one; context managers are shown it.

        Cancellation: interrupts what is being closed; the rest is closed.
        """
        stack, step = self._open.pop_all(), self._step
        if step is not None and step.left:
            try:
                await step
            except (GeneratorExit, StopAsyncIteration):
                if step.left:
                    raise
        await stack.__aexit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))

    async def _open_it(self, opened: object) -> AsyncIterator[T]:
        if not _reads(opened) and inspect.isawaitable(opened):
            opened = await opened
        if not hasattr(type(opened), "__anext__") and hasattr(type(opened), "__aenter__"):
            opened = await self._open.enter_async_context(cast("AbstractAsyncContextManager[object]", opened))
            if isinstance(opened, AsyncGeneratorType):  # of which the event loop does not know, see `_first`
                self._close_later(opened)
        else:
            self._close_later(opened)
        if not hasattr(type(opened), "__anext__") and hasattr(type(opened), "__aiter__"):
            opened = aiter(cast("AsyncIterator[T]", opened))
            self._close_later(opened)
        if not hasattr(type(opened), "__anext__"):
            raise _no_source(self._function, opened)
        return cast("AsyncIterator[T]", opened)

    def _close_later(self, opened: object) -> None:
        if hasattr(type(opened), "__aiter__"):
            self._open.push_async_callback(_close, opened)


def _reads(opened: object) -> bool:
    return any(hasattr(type(opened), name) for name in ("__anext__", "__aenter__", "__aiter__"))


def _first(generator: AsyncIterator[T]) -> Awaitable[T]:
    """The first step.

    An event loop closes the generators that were first read on it when it ends, in a context of its own. The stream
    closes its source itself, so the loop is not to know of that one.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return generator.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


async def _close(iterator: object) -> None:
    """Close an async iterator: generators have `aclose`, the streams of SDKs `close`, some nothing."""
    for name in ("aclose", "close"):
        if callable(close := getattr(iterator, name, None)):
            closing = close()
            if inspect.isawaitable(closing):
                await closing
            return


def _no_source(function: Callable[..., object], opened: object) -> SchedulerMisuse:
    function = getattr(function, "func", function)  # a partial's
    name = getattr(function, "__qualname__", type(function).__name__)
    return SchedulerMisuse(
        f"stream() takes a source of items, and {name} gave {type(opened).__name__}, which is no async iterator: "
        "write an async-generator function that yields the items"
    )


async def refuse_stream(result: object, coro_fn: object) -> None:
    """Refuse the result of a call that is a stream still to be read: its slot would be free at the headers.

    Raises:
        SchedulerMisuse: the stream has been closed.
    """
    if type(result).__module__ == "unittest.mock":  # a mock has every method
        return
    try:
        await _close(result)
    finally:
        name = getattr(coro_fn, "__qualname__", type(coro_fn).__name__)
        raise SchedulerMisuse(
            f"{name} returned {type(result).__name__}, a stream that would be read without a slot: "
            f"write `async for item in scheduler.stream(kind, {name}, ...)`"
        )


class _Step(Iterator[object], Awaitable[R]):
    """A step of an async generator, which can be left in the middle: awaited again, it lets the generator clean up.

    To close one leaves the generator where it waits, and until 3.13 says ever after that it is running.
    """

    __slots__ = ("_step", "left")

    def __init__(self, step: Awaitable[R]) -> None:
        self._step: Any = step
        self.left = False

    def __await__(self) -> Generator[Any, Any, R]:
        return cast("Generator[Any, Any, R]", self)

    def __next__(self) -> object:
        if self.left:
            self.left = False
            return self._step.throw(GeneratorExit())
        return self._step.send(None)

    def send(self, value: object) -> object:
        """Go on."""
        return self._step.send(value)

    def throw(self, *error: Any) -> object:
        """Raise where it waits."""
        return self._step.throw(*error)

    def close(self) -> None:
        """Leave it where it waits."""
        self.left = True


class _Steps(Iterator[object], Awaitable[R]):
    """A coroutine, each step of which is taken inside a context."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, context: Context, coroutine: Coroutine[Any, Any, R]) -> None:
        self._context = context
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, R]:
        return cast("Generator[Any, Any, R]", self)

    def __next__(self) -> object:
        return self._context.run(self._coroutine.send, None)

    def send(self, value: object) -> object:
        """Go on."""
        return self._context.run(self._coroutine.send, value)

    def throw(self, *error: Any) -> object:
        """Raise where it waits."""
        return self._context.run(self._coroutine.throw, *error)

    def close(self) -> None:
        """Leave it where it waits."""
        self._context.run(self._coroutine.close)


def inside(context: Context, coroutine: Coroutine[Any, Any, R]) -> Awaitable[R]:
    """`coroutine`, to be awaited, run inside `context` whoever awaits it."""
    return _Steps(context, coroutine)
