"""How a stream ends that nobody reads any more: idle, dropped, or closed with its scheduler.

Floor: third. These are methods of `Reading`. The source is closed in a task of its own, in nobody's context.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import get_running_loop
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from .call import Call, running_task
from .errors import SchedulerError, StreamClosed

if TYPE_CHECKING:
    from .stream_reading import Reading

__all__ = ["arm", "doom", "forsake", "interrupted", "leave_behind", "until_the_loop_ends"]


def interrupted(reading: Reading[Any]) -> None:
    """`close()` of the scheduler has lost patience while nobody waits for an item."""
    if reading._call is not None and not reading._busy:
        doom(reading, reading._call.overruled())


def doom(reading: Reading[Any], why: SchedulerError) -> None:
    """Refuse to be read from here on, and close the source in the loop's next pass."""
    if reading._why is None and reading._loop is not None:
        reading._why = why
        reading._loop.call_soon(_end_alone, reading, why, context=Context())


def _end_alone(reading: Reading[Any], why: SchedulerError) -> None:
    if reading._over or reading._busy or reading._loop is None:
        return
    reading._why = reading._why or why
    reading._busy = reading._ending = True
    # Not `create_task(context=...)`, which a task factory need not know.
    reading._closer = Context().run(reading._loop.create_task, _wind_up_alone(reading, reading._why))
    reading._closer.add_done_callback(partial(_closed_alone, reading), context=Context())


def _closed_alone(reading: Reading[Any], closer: asyncio.Task[None]) -> None:
    if reading._busy and reading._reader is None and reading._why is not None:
        # Whoever cancels all tasks, as `asyncio.run` does in the end, has cancelled it before its first step.
        reading._busy = reading._ending = False
        _end_alone(reading, reading._why)


async def _wind_up_alone(reading: Reading[Any], why: SchedulerError) -> None:
    try:
        await reading._wind_up(why)
    except (asyncio.CancelledError, SchedulerError):
        pass  # by close() of the scheduler, or by the loop's end
    except Exception as error:
        why.__cause__ = error
        get_running_loop().call_exception_handler(
            {"message": f"the source of a stream raised as it was closed: {why}", "exception": error}
        )


def arm(reading: Reading[Any], due: float) -> None:
    """Look at `due` whether nobody has asked for an item in the meantime."""
    if due < math.inf and reading._loop is not None:
        reading._due = due
        reading._timer = reading._loop.call_at(due, _look_idle, reading, context=Context())


def _look_idle(reading: Reading[Any]) -> None:
    """One timer for many items: it looks whether somebody has asked for one since it was armed."""
    reading._timer = None
    if reading._over or reading._left_at is None:
        return
    if (due := reading._left_at + reading._idle_timeout) > reading._due:
        arm(reading, due)
        return
    idle = reading._idle_timeout
    doom(
        reading,
        StreamClosed(
            f"nobody asked the stream for an item for {idle:.3g} s, so it was closed: read it faster, raise "
            "idle_timeout, or close it when you have had enough",
            idle=idle,
        ),
    )


def forsake(reading: Reading[Any]) -> bool:
    """Its handle is garbage. True if the stream was still open. Threads: any."""
    if reading._over or not reading._started or reading._ending or (reading._why is not None and not reading._busy):
        return False
    _post_end(reading)
    return True


def leave_behind(reading: Reading[Any], call: Call | None) -> None:
    """The reader's coroutine was closed while it waited, by the garbage collector maybe, in any thread."""
    if call is not None and call.task is not None and call.task is not running_task():
        call.task = None
    _post_end(reading)


def _post_end(reading: Reading[Any]) -> None:
    why = StreamClosed("the stream was dropped before its end: start another")
    if reading._loop is not None:
        with suppress(RuntimeError):  # the loop is closed, and the call has ended with it
            reading._loop.call_soon_threadsafe(_end_alone, reading, why, context=Context())


async def until_the_loop_ends(reading: Reading[Any]) -> AsyncGenerator[None, None]:
    """Event loops close the generators that they know of when they end. This one closes the stream."""
    try:
        yield
    finally:
        reading._guard = None
        if not reading._over:
            await reading.close()
