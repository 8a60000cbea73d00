"""What may be handed to `submit`, and how to say it when it is something else.

Floor: third.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from types import CoroutineType
from typing import TypeVar

from .errors import SchedulerMisuse

__all__ = ["checked_awaitable", "checked_function"]

T = TypeVar("T")


def checked_function(coro_fn: object) -> None:
    """Refuse what cannot be called; a coroutine object is closed, so that nothing warns "never awaited".

    Raises:
        SchedulerMisuse: the message shows the call to write instead.
    """
    if callable(coro_fn):
        return
    if inspect.iscoroutine(coro_fn):
        name = coro_fn.__name__
        coro_fn.close()
        raise SchedulerMisuse(
            f'submit() takes a function, got a coroutine object: write submit("batch", {name}, ...), '
            f'not submit("batch", {name}(...))'
        )
    raise SchedulerMisuse(f"submit() takes a function that returns an awaitable, got {type(coro_fn).__name__}")


def checked_awaitable(value: Awaitable[T], coro_fn: object) -> Awaitable[T]:
    """What the function returned, if it can be awaited.

    Raises:
        SchedulerMisuse: it cannot.
    """
    if type(value) is CoroutineType or inspect.isawaitable(value):
        return value
    name = getattr(coro_fn, "__qualname__", type(coro_fn).__name__)
    if inspect.isasyncgen(value):
        hint = "iterate over it inside `async with scheduler.slot(...)`"
    else:
        hint = f"make it `async def`, or run it in a thread: submit(kind, asyncio.to_thread, {name}, ...)"
    raise SchedulerMisuse(f"{name} returned {type(value).__name__}, which cannot be awaited: {hint}")
