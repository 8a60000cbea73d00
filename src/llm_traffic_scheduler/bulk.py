"""`map` and `as_completed`: many items through one function, with bounded memory.

Floor: third. Each item is one call of `submit`, in a task of its own; `bulk_run.py` keeps at most `buffer` of them that
were submitted and not yet consumed, `bulk_line.py` lets them wait for room where the queue has a bound.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypedDict, TypeVar, Unpack

from .bulk_line import Line
from .bulk_run import Run
from .call import Call
from .call_options import CallOptions, check_options
from .core.checks import count
from .errors import SchedulerClosed, SchedulerMisuse
from .outcome import Outcome
from .progress import Progress, teller
from .surroundings import active, around
from .traffic import enter_bulk, is_interactive
from .work import Kind, not_a_function

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["Bulk", "BulkOptions", "as_completed", "map"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
YieldT = TypeVar("YieldT")

_OF_THE_ITEM: Final = ("priority", "tenant")
_LARGEST_DEFAULT: Final = 1000
"""Calls that `buffer` allows where it is left out and the limits are boundless, as those of `unlimited()` are."""


class BulkOptions(TypedDict, Generic[ItemT], total=False):
    """The options of `submit`; `priority` and `tenant` may be functions of the item."""

    priority: float | Callable[[ItemT], float]
    queue_timeout: float | None
    run_timeout: float | None
    label: str | None
    observe: bool
    tenant: str | Callable[[ItemT], str | None] | None
    preemptible: bool


class Bulk(Generic[YieldT]):
    """What `map` and `as_completed` return: iterated over once, by one task, on one event loop.

        async with scheduler.map("batch", embed, texts) as vectors:
            async for vector in vectors:
                ...

    Leaving the block, `aclose()`, a cancellation while the next one is awaited, and the first exception that the
    iteration raises cancel the calls that are left and wait for their ends; what they still raise is dropped, and an
    async source is closed. A loop that is left by `break` without the block does so only when the garbage collector
    comes, with a ResourceWarning, and nobody waits for their ends.
    Threads: not safe.
    """

    __slots__ = ("__weakref__", "_run", "_take")

    def __init__(self, run: Run[Any, Any], take: Callable[[Outcome[Any, Any]], YieldT]) -> None:
        self._run = run
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> YieldT:
        outcome = await self._run.next()
        if outcome is None:
            raise StopAsyncIteration
        return self._take(outcome)

    async def aclose(self) -> None:
        """Cancel the calls that are left and return when they have ended.

        Cancellation: still waits for their ends, then passes it on.
        """
        await self._run.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> NoReturn:
        raise SchedulerMisuse("a map() or as_completed() cannot be copied or pickled: start another")

    def __del__(self) -> None:
        if self._run.open:
            self._run.lose()
            warnings.warn(
                "a map() or as_completed() was dropped before its end, and its calls are cancelled without being "
                "awaited: write `async with scheduler.map(...) as results:` around the loop",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def map(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    fn: Callable[[ItemT], Awaitable[ResultT]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    /,
    *,
    buffer: int | None = None,
    progress: Progress = None,
    **options: Unpack[BulkOptions[ItemT]],
) -> Bulk[ResultT]:
    """The results of `fn(item)` for all items, in their order: `async for result in scheduler.map("batch", fn, items)`.

    Each item is one call of `submit` with these options, in a child task of its own, in the context that `map` was
    called in; `fn` and the options are as there. Items are pulled as they are needed, so they may be endless, and
    memory does not grow with their number. Nothing starts before the first result is asked for.

    The first error is raised at its item's place, after the results before it: then the other calls are cancelled, and
    have ended. It may be a refusal (QueueTimeout, SchedulerClosed), and what the items themselves raised counts
    as the error of the item in whose place it was raised. Once an item has failed, no more are pulled.

    Args:
        kind: "interactive" or "batch"; None: the one in force here, see `traffic`.
        items: any iterable, pulled by the consumer's own task, or an async one, pulled in a task of its own and closed.
        buffer: calls that may be submitted and not yet consumed; left out, twice as many as may run: twice
            `batch_max_concurrency` for batch, twice `max_concurrency` else, and no more than 1000. With a slow consumer
            so many results wait for it, and nothing more is submitted.
        progress: True shows a tqdm bar (`pip install 'llm-traffic-scheduler[progress]'`); a function is called with the
            items that have ended, and their number if it is known, else None; what it raises ends the iteration.
        priority, tenant: also functions of the item; what they raise is the item's error.
        queue_timeout: as in `submit`, from when the call comes into the queue.

    A full queue refuses none of them: of the calls of one `map`, as many wait in it at a time as `max_queued_batch` (or
    `max_queued_interactive`) allows, one at least, and the others wait for room. They take no place from other calls.

    Raises:
        ConfigError, SchedulerMisuse, TypeError: the arguments are wrong; nothing was queued.
        SchedulerMisuse, from the iteration: in two tasks at once, on two event loops, or closed by a call of its own.
    Cancellation: see `Bulk`, which it returns: write `async with` around a loop that may be left early.
    """
    run = _run("map", scheduler, kind, fn, items, buffer, progress, options)
    return Bulk(run, Outcome.get)


def as_completed(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    fn: Callable[[ItemT], Awaitable[ResultT]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    /,
    *,
    buffer: int | None = None,
    progress: Progress = None,
    **options: Unpack[BulkOptions[ItemT]],
) -> Bulk[Outcome[ItemT, ResultT]]:
    """An `Outcome` for each item as its call ends: index, item, result, error; otherwise as `map`.

    An error of an item is its outcome's `error`, whatever it is, and the others go on. What the items themselves raised
    is raised after the outcomes of all before it. When the scheduler is closed, the calls that it refuses have outcomes
    too; no more items are pulled, and if there may be some, SchedulerClosed is raised at the end.
    """
    run = _run("as_completed", scheduler, kind, fn, items, buffer, progress, options)
    return Bulk(run, _itself)


def _itself(outcome: Outcome[ItemT, ResultT]) -> Outcome[ItemT, ResultT]:
    return outcome


def _run(
    where: str,
    scheduler: TrafficScheduler,
    kind: Kind | None,
    fn: Callable[[ItemT], Awaitable[ResultT]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    buffer: int | None,
    progress: Progress,
    options: BulkOptions[ItemT],
) -> Run[ItemT, ResultT]:
    """Check the arguments, as far as that can be done before there is an item."""
    if not callable(fn):
        raise not_a_function(fn, kind, where)
    interactive = is_interactive(kind, around())
    plain: Any = {name: value for name, value in options.items() if not (name in _OF_THE_ITEM and callable(value))}
    check_options(kind, plain, scheduler._settings)
    if buffer is not None:
        count("buffer", buffer, at_least=1)
    total = len(items) if isinstance(items, Sized) else None
    label = options.get("label")
    tell = teller(progress, total, label)
    streams = hasattr(items, "__aiter__")
    if not streams and not hasattr(items, "__iter__") and not hasattr(items, "__getitem__"):
        raise _no_items(where, items)
    calls = _Calls(scheduler, kind, fn, options)
    return Run(
        None if streams else iter(items),  # type: ignore[arg-type]
        aiter(items) if streams else None,  # type: ignore[arg-type]
        calls.run,
        buffer=lambda: _default(scheduler, interactive) if buffer is None else buffer,
        in_order=where == "map",
        refused=lambda error, pulled: _closed(scheduler, error, pulled, total),
        tell=tell,
    )


def _no_items(where: str, items: object) -> SchedulerMisuse:
    if asyncio.iscoroutine(items):
        items.close()
    return SchedulerMisuse(
        f"{where}() takes items to iterate over, got {type(items).__name__}: "
        f'write {where}("batch", function, [item, ...]), or an async iterator'
    )


def _default(scheduler: TrafficScheduler, interactive: bool) -> int:
    limits = scheduler._settings.limits
    return min(2 * (limits.max_concurrency if interactive else limits.batch_max), _LARGEST_DEFAULT)


def _closed(scheduler: TrafficScheduler, error: BaseException, pulled: int, total: int | None) -> BaseException | None:
    """What stands for the items that nobody would take any more."""
    if scheduler._shutdown is None or not isinstance(error, SchedulerClosed) or pulled == total:
        return None
    return SchedulerClosed(
        f"scheduler {scheduler.name!r} was closed: {pulled} items were submitted, those after them were not; "
        "submit them to another",
        kind=error.kind,
    )


class _Calls(Generic[ItemT, ResultT]):
    """Runs one item at a time, each in the task it is called in."""

    def __init__(
        self,
        scheduler: TrafficScheduler,
        kind: Kind | None,
        fn: Callable[[ItemT], Awaitable[ResultT]],
        options: BulkOptions[ItemT],
    ) -> None:
        self._scheduler = scheduler
        self._kind = kind
        self._fn = fn
        self._options: Any = options
        self._depends = any(callable(options.get(name)) for name in _OF_THE_ITEM)
        self._line = Line()

    async def run(self, item: ItemT) -> ResultT:
        options = self._options
        if self._depends:
            options = {**options, **{name: options[name](item) for name in _OF_THE_ITEM if callable(options.get(name))}}
        interactive = is_interactive(self._kind, around())
        limits = self._scheduler._settings.limits
        bound = limits.max_queued_interactive if interactive else limits.max_queued_batch
        if bound is None:
            self._line.lift()
            return await self._scheduler.submit(self._kind, self._fn, item, **options)
        return await self._run_in_line(item, options, interactive, bound)

    async def _run_in_line(self, item: ItemT, options: CallOptions, interactive: bool, bound: int) -> ResultT:
        await self._line.enter(bound)
        outside, waits, fn = around(), True, self._fn
        enter_bulk(interactive)

        def leave_line() -> None:
            nonlocal waits
            if waits:
                waits = False
                self._line.leave()

        def begin(item: ItemT) -> Awaitable[ResultT]:
            leave_line()
            call = active.get()
            if isinstance(call, Call):
                call.parent = outside  # what it is inside of, without the scope that let it in
            return fn(item)

        try:
            begin.__qualname__ = f"{getattr(fn, '__qualname__', type(fn).__name__)}"  # for messages
            return await self._scheduler.submit(self._kind, begin, item, **options)
        finally:
            leave_line()
