"""The plays of `plays.py`, with a stream for each call: whoever is cancelled in whatever pass, no slot is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from llm_traffic_scheduler import TrafficScheduler
from tests.behaviour.acts import Play
from tests.behaviour.doors import Job
from tests.behaviour.plays import PLAYS
from tests.behaviour.stage import Stage
from tests.behaviour.test_cancel_everywhere import _every_cancel, _perform
from tests.support import account

# In these, streams in child tasks share a slot. Each item of such a stream is a nested call of its own, which may wait
# and, once it has given a slot up, is counted; the stage's books know of one call for each name.
SHARED: Final = (
    "two child tasks take turns in the slot that is lent",
    "children hand the slots of two parents on",
    "a child outlives its parent in its slot",
    "a grandchild in another task outlives everybody in the slot",
    "the limit falls and children give way",
    "children release the slot that is lent",
    "children of a tenant release the slot that is lent",
    "two tenants run one call each and give it up",
    "the scheduler closes and a child outlives its parent",
)


async def through_stream(scheduler: TrafficScheduler, kind: Any, job: Job, *args: Any, **options: Any) -> Any:
    """Run `job(*args)` as the source of a stream of one item."""

    async def source() -> AsyncIterator[Any]:
        yield await job(*args)

    [item] = [item async for item in scheduler.stream(kind, source, **options)]
    return item


async def _cancel_each(play: Play) -> None:
    passes = await _perform(play, through_stream)

    for cancel in _every_cancel(play, passes):
        if cancel.order == "from a callback of its own":
            await _perform(play, through_stream, cancel)


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("name", [name for name in PLAYS if name not in SHARED])
@pytest.mark.slow
async def test_any_stream_cancelled_in_any_pass_leaves_the_slots_and_the_totals_whole(name: str) -> None:
    await _cancel_each(PLAYS[name])


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.slow
async def test_streams_that_share_a_slot_leave_it_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "_check_totals", lambda stage, kind: account(stage.scheduler, kind))

    await _cancel_each(PLAYS[name])
