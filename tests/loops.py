"""The event loops that tests run on, by name.

Virtual time is quick and exact; "real" and "uvloop" keep it honest.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable

from llm_traffic_scheduler.testing import VirtualTimeLoop

__all__ = ["loop_factories"]


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60.0
    return loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    """Tasks start at once; on 3.11, which has no such factory, like "virtual"."""
    loop = VirtualTimeLoop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


def loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them; uvloop only where it is installed."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "virtual": VirtualTimeLoop,
        "debug": _debug_loop,
        "eager": _eager_loop,
        "real": asyncio.new_event_loop,
    }
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loops["uvloop"] = uvloop.new_event_loop
    return loops
