"""What may be handed to `submit`, and how to say it when it is something else.

Floor: third.
"""

from __future__ import annotations

import inspect
from typing import Literal, TypeAlias

from .call import TrafficKind
from .errors import ConfigError, SchedulerMisuse

__all__ = ["Kind", "bad_kind", "check_awaitable", "kind_name", "not_a_function"]

Kind: TypeAlias = Literal["interactive", "batch"] | TrafficKind


def kind_name(kind: Kind) -> Literal["interactive", "batch"]:
    """The kind's plain name.

    Raises:
        ConfigError, SchedulerMisuse: it is none.
    """
    if kind == "interactive":
        return "interactive"
    if kind == "batch":
        return "batch"
    raise bad_kind(kind)


def bad_kind(kind: object, where: str = "submit") -> ConfigError | SchedulerMisuse:
    """What to raise for a kind that is none; `where` is what was called."""
    if kind is None:
        return SchedulerMisuse('no kind is in force here: give "interactive" or "batch" as the first argument')
    if callable(kind):
        return SchedulerMisuse(
            f'the kind comes first: write {where}("interactive", {getattr(kind, "__qualname__", "function")}, ...)'
        )
    return ConfigError(f'kind must be "interactive" or "batch", got {kind!r}')


def not_a_function(coro_fn: object, kind: object, where: str = "submit") -> ConfigError | SchedulerMisuse:
    """What to raise for work that cannot be called; `where` is what was given it.

    A coroutine object is closed, so that nothing warns "never awaited".
    """
    if callable(kind) and not inspect.iscoroutine(coro_fn):
        return bad_kind(kind, where)
    if inspect.iscoroutine(coro_fn):
        name = coro_fn.__name__
        coro_fn.close()
        return SchedulerMisuse(
            f'{where}() takes a function, got a coroutine object: write {where}("batch", {name}, ...), '
            f'not {where}("batch", {name}(...))'
        )
    return SchedulerMisuse(f"{where}() takes a function that returns an awaitable, got {type(coro_fn).__name__}")


def check_awaitable(value: object, coro_fn: object) -> None:
    """Refuse what a function returned if it cannot be awaited.

    Raises:
        SchedulerMisuse: the message shows what to write instead.
    """
    if inspect.isawaitable(value):
        return
    name = getattr(coro_fn, "__qualname__", type(coro_fn).__name__)
    if inspect.isasyncgen(value):
        hint = f"write `async for item in scheduler.stream(kind, {name}, ...)`"
    else:
        hint = f"make it `async def`, or run it in a thread: submit(kind, asyncio.to_thread, {name}, ...)"
    raise SchedulerMisuse(f"{name} returned {type(value).__name__}, which cannot be awaited: {hint}")
