"""What every test stands on: virtual time by default, and how hard hypothesis looks.

`pytest` is quick and looks at the same examples each time, so a red run is about the change at hand. `pytest -m slow`
runs what takes minutes: every cancel at every moment, great numbers, the commands in `examples/`, and each test on the
other loops that it names. CI leaves out what is marked exhaustive, as every two cancels and loops in debug mode are.
`--hypothesis-profile=thorough` looks at more examples; `soak` looks for hours, at new ones.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.loops import loop_factories
from tests.scenarios.stage import LOOPS

# Type-checked and never run; benchmarks are programs.
collect_ignore_glob = ["benchmarks/*", "typing/*"]

# No deadlines: two noisy cores say nothing about the code.
settings.register_profile("fast", max_examples=20, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("thorough", max_examples=50, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", max_examples=10_000, stateful_step_count=200, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fast")


@pytest.fixture(scope="session", autouse=True)
def _only_new_garbage() -> Iterator[None]:
    """A full collection looks at what a test has made, not at all modules and tests: 0.5 ms in place of 50."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Virtual time, unless a test names its loops: `@pytest.mark.asyncio(loop_factories=["virtual", "uvloop"])`."""
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return loop_factories()
    return {"virtual": VirtualTimeLoop}


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that runs on several loops, every run has the first, and the slow run the others."""
    for item in items:
        if (call := getattr(item, "callspec", None)) is None:
            continue
        marker = item.get_closest_marker("asyncio")
        names = LOOPS if marker is None else marker.kwargs.get("loop_factories", ())
        # Of pytest-asyncio's own parameter only the test's id tells the name: its value is the factory.
        if other := {*names[1:]} & {call.params.get("loop_name"), *call.id.split("-")}:
            item.add_marker(pytest.mark.slow)
            if "debug" in other:
                item.add_marker(pytest.mark.exhaustive)
