"""Every backend is called in one way, and says in one way when the first token is there."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import pytest

from llm_traffic_scheduler.simulation import (
    TWO_CORE_CPU,
    Backend,
    BatchingServer,
    HostedAPI,
    Hung,
    SimpleServer,
    Throttled,
    TokenSlots,
)
from tests.unit.simulation.serving import serve, serve_all

BACKENDS: list[Callable[[], Backend]] = [
    BatchingServer,
    lambda: BatchingServer(TWO_CORE_CPU),
    SimpleServer,
    HostedAPI,
    lambda: TokenSlots(8),
    lambda: Hung(SimpleServer(), start=0.1, until=0.2),
]
every_backend = pytest.mark.parametrize("make", BACKENDS)


@every_backend
async def test_the_first_token_comes_before_the_last(make: Callable[[], Backend]) -> None:
    for served in await serve_all(make(), [(0.05 * number, 200, 30) for number in range(8)]):
        assert served.first_token is not None
        assert 0 < served.first_token < served.seconds


@every_backend
async def test_the_first_token_of_one_is_the_last(make: Callable[[], Backend]) -> None:
    served = await serve(make(), 200, 1)

    assert served.first_token == served.seconds > 0


@every_backend
async def test_nobody_needs_to_ask_for_the_first_token(make: Callable[[], Backend]) -> None:
    loop, backend = asyncio.get_running_loop(), make()
    start = loop.time()

    await backend.serve(200, 30)

    assert loop.time() - start == pytest.approx((await serve(make(), 200, 30)).seconds, rel=0.5)


@every_backend
async def test_a_caller_that_has_left_hears_of_no_first_token(make: Callable[[], Backend]) -> None:
    backend, heard = make(), list[str]()
    leaver = asyncio.create_task(backend.serve(200, 30, first_token=lambda: heard.append("token")))
    await asyncio.sleep(0)

    leaver.cancel()
    await asyncio.wait([leaver])
    await asyncio.sleep(60)

    assert leaver.cancelled()
    assert heard == []


@every_backend
async def test_lengths_below_one_token_count_as_one(make: Callable[[], Backend]) -> None:
    assert (await serve(make(), 0, 0)).seconds == (await serve(make(), 1, 1)).seconds > 0


@every_backend
async def test_a_backend_shows_its_class_and_its_load(make: Callable[[], Backend]) -> None:
    backend = make()

    assert repr(backend).startswith(f"<{type(backend).__name__} ")


def test_a_refusal_says_when_to_come_back_also_after_pickling() -> None:
    refusal = pickle.loads(pickle.dumps(Throttled(2.0)))

    assert (refusal.retry_after, str(refusal), str(Throttled())) == (2.0, "429, Retry-After: 2", "429")
