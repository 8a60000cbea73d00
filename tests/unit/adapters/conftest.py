"""Each test that asks for a `library` runs with both."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")
