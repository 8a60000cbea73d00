"""`@scheduler.wrap(kind)`: a coroutine function, or an async-generator one, that waits for a slot when it is called.

Floor: third.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from .call_options import CallOptions, check_options
from .errors import SchedulerMisuse
from .stream import Stream, refuse_preemptible_stream
from .work import Kind

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["Decorator", "wrap"]

P = ParamSpec("P")
T = TypeVar("T")


class Decorator(Protocol):
    """Takes a coroutine function and returns one of the same type; of an async-generator function, a `Stream`'s."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> Callable[P, Stream[T]]: ...


def wrap(scheduler: TrafficScheduler, kind: Kind | None = None, /, **options: Unpack[CallOptions]) -> Decorator:
    """Decorate an `async def` function, or a method, so that each call of it is one call of the scheduler.

    Signature, types, name and docstring stay; options, errors and cancellation are those of `submit`. Of an
    async-generator function each call is a `Stream`, as of `stream`.

        @scheduler.wrap("batch", run_timeout=120)
        async def summarise(document: str, *, words: int = 100) -> str: ...

    Args:
        kind: "interactive" or "batch"; left out, the kind in force when the function is called.

    Raises, where it decorates:
        ConfigError, TypeError: kind or options are wrong.
        SchedulerMisuse: what it decorates is no coroutine function and no async-generator function.
    """
    if callable(kind):
        raise SchedulerMisuse(f'wrap() takes a kind first: write @scheduler.wrap("batch") above {_name(kind)}')
    check_options(kind, options, scheduler._settings)
    doors: Any = scheduler  # a kind of None is refused, or found, when the function is called

    def decorate(function: Callable[P, Any], /) -> Callable[P, Any]:
        if inspect.isasyncgenfunction(function):
            refuse_preemptible_stream(options)

            @functools.wraps(function)
            def streamed(*args: P.args, **kwargs: P.kwargs) -> Stream[Any]:
                source = functools.partial(function, *args, **kwargs) if kwargs else function
                return doors.stream(kind, source, *(() if kwargs else args), **options)  # type: ignore[no-any-return]

            return streamed
        if not inspect.iscoroutinefunction(function):
            raise _not_a_coroutine_function(function)

        @functools.wraps(function)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
            if kwargs:
                return await doors.submit(kind, functools.partial(function, *args, **kwargs), **options)
            return await doors.submit(kind, function, *args, **options)

        return wrapped

    return decorate


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _not_a_coroutine_function(function: object) -> SchedulerMisuse:
    name = _name(function)
    if inspect.iscoroutine(function):
        function.close()
        what, hint = "a coroutine object", f"give it the function, {name}, not {name}(...)"
    elif isinstance(function, staticmethod | classmethod):
        kind_of_method = type(function).__name__
        what, hint = f"a {kind_of_method}", f"put @{kind_of_method} above @scheduler.wrap(...)"
    elif inspect.isgeneratorfunction(function):
        what, hint = "a generator function", "make it `async def`"
    elif callable(function):
        what, hint = (
            "a function that is not `async def`",
            f"make it so, or run it in a thread: submit(kind, asyncio.to_thread, {name}, ...)",
        )
    else:
        what, hint = type(function).__name__, "put @scheduler.wrap(...) above an `async def` function"
    return SchedulerMisuse(f"wrap() takes a coroutine function, got {what}, {name}: {hint}")
