"""What every test stands on: virtual time by default, and how hard hypothesis looks.

`pytest` is quick and looks at the same examples each time, so a red run is about the change at hand.
`pytest --hypothesis-profile=soak` looks for hours, at new ones.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, settings

from llm_traffic_scheduler.testing import VirtualTimeLoop

# Type-checked and never run; benchmarks are programs.
collect_ignore_glob = ["benchmarks/*", "typing/*"]

# No deadlines: two noisy cores say nothing about the code.
settings.register_profile("fast", max_examples=50, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", max_examples=10_000, stateful_step_count=200, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fast")


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop()
    loop.set_debug(True)
    return loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    """Tasks start at once; on 3.11, which has no such factory, like "virtual"."""
    loop = VirtualTimeLoop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


def _loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "virtual": VirtualTimeLoop,
        "debug": _debug_loop,
        "eager": _eager_loop,
        "real": asyncio.new_event_loop,
    }
    if sys.platform != "win32":
        import uvloop

        loops["uvloop"] = uvloop.new_event_loop
    return loops


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Virtual time, unless a test names its loops: `@pytest.mark.asyncio(loop_factories=["virtual", "uvloop"])`."""
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return _loops()
    return {"virtual": VirtualTimeLoop}
