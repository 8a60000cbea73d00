"""What every test stands on: virtual time by default, and how hard hypothesis looks.

`pytest` is quick and looks at the same examples each time, so a red run is about the change at hand.
`pytest --hypothesis-profile=soak` looks for hours, at new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import HealthCheck, settings

from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.loops import loop_factories

# Type-checked and never run; benchmarks are programs.
collect_ignore_glob = ["benchmarks/*", "typing/*"]

# No deadlines: two noisy cores say nothing about the code.
settings.register_profile("fast", max_examples=50, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", max_examples=10_000, stateful_step_count=200, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fast")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Virtual time, unless a test names its loops: `@pytest.mark.asyncio(loop_factories=["virtual", "uvloop"])`."""
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return loop_factories()
    return {"virtual": VirtualTimeLoop}
