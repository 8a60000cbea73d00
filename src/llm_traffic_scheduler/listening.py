"""Who is told of events: `add_listener` and `remove_listener`.

Floor: third, without asyncio. These are methods of `TrafficScheduler`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from .errors import SchedulerMisuse
from .listeners import Listener

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["add_listener", "remove_listener"]


def add_listener(scheduler: TrafficScheduler, callback: Listener) -> None:
    """Call `callback(event)` for every event from now on, after the state is whole.

    What it raises is logged once per kind of error and counted. It should be quick: the loop waits for it.

    Raises:
        SchedulerMisuse: it is no plain function, or another thread than the loop's calls this.
    """
    if not callable(callback):
        raise SchedulerMisuse(f"add_listener() takes a function of one event, got {type(callback).__name__}")
    if inspect.iscoroutinefunction(callback):
        raise SchedulerMisuse("add_listener() takes a plain function, got a coroutine function: start a task in it")
    scheduler._own_thread("add_listener")
    scheduler._listeners.add(callback)
    scheduler._home.look_after()


def remove_listener(scheduler: TrafficScheduler, callback: Listener) -> None:
    """Take out what `add_listener` added.

    Raises:
        ValueError: it is not there.
    """
    scheduler._own_thread("remove_listener")
    scheduler._listeners.remove(callback)
    scheduler._home.look_after()
