"""How hours of traffic become a test of milliseconds.

Floor: beside the front door. For the tests of this project, of its users, and for the simulation.
Idea: a loop has one place where it can only wait, its selector. Whoever owns that wait owns the
time, so the clock lives there: if nothing is ready, it stands at the next timer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["VirtualTimeDeadlock", "VirtualTimeLoop", "run_virtual"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Events = list[tuple[selectors.SelectorKey, int]]

# The loop's own wake-up pipe is always registered; one file more belongs to the user.
_OWN_FILES: Final = 1
# A poll costs as much as half a pass (1 microsecond). While callbacks are ready, only signals could be missed.
_PASSES_PER_POLL: Final = 64
_SWEEP_ABOVE: Final = 100
# epoll counts milliseconds in 32 bits, 24 days; asyncio itself never waits for longer than a day.
_LONGEST_WAIT: Final = 86_400.0
_TASKS_SHOWN: Final = 10


class VirtualTimeDeadlock(RuntimeError):
    """Everything waits, no timer is set, and nothing outside the loop is known to answer."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on which waiting takes no time.

    Guarantees: `time()` starts at `start`, stands still while callbacks run, and jumps to exactly the
    instant of the next timer when nothing is ready. Timers of one instant run in the order in which they
    were set. A cancelled timer moves nothing. Where a real loop would hang for ever, `run_until_complete`
    raises `VirtualTimeDeadlock`, which names the tasks and the lines where they wait.

    Real time: while something outside the loop may answer, the clock runs with the real one and never
    jumps, so nothing times out earlier than on a real loop. That is: until a job started by `to_thread` or
    `run_in_executor` has ended, while a socket or pipe is registered, and inside `with loop.real_time():`.
    Tests that talk to real servers work, at real speed; virtual time and real I/O do not mix.

    Threads: `call_soon_threadsafe` wakes the loop as usual. A thread started by hand is invisible: timers
    do not wait for it (write `with loop.real_time():`), but while any other thread is alive, the loop
    listens for `patience` real seconds before it raises.
    Cancellation: as on any loop.
    Complexity: setting and running a timer O(log n); cancelling O(1) amortised, and cancelled timers never
    outnumber the others by more than a hundred.
    Debug mode works, except that no callback is ever slow.

        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(main())
    """

    # asyncio's own: what runs in the next pass, and its heap of timers, which stays empty here.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    # A loop whose arguments were refused has nothing to close; asyncio's `__del__` asks.
    _closed = True

    def __init__(self, start: float = 0.0, *, patience: float = 5.0) -> None:
        if not -math.inf < start < math.inf:
            raise ValueError(f"start must be a finite number of seconds, got {start!r}")
        if not 0 <= patience < math.inf:
            raise ValueError(f"patience must be a finite number of real seconds, at least 0, got {patience!r}")
        self._clock = _Clock(float(start), patience)
        super().__init__(self._clock)
        self._clock.ready = self._ready

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._clock.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if not when <= math.inf:
            raise ValueError(f"a timer needs an instant, got {when!r}")
        if self.get_debug() or self.is_closed():
            # For asyncio's own refusals: closed, called from another thread, a coroutine for a callback.
            timer = super().call_at(when, callback, *args, context=context)
            self._scheduled.clear()
        else:
            timer = asyncio.TimerHandle(when, callback, args, self, context)
        # asyncio's heap mixes up equals: ten timers of one instant ran in the order 0 2 6 9 8 5 7 4 1 3.
        heapq.heappush(self._clock.timers, (when, next(self._clock.serial), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's hook: a timer is about to be cancelled."""
        self._clock.count_cancelled()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Run `func` in a thread; until it has ended, or its future is cancelled, the clock is real."""
        job = super().run_in_executor(executor, func, *args)
        self._clock.outside_began()
        job.add_done_callback(self._clock.outside_ended)
        return job

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the executor's threads to end, at most `timeout` real seconds (from Python 3.12 on)."""
        with self.real_time():
            if sys.version_info >= (3, 12):
                await super().shutdown_default_executor(timeout)
            else:
                await super().shutdown_default_executor()

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """Inside, the clock runs with the real one: for threads of your own that will wake the loop."""
        self._clock.outside_began()
        try:
            yield
        finally:
            self._clock.outside_ended()


def run_virtual(main: Coroutine[object, object, _T], *, start: float = 0.0, debug: bool | None = None) -> _T:
    """Run `main` in virtual time and return its result: `asyncio.run` on a `VirtualTimeLoop`.

    Raises: what `main` raises, and `VirtualTimeDeadlock`.
    """
    with asyncio.Runner(debug=debug, loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)


class _Clock(selectors.DefaultSelector):
    """The selector of a `VirtualTimeLoop`, which also keeps its time and its timers.

    asyncio asks it once in each pass: without a timeout when nothing is ready (its own heap of timers is
    empty), with 0 otherwise.
    """

    ready: deque[asyncio.Handle]

    def __init__(self, start: float, patience: float) -> None:
        super().__init__()
        self._poll = super().select
        self.now = start
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.serial = itertools.count()
        self._patience = patience
        self._cancelled = 0
        self._passes = 0
        self._outside = 0
        self._real_lead: float | None = None  # now - real time, while the clock runs with the real one

    def select(self, timeout: float | None = None) -> _Events:
        if self._real_lead is not None:
            events = self._wait(timeout)
        elif timeout is None:
            events = self._jump()
        else:
            self._passes += 1
            events = [] if self._passes % _PASSES_PER_POLL else self._poll(0)
        timers, now = self.timers, self.now
        while timers and timers[0][0] <= now:
            self.ready.append(heapq.heappop(timers)[2])
        return events

    def _jump(self) -> _Events:
        # A signal that has arrived comes before a timer that would have been due later.
        events = self._poll(0)
        if events or self.ready:
            return events
        due = self._next_due()
        if due < math.inf:
            if due > self.now:
                self.now = due
            return events
        if threading.active_count() > 1:
            events = self._poll(self._patience)
        if not events:
            raise VirtualTimeDeadlock(_deadlock_message(self.now))
        return events

    def _wait(self, timeout: float | None) -> _Events:
        """Let real time pass, but no more than up to the next timer."""
        due = self._next_due()
        if timeout is None and due < math.inf:
            timeout = min(max(0.0, due - self._real_now()), _LONGEST_WAIT)
        events = self._poll(timeout)
        # Not past `due`: timers that fell due during one long callback each run at their own instant.
        self.now = max(self.now, min(due, self._real_now()))
        return events

    def _real_now(self) -> float:
        assert self._real_lead is not None
        return time.monotonic() + self._real_lead

    def _next_due(self) -> float:
        timers = self.timers
        while timers:
            due, _, timer = timers[0]
            if not timer.cancelled():
                return due
            heapq.heappop(timers)
        return math.inf

    def count_cancelled(self) -> None:
        # Counted too high (every `asyncio.sleep` cancels its timer, run or not): a sweep comes early, never
        # late, and it still looks at no more than two timers for each cancel.
        if self._cancelled > _SWEEP_ABOVE and 2 * self._cancelled > len(self.timers):
            self.timers[:] = [entry for entry in self.timers if not entry[2].cancelled()]
            heapq.heapify(self.timers)
            self._cancelled = 0
        self._cancelled += 1

    def outside_began(self) -> None:
        self._outside += 1
        self._choose_clock()

    def outside_ended(self, _: object = None) -> None:
        self._outside -= 1
        self._choose_clock()

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._choose_clock()
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._choose_clock()
        return key

    def _choose_clock(self) -> None:
        if self._outside == 0 and len(self.get_map()) <= _OWN_FILES:
            self._real_lead = None
        elif self._real_lead is None:
            self._real_lead = self.now - time.monotonic()


def _deadlock_message(now: float) -> str:
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    shown = "; ".join(_whereabouts(task) for task in tasks[:_TASKS_SHOWN])
    more = f"; and {len(tasks) - _TASKS_SHOWN} more" if len(tasks) > _TASKS_SHOWN else ""
    return (
        f"everything waits and no timer is set, at {now} s of virtual time, {len(tasks)} tasks waiting: {shown}{more}: "
        "set what they wait for, put a timeout around it, or, if a thread of your own will wake the loop, "
        "wait inside `with loop.real_time():`"
    )


def _whereabouts(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return task.get_name()
    code = frames[-1].f_code
    return f"{task.get_name()} in {code.co_qualname} ({Path(code.co_filename).name}:{frames[-1].f_lineno})"
