"""A reporting backend tells the slot what a good client would."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler import TrafficScheduler, current_slot
from llm_traffic_scheduler.simulation import Reporting, SimpleServer, Throttled, Throttling
from tests.unit.simulation.serving import serve


async def test_outside_of_a_slot_it_is_the_backend_inside() -> None:
    inside, around = await serve(SimpleServer()), await serve(Reporting(SimpleServer()))

    assert around.error is None
    assert (around.first_token, around.seconds) == pytest.approx((inside.first_token, inside.seconds))


async def test_inside_of_a_slot_it_reports_first_token_and_tokens() -> None:
    scheduler, backend = TrafficScheduler(max_concurrency=2), Reporting(SimpleServer())
    heard = list[str]()

    async with scheduler.slot("interactive"):
        await backend.serve(100, 30, first_token=lambda: heard.append("token"))
        slot = current_slot()
        assert slot is not None
        assert slot.token_count == 30
        assert slot.first_token_at is not None
    assert heard == ["token"]


async def test_throttling_reaches_the_scheduler_and_the_caller() -> None:
    scheduler = TrafficScheduler(max_concurrency=8, batch_max_concurrency=6, interactive_p95_threshold=5.0)

    with pytest.raises(Throttled):
        await scheduler.submit("batch", Reporting(Throttling(SimpleServer(), retry_after=30.0)).serve, 10, 10)

    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (1, "throttled")


def test_it_shows_what_is_inside() -> None:
    assert repr(Reporting(SimpleServer())) == "<Reporting <SimpleServer 0 running, 0 waiting>>"
