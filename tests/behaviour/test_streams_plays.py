"""The plays of `plays.py`, with a stream for each call: whoever is cancelled in whatever pass, no slot is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import TrafficScheduler
from tests.behaviour.acts import Play
from tests.behaviour.doors import Job
from tests.behaviour.plays import each_play
from tests.behaviour.test_cancel_everywhere import _every_cancel, _perform


async def through_stream(scheduler: TrafficScheduler, kind: Any, job: Job, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` as the source of a stream of one item."""

    async def source() -> AsyncIterator[Any]:
        yield await job(*args)

    return [item async for item in scheduler.stream(kind, source, **options)][0]


@pytest.mark.asyncio(loop_factories=["virtual"])
@each_play
async def test_any_stream_cancelled_in_any_pass_leaves_the_slots_whole(play: Play) -> None:
    passes = await _perform(play, through_stream)

    for cancel in _every_cancel(play, passes):
        await _perform(play, through_stream, cancel)
