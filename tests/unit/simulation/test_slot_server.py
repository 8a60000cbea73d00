"""Eight at once, first come first served: the server behind the scenarios."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import SlotServer


async def _served(server: SlotServer, seconds: float, ends: list[float]) -> None:
    await server.serve(seconds)
    ends.append(asyncio.get_running_loop().time())


async def test_calls_beyond_the_slots_wait_in_order_of_arrival() -> None:
    server, ends = SlotServer(2), list[float]()

    await asyncio.gather(*(_served(server, seconds, ends) for seconds in (1.0, 3.0, 4.0, 0.5)))

    assert ends == [1.0, 3.0, 3.5, 5.0]


async def test_a_waiting_call_that_is_cancelled_is_skipped() -> None:
    server, ends = SlotServer(1), list[float]()
    calls = [asyncio.create_task(_served(server, 1.0, ends)) for _ in range(3)]
    await asyncio.sleep(0.5)

    calls[1].cancel()
    await asyncio.wait(calls)

    assert ends == [1.0, 2.0]


async def test_a_call_that_is_cancelled_in_its_slot_keeps_the_slot_to_its_end() -> None:
    server, ends = SlotServer(1), list[float]()
    calls = [asyncio.create_task(_served(server, 1.0, ends)) for _ in range(2)]
    await asyncio.sleep(0.5)

    calls[0].cancel()
    await asyncio.wait(calls)

    assert ends == [2.0]


def test_a_server_without_slots_is_refused() -> None:
    with pytest.raises(ConfigError, match="slots must be a whole number, at least 1, got 0"):
        SlotServer(0)
