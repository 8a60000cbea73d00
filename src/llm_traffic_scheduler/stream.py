"""`async for token in scheduler.stream(kind, source, ...)`: a slot for as long as a stream is read.

Floor: third. The handle that users hold, and the door that makes it; how a stream is read is in `stream_reading.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar, TypeVarTuple, Unpack, overload

from .call import Call
from .call_options import CallOptions, check_options
from .core.checks import timeout
from .errors import SchedulerMisuse
from .stream_reading import Reading
from .stream_sources import Opened, Source
from .surroundings import Scope, active, around, tenant_in_force
from .traffic import is_interactive, living_call, options_in_force
from .work import Kind, not_a_function

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["Stream", "refuse_preemptible_stream", "stream"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stream(AsyncIterator[T]):
    """The items of one source, read in one slot. Made by `TrafficScheduler.stream`; iterated once.

    The slot is taken by `start()` or the first item, and held until the stream has ended, was closed, raised, was
    cancelled, or was idle too long. Leaving a loop by `break` closes nothing: write `async with` around it, or the
    stream is closed when it is garbage collected, with a ResourceWarning. `StopAsyncIteration` means that it has been
    read to its end; whoever reads on after any other end gets StreamClosed, or CallAborted from `close()`.

    Threads: the loop's only, and one reader at a time. Cancellation: of a reader that waits for an item goes to the
    source, and ends the stream.
    """

    __slots__ = ("__weakref__", "_reading")

    def __init__(self, reading: Reading[T]) -> None:
        self._reading = reading

    async def start(self) -> None:
        """Take the slot now, before a response's status is sent, say; the source is not called yet.

        Raises:
            QueueFull, QueueTimeout, SchedulerClosed: refused. It may be tried again.
            CallAborted, StreamClosed: the scheduler, or the stream, was closed.
        Cancellation: the call leaves the queue.
        """
        await self._reading.start()

    async def aclose(self) -> None:
        """Close the source and give the slot back; no-op after the end. Any task may; a reader gets StreamClosed.

        Raises:
            Whatever the source raises as it is closed.
            SchedulerMisuse: the source itself calls this.
        Cancellation: goes to the source's clean-up; while a reader is waited for, harmless.
        """
        await self._reading.close()

    async def __anext__(self) -> T:
        return await self._reading.pull()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._reading.close()

    def __reduce__(self) -> NoReturn:
        raise SchedulerMisuse("a stream cannot be copied or pickled, it has one slot and one source: start another")

    def __del__(self) -> None:
        if self._reading.forsake():
            warnings.warn(
                "a stream was dropped before its end: write `async with scheduler.stream(...) as stream:` around the "
                "loop, or call aclose()",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )


@overload
def stream(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    source: Callable[[*Ts], AsyncIterator[T]],
    /,
    *args: *Ts,
    idle_timeout: float | None = 60.0,
    **options: Unpack[CallOptions],
) -> Stream[T]: ...
@overload
def stream(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    source: Callable[[*Ts], Awaitable[AsyncIterator[T]]],
    /,
    *args: *Ts,
    idle_timeout: float | None = 60.0,
    **options: Unpack[CallOptions],
) -> Stream[T]: ...
@overload
def stream(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    source: Callable[[*Ts], AbstractAsyncContextManager[AsyncIterator[T]]],
    /,
    *args: *Ts,
    idle_timeout: float | None = 60.0,
    **options: Unpack[CallOptions],
) -> Stream[T]: ...
def stream(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    source: Callable[[*Ts], Opened[T]],
    /,
    *args: *Ts,
    idle_timeout: float | None = 60.0,
    **options: Unpack[CallOptions],
) -> Stream[T]:
    """Read a stream in a slot: `async for token in scheduler.stream("interactive", ask, question): ...`.

    Kind, options, tenant and context variables are those of this moment; the slot is taken later, see `Stream`. The
    reader's loop body runs outside of it. The source's code runs in the reader's task, in a context of its own, and
    only while an item is awaited; `current_slot()` is the stream's there. The first item counts as the first token.
    Items are not tokens: a pace is known only of a source that says `current_slot().tokens(n)`. Time in which no item
    is awaited is in no latency. Read inside a slot of the same scheduler, the stream runs in that one, item by item.

    Args:
        source: an async-generator function; a function that returns an awaitable of an async iterator, as the SDKs'
            `stream=True` does; or one that returns an async context manager of one. Called once, for the first item.
        idle_timeout: seconds without a reader after which the stream is closed; None: never.
        run_timeout: seconds that the source may take, counted only while an item is awaited.
        Other options are those of `submit`; but `preemptible` is refused, for what has been read cannot be taken back.

    Raises, here:
        ConfigError, SchedulerMisuse, TypeError: the arguments are wrong.
    Raises, for an item:
        QueueFull, QueueTimeout, SchedulerClosed: refused; the source was not called.
        RunTimeout, CallAborted, StreamClosed: it was ended before its end.
        SchedulerMisuse: another task reads it, or the source is none.
        Whatever the source raises, unchanged.
    """
    if not callable(source):
        raise _not_a_source(source, kind)
    refuse_preemptible_stream(options)
    idle = timeout("idle_timeout", idle_timeout, above_zero=True)
    surroundings = around()
    interactive = is_interactive(kind, surroundings)
    check_options(kind, options, scheduler._settings)
    scope, tenant = options_in_force(surroundings), tenant_in_force(surroundings)
    priority, queue_timeout = (None, None) if scope is None else (scope.priority, scope.queue_timeout)
    captured = Scope(interactive, priority, tenant, queue_timeout, None)
    admit = partial(_admit, scheduler, captured, options)
    return Stream(Reading(admit, Source(partial(source, *args)), copy_context(), idle))


def refuse_preemptible_stream(options: CallOptions) -> None:
    """Raise SchedulerMisuse for a stream that is to be preempted."""
    if options.get("preemptible"):
        raise SchedulerMisuse(
            "a stream cannot be preempted, for what has been read of it cannot be taken back: leave preemptible out, "
            'or read it all in a function and write submit("batch", function, preemptible=True)'
        )


def _admit(scheduler: TrafficScheduler, captured: Scope, options: CallOptions) -> Call:
    """Ask for a slot: as what the stream was made as, inside of what it is read in."""
    scope = Scope(
        captured.interactive, captured.priority, captured.tenant, captured.queue_timeout, living_call(around())
    )
    token = active.set(scope)
    try:
        return scheduler._admit("interactive" if captured.interactive else "batch", options)
    finally:
        active.reset(token)


def _not_a_source(source: object, kind: object) -> Exception:
    if hasattr(type(source), "__anext__") or hasattr(type(source), "__aenter__"):
        return SchedulerMisuse(
            f"stream() takes the function that makes a stream, got a {type(source).__name__}: "
            "write stream(kind, ask, question), not stream(kind, ask(question))"
        )
    return not_a_function(source, kind, "stream")
