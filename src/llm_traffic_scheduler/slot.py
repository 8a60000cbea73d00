"""The handle that a call's own code sees.

Floor: third. Made only for code that asks for it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from threading import get_ident
from typing import TYPE_CHECKING, TypeVarTuple

from . import giving_way
from .call import Call, Verdict, running_task
from .core.admission import GONE, LENT_ON, RUNNING
from .core.checks import count, timeout
from .errors import ConfigError
from .observation import tell_first_token
from .surroundings import active_call

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["Slot", "checkpoint", "current_slot", "released", "slot_of"]

Ts = TypeVarTuple("Ts")


class Slot:
    """The right to run one call now. Made by the scheduler, handed out by `slot()` and `current_slot()`.

    Threads: the loop's only, and inside a `slot_from_thread` block that thread. After the call's end every method is a
    no-op. Cancellation: only `checkpoint` and `released` wait.
    """

    __slots__ = ("_call", "first_token_at", "token_count")

    def __init__(self, call: Call) -> None:
        self._call = call
        self.first_token_at: float | None = None
        self.token_count = 0

    @property
    def kind(self) -> str:
        """ "interactive" or "batch": what the call runs as."""
        return self._call.kind

    @property
    def label(self) -> str | None:
        """The name given to the call, for the operator."""
        return self._call.label

    @property
    def tenant(self) -> str | None:
        """Whose call it is: as given, else that of the call or `traffic` block it was made in."""
        return self._call.tenant

    @property
    def waited(self) -> float:
        """Seconds the call has spent in the queue: before its first slot, and to get it back after it gave it up."""
        return self._call.waited(self._call.started_at)

    def first_token(self) -> None:
        """Say that the backend's first token is here. Only the first call counts."""
        if self._call.state == RUNNING and self.first_token_at is None:
            self.first_token_at = at = self._call.home.clock()
            _on_loop(self._call.home, tell_first_token, self._call, at)

    def tokens(self, n: int) -> None:
        """Say that `n` more output tokens have arrived.

        Raises:
            ConfigError: `n` is no whole number or below 0.
        """
        if count("n", n) and self._call.state == RUNNING:
            self.token_count += n

    def reader_away(self, seconds: float) -> None:
        """Say that the last `seconds` were the reader's own: they are in no latency, no pace and no wait.

        For streams whose reader takes time; `TrafficScheduler.stream` and the SDK transport say it themselves.

        Raises:
            ConfigError: `seconds` is no finite number of at least 0.
        """
        if not 0 <= timeout("seconds", seconds) < math.inf:
            raise ConfigError(f"seconds must be a finite number of at least 0, got {seconds!r}")
        if self._call.state == RUNNING:
            _on_loop(self._call.home, _think, self._call, seconds, self._call.home.clock())

    def throttled(self, retry_after: float | None = None) -> None:
        """Say that the backend has asked us to wait: a 429, a Retry-After.

        Until `retry_after` seconds (None: 1) from now no more than `batch_min_concurrency` batch calls start by
        the policies that heed it, `AdaptivePolicy` and `PressurePolicy` among them. Of two such wishes the later
        end holds. This call goes on; to wait without its slot, use `released`, in which this may be said too.

        Raises:
            ConfigError: `retry_after` is no finite number of at least 0 seconds.
        """
        seconds = 1.0 if retry_after is None else timeout("retry_after", retry_after)
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"retry_after must be a finite number of at least 0 seconds or None, got {retry_after!r}")
        if self._call.state not in (GONE, LENT_ON):
            home = self._call.home
            _on_loop(home, _throttle, home, home.clock() + seconds)

    def unattended(self, on_close: Callable[[], None]) -> None:
        """Say that until `attended` no task runs the call's code: what it holds is handed around, and nobody reads it.

        A close() of the scheduler that runs out of patience then cancels no task. It calls `on_close`, in a callback of
        the loop, which is to end the call soon, not at once. To be said in the task that ran the code until now.
        """
        call = self._call
        if call.state == RUNNING:
            if call.task is not None:
                call.task.remove_done_callback(call.forget_task)
            call.settle_cancels()
            call.task, extras = None, call.more()
            extras.on_close = on_close
            if extras.verdict is Verdict.CLOSED:  # its code has outlived our cancel
                on_close()

    def attended(self) -> None:
        """Say that the current task runs the call's code again, so that it is the one that close() cancels."""
        call = self._call
        if call.state == RUNNING:
            call.task = task = running_task()
            call.base = 0 if task is None else task.cancelling()

    def overran(self) -> None:
        """Say that the call has run for too long, by a bound that its code keeps itself.

        If it then ends with RunTimeout, it counts as timed out, not as failed.
        """
        call = self._call
        if call.state == RUNNING and call.more().verdict is None:
            call.more().verdict = Verdict.TIMEOUT

    @property
    def should_yield(self) -> bool:
        """Whether `checkpoint()` would give the slot up now."""
        return giving_way.should_yield(self._call)

    async def checkpoint(self) -> None:
        """Give the slot up if interactive work needs it, and come back to the old place in the queue.

        Returns at once unless interactive calls wait for room or more batch calls run than the batch limit allows,
        and whenever fewer than `batch_min_concurrency` would be left. The wait counts as queued, and in no timeout.

        Raises:
            SchedulerMisuse: called from another task than the call's own.
        Cancellation: while it waits, the call loses its place and has no slot from then on.
        """
        await giving_way.checkpoint(self._call)

    def released(self) -> AbstractAsyncContextManager[None]:
        """Without the slot for a while: `async with slot.released(): ...`, for tool calls and back-off sleeps.

        At the end of the block the call waits for a slot in its old place. That, and the block itself, counts as
        queued, and in no timeout.

        While a nested call from a child task uses the slot, it is left to that one.

        Raises:
            SchedulerMisuse: entered in another task than the call's own.
        Cancellation: in the block and on the way out, the call ends without a slot.
        """
        return giving_way.Released(self._call)

    def __repr__(self) -> str:
        return f"<Slot of {self._call!r}>"


def current_slot() -> Slot | None:
    """The slot this code runs in, None outside of any, once it has been given back, and inside `released()`.

    Child tasks see the slot of the call that started them as long as it runs.
    """
    call = active_call()
    return None if call is None else slot_of(call)


async def checkpoint() -> None:
    """`checkpoint()` of the current slot, see `Slot.checkpoint`; nothing outside of one."""
    if (call := active_call()) is not None:
        await slot_of(call).checkpoint()


@asynccontextmanager
async def released() -> AsyncIterator[None]:
    """`released()` of the current slot: `async with released(): ...`; nothing outside of one."""
    call = active_call()
    async with nullcontext() if call is None else slot_of(call).released():
        yield


def _on_loop(home: Dispatcher, action: Callable[[*Ts], None], *arguments: *Ts) -> None:
    """Do it now; or in the loop's next pass, for a `slot_from_thread` block, whose thread may not touch the core."""
    if get_ident() == home.thread:
        action(*arguments)
    elif home.loop is not None:
        with suppress(RuntimeError):  # the loop is closed, and the call has ended with it
            home.loop.call_soon_threadsafe(action, *arguments)


def _think(call: Call, seconds: float, now: float) -> None:
    call.think(seconds, now)
    if call.observed:
        home = call.home
        home.governor.fresh = False
        if home.admission.batch_queue.size:
            home.settle(home.clock())  # it is younger than it was, so the batch limit may have risen


def _throttle(home: Dispatcher, until: float) -> None:
    home.governor.throttled(until)
    home.settle(home.clock())


def slot_of(call: Call) -> Slot:
    """The call's handle; always the same object."""
    extras = call.more()
    if extras.slot is None:
        extras.slot = Slot(call)
    return extras.slot
