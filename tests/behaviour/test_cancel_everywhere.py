"""Whoever is cancelled, in whatever pass of the loop: no slot is lost and none gained.

Promises 12, 14, 15, 16 and 23. Each play is first performed without a cancel, counting the loop's passes; then
again for every call, every pass and every order of the cancel and what else happens in that pass, on a loop with
eager tasks; and for every two calls. One cancel on a plain loop, between any two callbacks, is
`tests/property/test_cancel_each_step.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pytest

from tests.behaviour.acts import NAMES, Play
from tests.behaviour.doors import Door, each_door, through_slot, through_submit
from tests.behaviour.plays import PLAYS, each_play
from tests.behaviour.stage import Stage
from tests.support import settle

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["virtual", "eager"])]

Order: TypeAlias = Literal["before the event", "after the event", "from a callback of its own"]
_ORDERS: tuple[Order, ...] = ("before the event", "after the event", "from a callback of its own")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Whom to cancel, in which pass, and where in it."""

    name: str
    step: int
    order: Order


async def _perform(play: Play, run: Door, *cancels: Cancel) -> int:
    """The number of passes it took."""
    stage = play.stage(run)

    def meddle(stage: Stage, step: int, side: int) -> None:
        for cancel in (cancel for cancel in cancels if cancel.step == step):
            if cancel.order == ("before the event" if side < 0 else "after the event"):
                stage.cancel(cancel.name)
            elif side > 0 and cancel.order == "from a callback of its own":
                asyncio.get_running_loop().call_soon(stage.cancel, cancel.name)

    try:
        passes = await play.perform(stage, meddle)
        await stage.check(play.errors)
    except AssertionError as error:
        error.add_note(f"with {cancels}")
        raise
    return passes


def _every_cancel(play: Play, passes: int) -> Iterator[Cancel]:
    for name, step, order in itertools.product(play.names, range(passes + 1), _ORDERS):
        yield Cancel(name, step, order)


@pytest.mark.asyncio(loop_factories=["eager"])
@each_door
@each_play
async def test_any_call_cancelled_in_any_pass_leaves_the_slots_whole(run: Door, play: Play) -> None:
    passes = await _perform(play, run)

    assert passes >= 4
    for cancel in _every_cancel(play, passes):
        await _perform(play, run, cancel)


@pytest.mark.exhaustive
@pytest.mark.asyncio(loop_factories=["virtual"])
@each_play
async def test_any_two_calls_cancelled_in_one_pass_leave_the_slots_whole(play: Play) -> None:
    passes = await _perform(play, through_submit)

    for first, second in itertools.combinations(_every_cancel(play, passes), 2):
        if first.name != second.name and first.step == second.step:
            await _perform(play, through_submit, first, second)


async def test_the_plays_do_what_their_names_say() -> None:
    waits = PLAYS["an interactive call waits"].stage(through_slot)
    PLAYS["an interactive call waits"].acts[0](waits)
    await settle()

    assert waits.started == {"a", "b"}
    assert waits.scheduler.snapshot().interactive_queued == 1
    waits.release(*NAMES)
    await asyncio.gather(*waits.tasks.values())
