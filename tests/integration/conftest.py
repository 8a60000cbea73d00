"""What the stories with a real SDK share: one server for each file, and a client of each SDK in turn.

The SDKs are imported where they are used: the other stories here run without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A server that speaks as those of OpenAI and Anthropic do; see `tests.llm_server`."""
    from tests.sdks import llm_server

    with llm_server() as running:
        yield running


@pytest.fixture(params=["OpenAI", "Anthropic"])
def story(request: pytest.FixtureRequest, server: Any) -> Any:
    """`async with story(**settings of the client) as told: ...`, in interactive traffic."""
    from tests import sdks

    return partial(sdks.tell, getattr(sdks, request.param), server)
