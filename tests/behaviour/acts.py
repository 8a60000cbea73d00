"""What a play is made of: acts, each in a pass of its own. The plays are in `plays.py` and `nested_plays.py`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from llm_traffic_scheduler import Kind
from tests.behaviour.doors import Door
from tests.behaviour.stage import Stage, Work

__all__ = ["NAMES", "Act", "Play", "arrive", "both", "close", "configure", "enter", "pause", "release", "resume"]

Act: TypeAlias = Callable[[Stage], None]
# Called in each pass just before what happens in it (-1), and just after (1).
Meddler: TypeAlias = Callable[[Stage, int, int], None]

NAMES: Final = ("a", "b", "c")
# Passes after the last act. Where somebody was cancelled who was to close the scheduler, it takes this to end.
_PATIENCE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What happens in which pass.

    Attributes:
        acts: for the passes in which anything happens.
        seconds: between two passes.
        errors: what callers may see beside a result and the cancel that was sent to them.
        most, most_batch: calls that may ever be inside at once, of both kinds, and of batch.
        settings: of the scheduler, which has two slots, one of them open to batch.
        names: whom to cancel; children of calls are callers too.
    """

    acts: Mapping[int, Act]
    seconds: float = 0
    errors: tuple[type[BaseException], ...] = ()
    most: int = 2
    most_batch: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = NAMES

    def stage(self, run: Door, *, listens: bool = False) -> Stage:
        """A new stage for it."""
        stage = Stage(run, self.settings, listens=listens)
        stage.most, stage.most_batch = self.most, self.most_batch
        return stage

    async def perform(self, stage: Stage, meddle: Meddler = lambda *_: None) -> int:
        """Play it to the end of everybody's task, and return the number of passes. The caller checks the stage."""
        for step in itertools.count():
            meddle(stage, step, -1)
            if step in self.acts:
                self.acts[step](stage)
            meddle(stage, step, 1)
            await asyncio.sleep(self.seconds)
            stage.scheduler.check()
            if step >= max(self.acts) and not stage.alive:
                break
            if step == max(self.acts) + _PATIENCE:
                stage.release_all()
            assert step <= max(self.acts) + 2 * _PATIENCE, f"these never end: {stage.alive}"
        return step


def arrive(first: Kind, second: Kind, third: Kind, job: str = "waits", **options: Any) -> Act:
    """The callers a, b and c submit calls of these kinds."""

    def act(stage: Stage) -> None:
        for name, kind in zip(NAMES, (first, second, third), strict=True):
            stage.submit(name, kind, job, **options)

    return act


def enter(*callers: tuple[str, Kind, str | Work], **options: Any) -> Act:
    """These callers submit calls: name, kind, job."""

    def act(stage: Stage) -> None:
        for name, kind, job in callers:
            stage.submit(name, kind, job, **options)

    return act


def release(*names: str) -> Act:
    """Their jobs may end."""
    return lambda stage: stage.release(*names)


def configure(**changes: Any) -> Act:
    """The limits change."""
    return lambda stage: stage.scheduler.configure(**changes)


def pause(kind: Kind) -> Act:
    """Nothing of this kind starts from here on."""
    return lambda stage: stage.scheduler.pause(kind)


def resume(kind: Kind) -> Act:
    """It starts again."""
    return lambda stage: stage.scheduler.resume(kind)


def close(name: str = "close", **options: Any) -> Act:
    """Somebody closes the scheduler, and waits for its end."""
    return lambda stage: stage.close(name, **options)


def both(*acts: Act) -> Act:
    """All of them in one pass, in this order."""

    def all_acts(stage: Stage) -> None:
        for act in acts:
            act(stage)

    return all_acts
