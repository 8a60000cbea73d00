"""One stream as it is read: when it has a slot, whose task runs its source, and how it ends.

Floor: third.

The source runs in the reader's task, and only while that waits for an item. So it has the reader's cancellation and
traceback, and between two items there is no task that a cancel could be sent to: what ends the stream then, its idle
timer, `close()` of the scheduler or the garbage collector, closes the source in a task of its own. The slot goes back
when the source has been closed, not before; a source that hangs in its own clean-up shows as overdue.

A stream that is read in a slot of its scheduler uses that one, as every nested call does (`nested.py`), but only while
it is asked for an item: between two of them the code around it goes on, and may need the slot for calls of its own.
"""

from __future__ import annotations

import asyncio
import copy
import math
from asyncio import current_task, get_running_loop
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import Context
from typing import Generic, TypeVar

from . import stream_unread
from .call import Call, Verdict
from .core.admission import GONE, QUEUED, RUNNING
from .errors import SchedulerError, SchedulerMisuse, StreamClosed
from .refusals import refusal
from .slot import slot_of
from .stream_sources import Source, inside
from .surroundings import active

__all__ = ["Reading"]

T = TypeVar("T")


class Reading(Generic[T]):
    """The state of one stream. Its handle, `Stream`, holds it; nothing here holds the handle.

    Threads: the loop's only, but `forsake`.
    """

    __slots__ = (
        "_admit",
        "_begun",
        "_busy",
        "_call",
        "_closer",
        "_context",
        "_due",
        "_ending",
        "_guard",
        "_idle_timeout",
        "_left_at",
        "_loop",
        "_observed",
        "_over",
        "_reader",
        "_run_left",
        "_source",
        "_started",
        "_timer",
        "_turns",
        "_whole",
        "_why",
    )

    def __init__(
        self, admit: Callable[[], Call], source: Source[T], context: Context, idle_timeout: float = math.inf
    ) -> None:
        self._admit = admit
        self._source = source
        self._context = context  # the source's own
        self._idle_timeout = idle_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: Call | None = None  # that waits for a slot or has one; None between two items in another's slot
        self._observed = False
        self._run_left: float | None = None  # seconds; None: it has not run yet
        self._left_at: float | None = None  # since when nobody asks for an item
        self._started = self._begun = False  # it has had a slot; it has had an item
        self._busy = False  # somebody waits for an item, or closes
        self._ending = False  # and that one closes
        self._reader: asyncio.Task[object] | None = None
        self._turns: list[asyncio.Future[None]] = []  # who waits for that to end
        self._closer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._guard: AsyncGenerator[None, None] | None = None
        self._why: SchedulerError | None = None  # it is closed, or is being closed, and readers are told this
        self._over = self._whole = False

    # Reading

    async def start(self) -> None:
        """Take the slot, unless it has been taken before."""
        self._begin()
        try:
            if not self._started:
                self._pause(await self._take())
        finally:
            self._end_turn()

    async def pull(self) -> T:
        """The next item."""
        if self._whole:
            raise StopAsyncIteration
        self._begin()
        try:
            call = await self._take_for_item() if self._call is None else self._call
            self._go_on(call)
            try:
                item = await inside(self._context, self._source.next())
            except BaseException as error:
                await self._end(call, error)
                raise
            if not self._begun:
                self._begun = True
                slot_of(call).first_token()
            self._pause(call)
            return item
        finally:
            self._end_turn()

    def _begin(self) -> None:
        loop = get_running_loop()
        if self._over or self._why is not None:
            assert self._why is not None
            raise copy.copy(self._why) from self._why.__cause__
        if self._busy:
            raise SchedulerMisuse("a stream is read by one task at a time: let one read it, and tell the others")
        if self._loop is not None and self._loop is not loop:
            raise SchedulerMisuse("a stream is read on one event loop, that of its first item: start another here")
        self._busy, self._loop, self._reader = True, loop, current_task()

    def _end_turn(self) -> None:
        self._busy = self._ending = False
        self._reader = None
        turns, self._turns = self._turns, []
        if turns and self._loop is not None:
            with suppress(RuntimeError):  # from whatever thread the garbage collector runs in; or the loop is closed
                self._loop.call_soon_threadsafe(_wake, turns)

    async def _take(self) -> Call:
        """Wait for a slot: of its own, or for one item that of the call around.

        Raises:
            QueueFull, QueueTimeout, SchedulerClosed: refused; the source was not called.
            CallAborted, StreamClosed: the scheduler, or the stream, was closed meanwhile.
        """
        call = self._call = self._admit()
        home, extras, granted = call.home, call.more(), False
        extras.stream, call.task = self, None
        try:
            if call.waiter is not None:
                try:
                    verdict = await call.waiter
                except BaseException as error:
                    home.quit(call, error)
                    raise
                if verdict is not None:
                    raise refusal(home, call, verdict)
            if self._why is not None or extras.verdict is not None:
                home.reap(call)
                raise call.overruled() if self._why is None else copy.copy(self._why)
            granted = True
        finally:
            if not granted:
                self._call = extras.stream = None
        self._left_at, self._observed, self._started = None, call.observed, True
        if self._guard is None:
            self._guard = self._until_the_loop_ends()
            with suppress(StopIteration):
                self._guard.asend(None).send(None)
        return call

    async def _take_for_item(self) -> Call:
        """As `_take`; a stream that has begun has ended if it gets no slot for the next item."""
        try:
            return await self._take()
        except BaseException as error:
            if self._started:
                await self._end(None, error)
            raise

    def _go_on(self, call: Call) -> None:
        """The source's code runs in this task from here on."""
        now, extras = call.home.clock(), call.more()
        if self._run_left is None:
            self._run_left = extras.run_timeout
        extras.run_left = self._run_left
        if call.state == RUNNING:
            extras.run_left += now - call.started_at
            call.home.start_run_timer(call, extras)
        call.task = task = current_task(call.home.loop)
        call.base = 0 if task is None else task.cancelling()
        self._count_thought(call, now)
        self._context.run(active.set, call)

    def _count_thought(self, call: Call, now: float) -> None:
        """What the reader did meanwhile says nothing of the backend: it is in no latency and no pace."""
        if self._left_at is None:
            return
        gap, self._left_at = now - self._left_at, None
        call.observed = self._observed
        call.think(gap, now)
        if call.observed:
            call.home.governor.fresh = False

    def _pause(self, call: Call) -> None:
        """The reader has its item. Until the next one the stream runs in nobody's task, and no bound but `idle`."""
        home, extras = call.home, call.more()
        now = home.clock()
        call.settle_cancels()
        if self._run_left is not None:  # not after `start`
            self._run_left = extras.run_left - (now - call.started_at if call.state == RUNNING else 0.0)
        extras.run_left = math.inf
        extras.stop_timer()
        call.task = None
        if call.state == GONE or (call.nesting is not None and call.nesting.lender is not None):
            home.complete(call)
            self._call = None
        elif extras.verdict is Verdict.CLOSED:
            self._doom(call.overruled())
        else:
            extras.verdict = None
            if call.observed:
                call.observed, home.governor.fresh = False, False
                if home.admission.batch_queue.size:
                    home.settle(now)  # its age is no news any more, so the batch limit may have risen
        self._left_at = now
        if self._timer is None:
            self._arm(now + self._idle_timeout)

    # Ending

    async def close(self) -> None:
        """Close the source and give the slot back, whatever somebody else does with the stream meanwhile."""
        loop = get_running_loop()
        if self._loop is not None and self._loop is not loop and not self._over:
            if not self._loop.is_closed():
                raise SchedulerMisuse("a stream is closed on the event loop that it is read on")
            self._over = True
        while not self._over:
            if self._why is None:
                self._why = StreamClosed("the stream was closed before its end: start another")
                if self._busy:
                    loop.call_soon(self._interrupt)
            if self._busy:
                if self._reader is current_task():
                    raise SchedulerMisuse("a stream cannot be closed by its own source: let that return")
                self._turns.append(turn := loop.create_future())
                await turn
            elif not self._started:
                self._over = True
            else:
                self._busy = True
                await self._wind_up(self._why)

    def _interrupt(self) -> None:
        """Cancel the reader, in a callback of the loop."""
        call = self._call
        if call is None or not self._busy or self._ending:
            return
        if call.state == QUEUED and not call.gave_way_once:
            call.home.reap(call)
        elif (extras := call.more()).verdict is None:
            extras.run_left = min(extras.run_left, call.home.clock() - call.started_at)
            call.interrupt(Verdict.DROPPED)

    async def _wind_up(self, why: SchedulerError) -> None:
        """Close the stream between two items, in this task."""
        self._busy = self._ending = True
        self._reader, call = current_task(), self._call
        try:
            if call is not None:
                self._run_left = 0.0 if call.state == RUNNING else math.inf  # overdue, if it takes long
                self._go_on(call)
                call.more().stop_timer()
            await self._end(call, why)
        finally:
            self._end_turn()

    async def _end(self, call: Call | None, error: BaseException) -> None:
        """Close the source because of `error`, then give the slot back."""
        if isinstance(error, GeneratorExit):
            self._leave_behind(call)
            return
        self._ending = True
        wanted = error is self._why and isinstance(error, StreamClosed) and error.idle is None
        reason = None if wanted or isinstance(error, StopAsyncIteration) else error
        try:
            await inside(self._context, self._source.close(reason))
        except GeneratorExit:
            self._leave_behind(call)
            raise
        except BaseException as other:
            self._settle(call, other)
            raise
        self._settle(call, error)

    def _settle(self, call: Call | None, error: BaseException) -> None:
        """The source has ended, by `error`.

        Raises:
            RunTimeout, CallAborted, StreamClosed: that was our doing.
        """
        self._over, self._whole, self._call = True, isinstance(error, StopAsyncIteration), None
        ended = _ended_with(error)
        if self._why is None:
            self._why = ended
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        guard, self._guard = self._guard, None
        if guard is not None:
            with suppress(StopIteration):
                guard.aclose().send(None)
        if call is None:
            return
        if self._whole:
            call.home.complete(call)
        elif error is self._why:
            call.settle_cancels()
            timed_out = isinstance(error, StreamClosed) and error.idle is not None
            call.home.finish(call, "timed_out" if timed_out else "cancelled")
        elif call.home.fail(call, error):
            if ended is self._why:
                self._why = _ended_with(call.overruled())
            raise call.overruled() from error

    # Ending without a reader: in a room of its own.
    interrupted = stream_unread.interrupted
    forsake = stream_unread.forsake
    _arm = stream_unread.arm
    _doom = stream_unread.doom
    _leave_behind = stream_unread.leave_behind
    _until_the_loop_ends = stream_unread.until_the_loop_ends


def _ended_with(error: BaseException) -> StreamClosed:
    return StreamClosed(f"the stream has ended with {type(error).__name__}: start another")


def _wake(turns: list[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():
            turn.set_result(None)
