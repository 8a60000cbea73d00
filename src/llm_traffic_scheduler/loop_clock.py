"""Which clock to read on which event loop.

Floor: third.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["clock_of"]


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock that `loop`'s timers follow.

    `time.monotonic` has the same origin as the loops that ship with asyncio and uvloop, and is finer than
    uvloop's, which stands still within a pass. A loop that keeps its own time is asked.
    """
    own = type(loop)
    if own.__module__.partition(".")[0] == "uvloop" or getattr(own, "time", None) is asyncio.BaseEventLoop.time:
        return time.monotonic
    return loop.time
