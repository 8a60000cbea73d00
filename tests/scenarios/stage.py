"""One scenario, four loops, six checks: how the cases of the catalogue are written.

A scenario is an async function of a `Stage`, written once:

    @scenario
    async def test_b04_a_badly_timed_cancel_stops_nothing(stage: Stage) -> None:
        scheduler = await stage.one_slot()
        ...

It runs in virtual time on asyncio's loop ("default"), with an eager task factory ("eager") and in debug mode with a
listener that checks the limits at each start ("debug"); on "uvloop" in real time, where `stage.seconds` is a
fiftieth. Parameters and fixtures come after the stage. After each, the stage checks for each of its schedulers:

1. the totals add up, and are what the callers saw;
2. never more inside the jobs than the cap, nor than the limit at each start ("debug");
3. nothing is queued, nothing runs, no task and no timer is left;
4. as many gate jobs as ever fit in at the same time, and not one more;
5. each submit has settled once and each function was called at most once;
6. asyncio logged nothing, the loop's exception handler was not called, nothing warned.

Which case is where, and which wait for a later part: `catalogue.py`.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Final, ParamSpec
from unittest import mock

import pytest

from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import assert_whole, start
from tests.loops import loop_factories
from tests.scenarios.counted import NOWHERE, Counted
from tests.support import Held, account, armed_timers, hold, noop, other_tasks, settle

__all__ = ["LOOPS", "Stage", "scenario", "scenario_on"]

P = ParamSpec("P")

LOOPS: Final = ("default", "eager", "debug", "uvloop")

_UVLOOP_SPEED: Final = 50
_GUARD: Final = 20.0
"""Real seconds after which a scenario on uvloop hangs. In virtual time hanging is noticed at once."""


class Stage:
    """Makes the schedulers of one scenario, and looks at the end whether all is as it should be.

    Attributes:
        loop: name of the loop, one of `LOOPS`.
        complaints: what asyncio logged and the loop's exception handler got; a scenario that expects some clears it.
    """

    def __init__(self, loop: str, complaints: list[str]) -> None:
        self.loop = loop
        self.complaints = complaints
        self._schedulers: list[Counted] = []
        self._ballast: list[Held] = []

    @property
    def virtual(self) -> bool:
        """Time stands still until everything waits: two things may happen at the same instant."""
        return self.loop not in ("uvloop", "real")

    def seconds(self, seconds: float) -> float:
        """A duration of the scenario, as long as this loop lets it be."""
        return seconds if self.virtual else seconds / _UVLOOP_SPEED

    def share(self, rounds: int) -> int:
        """How many rounds of a fuzz to play: all of them on the default loop, a tenth on the others."""
        return rounds if self.loop == "default" else max(1, rounds // 10)

    def scheduler(self, *, max_concurrency: int = 2, **settings: Any) -> Counted:
        """A scheduler that the stage checks at the end. Times in `settings` are for `seconds` to scale."""
        scheduler = Counted(max_concurrency=max_concurrency, **settings)
        if self.loop == "debug":
            scheduler.watch_starts()
        self._schedulers.append(scheduler)
        return scheduler

    async def one_slot(self, **settings: Any) -> Counted:
        """A scheduler of two slots, one of which is held until the end: the smallest there is."""
        scheduler = self.scheduler(**settings)
        await self.fill(scheduler, 1)
        return scheduler

    async def fill(self, scheduler: Counted, count: int) -> None:
        """Hold `count` slots until the end, by interactive calls."""
        held = [hold(scheduler, name="ballast", queue_timeout=None) for _ in range(count)]
        self._ballast += held
        await settle()
        assert all(call.started for call in held)

    def unload(self) -> None:
        """Give back the slots that `one_slot` and `fill` hold."""
        for held in self._ballast:
            held.release()

    def forget(self, scheduler: Counted) -> None:
        """Do not look at this one at the end: the scenario leaves it in a state that the checks are not about."""
        self._schedulers.remove(scheduler)

    async def canaries(self, scheduler: Counted, count: int = 1) -> None:
        """Submit `count` jobs of each kind that do nothing, and see them end within a second."""
        tasks = [start(scheduler.submit(kind, noop)) for kind in ("interactive", "batch") for _ in range(count)]
        _, pending = await asyncio.wait(tasks, timeout=1.0)
        assert not pending, f"{len(pending)} canaries of {len(tasks)} do not sing: {scheduler.explain()}"
        for task in tasks:
            await task

    async def finish(self) -> None:
        """The six checks."""
        self.unload()
        await settle()
        for scheduler in self._schedulers:
            self._check_counts(scheduler)
            if not scheduler.closed:
                await _check_room(scheduler)
                self._check_counts(scheduler)
        assert other_tasks() == set()
        if self.virtual:
            assert armed_timers() == []
        gc.collect()
        await settle()
        assert self.complaints == []

    def _check_counts(self, scheduler: Counted) -> None:
        scheduler.check()
        seen = scheduler.snapshot()
        assert (seen.running, seen.interactive_queued, seen.batch_queued) == (0, 0, 0), scheduler.explain()
        assert scheduler.inside == {"interactive": 0, "batch": 0}
        assert scheduler.most <= scheduler.highest_cap
        assert self.loop != "debug" or scheduler.broken_starts == []
        assert scheduler.endings.total() == scheduler.opened, "submits that have not settled"
        totals = [account(scheduler, kind) for kind in ("interactive", "batch")]
        seen_outside = scheduler.endings
        for ending in ("completed", "failed", "timed_out"):
            assert sum(getattr(total, ending) for total in totals) == seen_outside[ending], (totals, seen_outside)
        # One that is cancelled in the very pass in which it is refused counts as rejected, and sees its cancel.
        assert sum(total.rejected for total in totals) >= seen_outside["rejected"], (totals, seen_outside)
        submitted = sum(total.submitted for total in totals)
        assert submitted == scheduler.opened - seen_outside[NOWHERE], (totals, seen_outside)


async def _check_room(scheduler: Counted) -> None:
    """All the slots can be had, and no more; of batch calls as many as the limit allows."""
    for kind in ("interactive", "batch"):
        scheduler.resume(kind)
    room = scheduler.snapshot().batch_limit
    crowd = [hold(scheduler, "batch", queue_timeout=None, run_timeout=None) for _ in range(room + 1)]
    await settle()
    # In real time samples may leave the window meanwhile, and the limit rises.
    assert room <= sum(held.started for held in crowd) <= scheduler.snapshot().batch_limit
    for held in crowd:
        held.release()
    await asyncio.gather(*(held.task for held in crowd))
    await assert_whole(scheduler)


def scenario(function: Callable[Concatenate[Stage, P], Awaitable[None]]) -> Callable[..., None]:
    """A test that plays `function` on every loop."""
    return scenario_on(*LOOPS)(function)


def scenario_on(*loops: str) -> Callable[[Callable[Concatenate[Stage, P], Awaitable[None]]], Callable[..., None]]:
    """`scenario`, on these loops only: where the case is about one of them, or needs exact time."""

    def decorate(function: Callable[Concatenate[Stage, P], Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(loop_name: str, *args: Any, **kwargs: Any) -> None:
            _play(functools.partial(function, *args, **kwargs), loop_name)

        first, *others = inspect.signature(function).parameters.values()
        named = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([named, *others])  # type: ignore[attr-defined]
        assert first.name == "stage"
        del test.__wrapped__
        marked: Callable[..., None] = pytest.mark.parametrize("loop_name", loops)(test)
        return marked

    return decorate


def _play(function: Callable[[Stage], Awaitable[None]], loop_name: str) -> None:
    if loop_name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with 3.12")
    factory = loop_factories().get("virtual" if loop_name == "default" else loop_name)
    if factory is None:
        pytest.skip("uvloop is not installed")
    # In debug mode asyncio notes where each callback was made, ten frames deep: three quarters of a run's time.
    shallow = mock.patch("asyncio.constants.DEBUG_STACK_DEPTH", 1)
    with shallow, _complaints() as complaints, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_main(function, Stage(loop_name, complaints)))


async def _main(function: Callable[[Stage], Awaitable[None]], stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: stage.complaints.append(f"exception handler: {context}"))
    async with asyncio.timeout(None if isinstance(loop, VirtualTimeLoop) else _GUARD):
        await function(stage)
        await stage.finish()


class _Complaints(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"asyncio logged: {record.getMessage()}")


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What asyncio logs and what warns meanwhile, in one list that must be empty at the end."""
    kept: list[str] = []
    handler = _Complaints(kept)
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    gc.freeze()  # what there is already is no garbage of this scenario, and need not be looked at
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield kept
            gc.collect()
        kept += [f"warned: {warning.message}" for warning in warned]
    finally:
        logger.removeHandler(handler)
    assert kept == []
