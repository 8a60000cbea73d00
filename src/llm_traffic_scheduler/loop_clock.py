"""Which clock to read on which event loop, and how to make its futures.

Floor: third.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["clock_of", "future_maker"]


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock that `loop`'s timers follow.

    `time.monotonic` has the same origin as the loops that ship with asyncio and uvloop, and is finer than
    uvloop's, which stands still within a pass. A loop that keeps its own time is asked.
    """
    own = type(loop)
    if own.__module__.partition(".")[0] == "uvloop" or getattr(own, "time", None) is asyncio.BaseEventLoop.time:
        return time.monotonic
    return loop.time


def future_maker(loop: asyncio.AbstractEventLoop | None) -> Callable[[], asyncio.Future[Any]]:
    """`loop.create_future`, without the frame around it where that only names asyncio's own class."""
    if loop is not None and getattr(type(loop), "create_future", None) is not asyncio.BaseEventLoop.create_future:
        return loop.create_future
    return partial(asyncio.Future, loop=loop)
