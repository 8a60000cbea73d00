"""`async with scheduler.slot(kind)`: a slot for a block of code.

Floor: third.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from types import TracebackType

from .call import Call
from .errors import SchedulerMisuse
from .refusals import refusal
from .slot import Slot, slot_of
from .surroundings import Scope, active, leave_block

__all__ = ["SlotContext"]


class SlotContext:
    """Takes a slot on entry and gives it back on every way out. Entered once.

    Cancellation: while it waits the call leaves the queue; inside, the slot is given back when the block has ended.
    """

    __slots__ = ("_admit", "_call", "_token")

    def __init__(self, admit: Callable[[], Call]) -> None:
        self._admit: Callable[[], Call] | None = admit
        self._call: Call | None = None
        self._token: Token[Call | Scope | None] | None = None

    async def __aenter__(self) -> Slot:
        if self._admit is None:
            raise SchedulerMisuse("a slot() block is entered once: write `async with scheduler.slot(...)` each time")
        admit, self._admit = self._admit, None
        call = admit()
        if call.waiter is not None:
            try:
                verdict = await call.waiter
            except BaseException as error:
                call.home.quit(call, error)
                raise
            if verdict is not None:
                raise refusal(call.home, call, verdict)
        call.home.begin(call)
        if call.task is not None:
            # It would keep its exception, that its frames, and those an async generator with this very block in it.
            call.task.add_done_callback(call.forget_task)
        self._token = active.set(call)
        self._call = call
        return slot_of(call)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        (call, self._call), (token, self._token) = (self._call, None), (self._token, None)
        if call is None or token is None:
            raise SchedulerMisuse("a slot() block is left once, after it was entered: write `async with`")
        leave_block(call, token)
        if call.task is not None:
            call.task.remove_done_callback(call.forget_task)
        if error is None:
            call.home.complete(call)
        elif call.home.fail(call, error):
            raise call.overruled() from error
