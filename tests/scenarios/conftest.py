"""Makes looking for garbage cheap, as each scenario does it twice."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _only_new_garbage() -> Iterator[None]:
    """A full collection looks at what a scenario has made, not at all the modules: 0.5 ms in place of 50."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
