"""Schedulers in the state that a test wants: with full slots, or without any limit.

Floor: beside the front door.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, TypeVarTuple

from llm_traffic_scheduler import (
    CallInfo,
    ConfigError,
    Kind,
    SchedulerMisuse,
    Slot,
    Stream,
    TrafficScheduler,
    current_slot,
    kind_in_force,
)

__all__ = ["HeldSlots", "RecordedCall", "Unlimited", "hold", "unlimited"]

_PLENTY: Final = 2**31

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def hold(scheduler: TrafficScheduler, n: int = 1) -> HeldSlots:
    """Fill `n` slots at once, as `n` interactive calls would, and keep them until `release()`.

    The window of interactive traffic does not see them; totals, events and `calls()` do. For code that runs on the
    scheduler's loop; nothing is awaited, so whatever the test submits next finds the slots taken.

        with hold(scheduler, 2):
            waiting = asyncio.create_task(client.ask("why?"))
            ...

    Raises:
        ConfigError: `n` is no whole number of at least 1.
        SchedulerMisuse: fewer than `n` slots are free, "interactive" is paused, or no loop runs; nothing was taken.
        SchedulerClosed: the scheduler is closed.
    """
    if type(n) is not int or n < 1:
        raise ConfigError(f"n must be a whole number of at least 1, got {n!r}")
    try:
        scheduler._on(asyncio.get_running_loop())
    except RuntimeError as error:
        if isinstance(error, SchedulerMisuse):
            raise
        raise SchedulerMisuse("hold() needs the scheduler's event loop running: call it inside `async def`") from None
    now = scheduler.snapshot()
    free = max(0, now.max_concurrency - now.running)
    if free < n or "interactive" in now.paused:
        paused = ', and "interactive" is paused' if "interactive" in now.paused else ""
        raise SchedulerMisuse(
            f"hold() was asked for {n} slots, {free} of {now.max_concurrency} are free{paused}: "
            "ask for fewer, or release what holds them first"
        )
    held = HeldSlots()
    try:
        for _ in range(n):
            held._take(scheduler)
    except BaseException:
        held.release()
        raise
    return held


class HeldSlots:
    """Slots taken by `hold`. As a context manager it releases them at the end of the block.

    Threads: the loop's only. close() cannot cancel what no task holds, and reports it as abandoned.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[Context, AbstractAsyncContextManager[Slot]]] = []

    def _take(self, scheduler: TrafficScheduler) -> None:
        # A context of its own, so that the test's own calls are not inside this slot, and this slot inside none.
        context = Context()
        slot = scheduler.slot(
            "interactive",
            observe=False,
            queue_timeout=0,
            run_timeout=math.inf,
            label="hold()",
            tenant=f"hold() {len(self._slots)}",
        )
        handle = context.run(_at_once, slot.__aenter__())
        # The slot belongs to no task: close() must not cancel the test.
        handle._call.task = None
        self._slots.append((context, slot))

    def release(self) -> None:
        """Give the slots back, once; what waits for them starts at once."""
        while self._slots:
            context, slot = self._slots.pop()
            context.run(_at_once, slot.__aexit__(None, None, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<HeldSlots {len(self._slots)}>"


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise SchedulerMisuse("hold() would have to wait for its slots: ask when nothing else waits for one")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What a call of an `unlimited()` scheduler ran as; kind None if neither it nor anything around it said one."""

    kind: str | None
    label: str | None
    tenant: str | None


def unlimited() -> Unlimited:
    """A scheduler for unit tests, on which nothing waits and nothing is refused but mistakes. See `Unlimited`."""
    return Unlimited()


class Record(list[RecordedCall]):
    """What has run, in the order of the starts. Called, it says like the scheduler's `calls()` what runs now."""

    def __init__(self, running: Callable[[], tuple[CallInfo, ...]]) -> None:
        super().__init__()
        self._running = running

    def __call__(self) -> tuple[CallInfo, ...]:
        return self._running()


class Unlimited(TrafficScheduler):
    """Runs every call at once and keeps what it was, in `calls`, in the order of their starts.

        scheduler = unlimited()
        await summarise_all(documents, scheduler)
        assert {call.kind for call in scheduler.calls} == {"batch"}

    Otherwise a scheduler like any other, with two billion slots; but a kind may be left out.
    """

    calls: Record

    def __init__(self) -> None:
        super().__init__(max_concurrency=_PLENTY, batch_max_concurrency=_PLENTY - 1, name="unlimited")
        self.calls = Record(super().calls)

    async def submit(
        self, kind: Kind | None, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Any
    ) -> T:
        """Run `coro_fn(*args)` at once, in the caller's own task. See `TrafficScheduler.submit`."""
        run, kind, known = coro_fn, *_known(kind)
        if callable(coro_fn):  # else the real one knows what to say

            def run(*args: *Ts) -> Awaitable[T]:
                self._record(known)
                return coro_fn(*args)

            # For the message about what cannot be awaited.
            run.__qualname__ = getattr(coro_fn, "__qualname__", type(coro_fn).__name__)
        return await super().submit(kind, run, *args, **options)

    def slot(self, kind: Kind | None = None, /, **options: Any) -> AbstractAsyncContextManager[Slot]:
        """A slot for a block, at once. See `TrafficScheduler.slot`."""
        kind, known = _known(kind)
        return _RecordedSlot(super().slot(kind, **options), partial(self._record, known))

    def stream(  # type: ignore[override]  # one signature for all three forms of a source
        self, kind: Kind | None, source: Callable[..., Any], /, *args: Any, **options: Any
    ) -> Stream[Any]:
        """Read a stream, at once. See `TrafficScheduler.stream`."""
        run, kind, known = source, *_known(kind)
        if callable(source):

            def run(*args: Any) -> Any:
                self._record(known)
                return source(*args)

        return super().stream(kind, run, *args, **options)

    def _record(self, known: bool) -> None:
        slot = current_slot()
        assert slot is not None
        self.calls.append(RecordedCall(slot.kind if known else None, slot.label, slot.tenant))


class _RecordedSlot(AbstractAsyncContextManager[Slot]):
    def __init__(self, slot: AbstractAsyncContextManager[Slot], record: Callable[[], None]) -> None:
        self._slot = slot
        self._record = record

    async def __aenter__(self) -> Slot:
        slot = await self._slot.__aenter__()
        self._record()
        return slot

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._slot.__aexit__(exc_type, error, traceback)


def _known(kind: Kind | None) -> tuple[Kind, bool]:
    """The kind to run as, and whether it was said: by the call, or by what is in force around it."""
    if kind is not None:
        return kind, True
    in_force = kind_in_force()
    return ("interactive", False) if in_force is None else (in_force, True)
