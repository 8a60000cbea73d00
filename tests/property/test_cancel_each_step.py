"""Whoever is cancelled, between whatever two callbacks of the loop: exhaustive, not drawn by lot.

Promises 12, 14, 15, 16 and 23. A play is first watched without a cancel: which callbacks run in which pass of the
loop, and who could be cancelled before and after each of them. Then it is performed again for everybody and every
such moment: with one cancel, and with a second one in the next pass. A new play is one more entry of PLAYS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pytest

from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.acts import Play
from tests.behaviour.doors import Door, through_slot, through_submit
from tests.behaviour.plays import PLAYS
from tests.behaviour.stage import Stage

# A listener makes the scheduler tell everybody of everything, which is another way through its code.
WAYS: dict[str, tuple[Door, bool]] = {
    "submit": (through_submit, False),
    "slot": (through_slot, False),
    "submit, with a listener": (through_submit, True),
}

FIRST, *OTHERS = WAYS

pytestmark = pytest.mark.slow


class Moment(NamedTuple):
    """In this pass of the loop, after so many of its callbacks."""

    step: int
    after: int


# What to do besides in this pass, which has so many callbacks: after how many of them, and what.
Insertions: TypeAlias = list[tuple[int, Callable[[], object]]]
Interrupt: TypeAlias = Callable[[Stage, int, int], Insertions]


class SteppedLoop(VirtualTimeLoop):
    """A virtual loop that lets `interrupt(step, callbacks)` put something between any two callbacks of a pass.

    It is asked when all that will run in the pass is known, timers that are due included.
    """

    def __init__(self) -> None:
        self.step = 0
        self.interrupt: Callable[[int, int], Insertions] | None = None
        super().__init__()

    def _process_events(self, events: Any) -> None:
        super()._process_events(events)  # type: ignore[misc]
        if self.interrupt is not None:
            # From behind, so that the places in front stay what they are.
            for after, callback in reversed(self.interrupt(self.step, len(self._ready))):
                self._ready.insert(after, asyncio.Handle(callback, (), self))
            self.step += 1


@dataclass(frozen=True, slots=True)
class Cancel:
    """Who is cancelled, when, and whether again at the beginning of the next pass."""

    name: str
    moment: Moment
    twice: bool


class Theatre:
    """Performs one play in one way, as often as it is asked to."""

    def __init__(self, loop: SteppedLoop, play: Play, way: str) -> None:
        self._loop = loop
        self._play = play
        self._run, self._listens = WAYS[way]

    def watch(self) -> list[tuple[str, Moment]]:
        """Everybody who could be cancelled, at every moment at which they could."""
        seen: list[tuple[str, Moment]] = []

        def look(stage: Stage, moment: Moment) -> None:
            seen.extend((name, moment) for name in sorted(stage.alive))

        self._perform(
            lambda stage, step, callbacks: [
                (after, partial(look, stage, Moment(step, after))) for after in range(callbacks + 1)
            ]
        )
        return seen

    def perform(self, cancel: Cancel) -> int:
        """Perform it with this cancel, check what is left, and return how many cancels found somebody."""
        sent = 0

        def send(stage: Stage) -> None:
            nonlocal sent
            sent += stage.cancel(cancel.name)

        def interrupt(stage: Stage, step: int, callbacks: int) -> Insertions:
            if step == cancel.moment.step:
                return [(cancel.moment.after, partial(send, stage))]
            return [(0, partial(send, stage))] if cancel.twice and step == cancel.moment.step + 1 else []

        try:
            self._perform(interrupt)
        except AssertionError as error:
            error.add_note(f"with {cancel}")
            raise
        return sent

    def _perform(self, interrupt: Interrupt) -> None:
        self._loop.run_until_complete(self._perform_and_check(interrupt))

    async def _perform_and_check(self, interrupt: Interrupt) -> None:
        stage = self._play.stage(self._run, listens=self._listens)
        self._loop.step, self._loop.interrupt = 0, partial(interrupt, stage)
        try:
            await self._play.perform(stage)
        finally:
            self._loop.interrupt = None
        await stage.check(self._play.errors)


def cancel_everybody_at_every_moment(play: Play, way: str) -> tuple[int, int]:
    """How many performances, and in how many of them the second cancel found somebody."""
    performances = found_again = 0
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SteppedLoop)
        theatre = Theatre(loop, play, way)
        for name, moment in theatre.watch():
            assert theatre.perform(Cancel(name, moment, twice=False)) == 1, "the same steps gave another run"
            found_again += theatre.perform(Cancel(name, moment, twice=True)) == 2
            performances += 2
    return performances, found_again


@pytest.mark.parametrize("way", [FIRST, *(pytest.param(way, marks=pytest.mark.exhaustive) for way in OTHERS)])
@pytest.mark.parametrize("play", PLAYS)
def test_whoever_is_cancelled_between_any_two_callbacks_leaves_the_slots_whole(play: str, way: str) -> None:
    performances, found_again = cancel_everybody_at_every_moment(PLAYS[play], way)

    assert performances >= 80
    assert found_again >= 10
