"""Calls from other threads than the event loop's own, for synchronous clients and synchronous code.

Floor: third. Nothing here touches the scheduler's state in the calling thread: it posts to the loop and waits for
what comes back, so the core needs no lock.

A loop that is stopped or closed tells nobody, and asyncio has no hook for it. `asyncio.run` cancels its tasks first,
and that reaches a waiting thread at once; for every other end the thread looks four times a second whether the loop
still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from contextvars import Token, copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple, Unpack

from .call import Call, Verdict
from .call_options import CallOptions, check_options, refuse_preemptible
from .errors import SchedulerMisuse
from .loop_future import LoopFuture, Visit
from .surroundings import Scope, active, around, leave_block
from .traffic import is_interactive
from .work import Kind, not_a_function

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["slot_from_thread", "submit_from_thread"]


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def submit_from_thread(
    scheduler: TrafficScheduler,
    kind: Kind | None,
    coro_fn: Callable[[*Ts], Awaitable[T]],
    /,
    *args: *Ts,
    **options: Unpack[CallOptions],
) -> Future[T]:
    """`submit` from any thread: the call runs on the scheduler's loop, the future has its outcome.

    The function sees the calling thread's context variables. Whatever `submit` raises about the call comes out of
    `result()`. The loop must be running, and the scheduler must have been used on it.

    Raises:
        ConfigError, TypeError: the arguments are wrong; nothing was queued.
        SchedulerMisuse: so they are, or no loop is there to run the call; nothing was queued.
        SchedulerMisuse, from `result()` and `exception()`: they would wait on the loop's own thread, or the loop
            ended before the call did. It counts as ended when it is closed, or has not run for a second; should it go
            on after all, the call is cancelled. `concurrent.futures.wait` and callbacks only hear of an end that
            cancels the loop's tasks, as that of `asyncio.run` does.
    Cancellation: cancelling the future cancels the call, whether it waits or runs. A call that is cancelled on the
        loop cancels its future.
    """
    if not callable(coro_fn):
        raise not_a_function(coro_fn, kind, "submit_from_thread")
    is_interactive(kind, around())
    check_options(kind, options, scheduler._settings)
    visit = _visit(scheduler, "submit_from_thread", kind, options)
    future: LoopFuture[T] = LoopFuture(visit)
    submit: Any = scheduler.submit  # mypy loses `*args` in a lambda
    _Errand(future).send(lambda: submit(kind, coro_fn, *args, **options))
    return future


def slot_from_thread(
    scheduler: TrafficScheduler, kind: Kind | None = None, /, **options: Unpack[CallOptions]
) -> AbstractContextManager[None]:
    """`slot` for synchronous code: `with scheduler.slot_from_thread("batch"): client.complete(...)`, in any thread.

    Entering waits for a slot, leaving for the loop to take it back, whatever way the block ends; an exception counts
    the call as failed. `current_slot()` gives the slot's handle inside. A thread cannot be cancelled: past its
    `run_timeout`, or when close() has lost patience, the block goes on, keeps its slot and shows as overdue; if it
    then raises nothing itself, leaving it raises RunTimeout or CallAborted.

    Raises:
        QueueFull, QueueTimeout, SchedulerClosed, on entering: refused; the block did not run.
        ConfigError, TypeError, SchedulerMisuse: as `submit_from_thread`; an end of the loop shows on entering or on
            leaving, but never in place of an exception of the block's own.
    Cancellation: a KeyboardInterrupt while it waits takes the call out of the queue.
    """
    is_interactive(kind, around())
    check_options(kind, options, scheduler._settings)
    refuse_preemptible(options, "slot_from_thread")
    return ThreadSlot(scheduler, kind, options)


class _Errand(Generic[T]):
    """A task on the loop, and the future that its outcome goes to.

    `undo` gets a result that nobody is there to take.
    """

    def __init__(self, future: LoopFuture[T], undo: Callable[[T], None] = lambda _: None) -> None:
        self._future: LoopFuture[T] | None = future
        self._loop = future.visit.loop
        self._undo = undo
        self._task: asyncio.Task[T] | None = None

    def send(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Start it in the loop's next pass, in a copy of this context."""
        future = self._future
        assert future is not None
        try:
            self._loop.call_soon_threadsafe(self._start, begin, context=copy_context())
        except RuntimeError:
            raise future.visit.gone() from None
        future.add_done_callback(self._future_done)

    def _start(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        if self._future is not None:
            self._task = self._loop.create_task(begin())
            self._task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        future = self._future
        try:
            if task.cancelled():
                if future is not None:
                    future.cancel()
            elif (error := task.exception()) is not None:
                if future is not None:
                    future.set_exception(error)
            elif future is None:
                self._undo(task.result())
            else:
                future.set_result(task.result())
        except InvalidStateError:  # its owner left in this very moment
            self._future = None
            self._task_done(task)

    def _future_done(self, future: Future[T]) -> None:
        # In whichever thread has cancelled the future, or seen the loop's end; else on the loop, with the task done.
        self._future = None  # the future holds this errand
        if future.cancelled():
            future.set_running_or_notify_cancel()  # for `concurrent.futures.wait`
        if self._task is None or not self._task.done():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._withdraw)

    def _withdraw(self) -> None:
        if self._task is not None:
            self._task.cancel()


class ThreadSlot(AbstractContextManager[None]):
    """Takes a slot for a block of synchronous code and gives it back on every way out. Entered once."""

    __slots__ = ("_call", "_kind", "_options", "_scheduler", "_token", "_visit")

    def __init__(self, scheduler: TrafficScheduler, kind: Kind | None, options: CallOptions) -> None:
        self._scheduler = scheduler
        self._kind = kind
        self._options = options
        self._visit: Visit | None = None
        self._call: Call | None = None
        self._token: Token[Call | Scope | None] | None = None

    def __enter__(self) -> None:
        if self._visit is not None:
            raise SchedulerMisuse("a slot_from_thread() block is entered once: call slot_from_thread() each time")
        visit = _visit(self._scheduler, "slot_from_thread", self._kind, self._options)
        if visit.here:
            raise SchedulerMisuse(
                f"slot_from_thread() on the thread of scheduler {visit.scheduler!r}'s own event loop would wait for "
                "itself: write `async with scheduler.slot(...)`, or run this code by `asyncio.to_thread`"
            )
        self._visit = visit
        entered: LoopFuture[Call] = LoopFuture(visit)
        _Errand(entered, _drop).send(self._take)
        try:
            call = entered.result()
        except CancelledError:
            raise visit.gone("cancelled its tasks") from None
        except BaseException:
            # A KeyboardInterrupt may come when the slot has just been handed over.
            if not entered.cancel() and entered.exception() is None:
                visit.loop.call_soon_threadsafe(_drop, entered.result())
            raise
        self._call, self._token = call, active.set(call)

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._call is None:
            raise SchedulerMisuse("a slot_from_thread() block is left once, after it was entered: write `with`")
        try:
            self.leave(error).result()
        except Exception:
            if error is None:
                raise

    def leave(self, error: BaseException | None) -> LoopFuture[None]:
        """Tell the loop that the block is over, and wait for nothing; the future is done when the slot is back."""
        (call, self._call), (token, self._token) = (self._call, None), (self._token, None)
        assert call is not None
        assert token is not None
        assert self._visit is not None
        leave_block(call, token)
        left: LoopFuture[None] = LoopFuture(self._visit)
        _post(left, partial(_give_back, call, error))
        return left

    async def _take(self) -> Call:
        # This task ends here, so run_timeout and close() find nothing to cancel: `_give_back` finds their verdict.
        await self._scheduler.slot(self._kind, **self._options).__aenter__()
        call = active.get()
        assert isinstance(call, Call)
        return call


def _drop(call: Call) -> None:
    call.home.finish(call, "cancelled")


def _give_back(call: Call, error: BaseException | None) -> None:
    """On the loop: the block is over.

    Raises:
        RunTimeout, CallAborted: it should have been long ago.
    """
    if error is not None:
        cancelled = isinstance(error, asyncio.CancelledError | CancelledError)
        call.home.finish(call, "cancelled" if cancelled else "failed")
        return
    if call.overdue(call.home.clock()):  # a busy loop may come to the timer later than to this
        call.interrupt(Verdict.TIMEOUT)
    verdict = None if call.extras is None else call.extras.verdict
    if verdict is None:
        call.home.complete(call)
    else:
        call.home.finish(call, "timed_out" if verdict is Verdict.TIMEOUT else "cancelled")
        raise call.overruled()


def _post(future: LoopFuture[T], function: Callable[[], T]) -> None:
    """Call `function` on the loop; the future gets what it returns or raises."""

    def run() -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    try:
        future.visit.loop.call_soon_threadsafe(run)
    except RuntimeError:
        raise future.visit.gone() from None


def _visit(scheduler: TrafficScheduler, what: str, kind: Kind | None, options: CallOptions) -> Visit:
    """The scheduler's loop, for a thread that has a call for it.

    Raises:
        SchedulerMisuse: it has none, or one that does not run.
    """
    loop = scheduler._home.loop
    if loop is None:
        raise SchedulerMisuse(
            f"{what}() needs a running event loop, and scheduler {scheduler.name!r} has not been used on one yet: "
            "use it there first, `await scheduler.drain()` will do"
        )
    if not loop.is_running():
        raise SchedulerMisuse(
            f"{what}() needs a running event loop, and that of scheduler {scheduler.name!r} "
            f"{'is closed' if loop.is_closed() else 'has stopped'}: keep it running as long as threads have calls, "
            "or use the scheduler on a new one"
        )
    label = options.get("label")
    name = f"{'' if kind is None else kind + ' '}call{'' if label is None else f' {label!r}'}"
    return Visit(loop, scheduler.name, f"the {name} of thread {threading.current_thread().name!r}")
