"""Whoever is cancelled, in whatever pass of the loop: no slot is lost and none gained.

Promises 12, 14, 15, 16 and 23, looked at exhaustively. Each play is three calls on two slots. It is first played
without a cancel, counting the loop's passes; then again for every call, every pass and every order of the cancel
and what else happens in that pass.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest

from llm_traffic_scheduler import CallAborted, QueueTimeout, RunTimeout, SchedulerClosed, TrafficScheduler
from tests.behaviour.doors import Door, assert_whole, each_door, start, through_slot, through_submit
from tests.support import make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])

Order: TypeAlias = Literal["before the event", "after the event", "from a callback of its own"]
_ORDERS: tuple[Order, ...] = ("before the event", "after the event", "from a callback of its own")
_NAMES = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Whom to cancel, in which pass, and where in it."""

    name: str
    step: int
    order: Order


class Stage:
    """One play: a scheduler, the calls a, b and c, and what they did."""

    def __init__(self, run: Door, cap: int = 2) -> None:
        self.scheduler: TrafficScheduler = make_scheduler()
        self.cap = cap
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.started: set[str] = set()
        self.cancelled: set[str] = set()
        self.cancelled_unstarted: set[str] = set()
        self.complaints: list[dict[str, Any]] = []
        self._run = run
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._inside: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))

    def submit(self, name: str, kind: str, **options: float) -> None:
        self._gates[name] = asyncio.get_running_loop().create_future()
        self.tasks[name] = start(self._run(self.scheduler, kind, self._job, name, kind, **options))

    async def _job(self, name: str, kind: str) -> str:
        assert name not in self.started, "called twice"
        self.started.add(name)
        self._inside.append(kind)
        try:
            assert len(self._inside) <= self.cap
            assert self._inside.count("batch") <= 1
            await self._gates[name]
            await asyncio.sleep(0)
            return name
        finally:
            self._inside.remove(kind)

    def release(self, *names: str) -> None:
        for name in names:
            if not self._gates[name].done():
                self._gates[name].set_result(None)

    def close(self, timeout: float) -> None:
        self.tasks["close"] = start(self.scheduler.close(timeout=timeout, finish_queued=("batch",)))

    def cancel(self, cancels: list[Cancel], order: Order) -> None:
        for name in (cancel.name for cancel in cancels if cancel.order == order):
            task = self.tasks.get(name)
            if task is not None and task.cancel():
                self.cancelled.add(name)
                if name not in self.started:
                    self.cancelled_unstarted.add(name)


@dataclass(frozen=True, slots=True)
class Play:
    """What happens in which pass; `seconds` lie between two passes."""

    events: dict[int, Callable[[Stage], None]]
    seconds: float = 0
    cap: int = 2
    outcomes: tuple[type[BaseException], ...] = ()
    closes: bool = False

    async def perform(self, run: Door, *cancels: Cancel) -> int:
        """Play it to the end, check what must be so in each pass, and return the number of passes."""
        stage = Stage(run, self.cap)
        for step in itertools.count():
            await self._pass(stage, step, [cancel for cancel in cancels if cancel.step == step])
            if step >= max(self.events) and all(task.done() for task in stage.tasks.values()):
                break
        self._check(stage)
        if not self.closes:
            await assert_whole(stage.scheduler)
        return step

    async def _pass(self, stage: Stage, step: int, cancels: list[Cancel]) -> None:
        stage.cancel(cancels, "before the event")
        if step in self.events:
            self.events[step](stage)
        stage.cancel(cancels, "after the event")
        asyncio.get_running_loop().call_soon(stage.cancel, cancels, "from a callback of its own")
        await asyncio.sleep(self.seconds)
        stage.scheduler.check()

    def _check(self, stage: Stage) -> None:
        assert not stage.cancelled_unstarted & stage.started, "a call ran although it was cancelled while it waited"
        for name, task in stage.tasks.items():
            if name in stage.cancelled:
                assert task.cancelled(), f"the cancel of {name} was swallowed: {task}"
            elif name != "close":
                assert not task.cancelled()
                error = task.exception()
                assert task.result() == name if error is None else isinstance(error, self.outcomes)
        assert stage.complaints == []


def _arrive(first: str, second: str, third: str, **options: float) -> Callable[[Stage], None]:
    def arrive(stage: Stage) -> None:
        for name, kind in zip(_NAMES, (first, second, third), strict=True):
            stage.submit(name, kind, **options)

    return arrive


PLAYS = {
    "an interactive call waits": Play(
        {
            0: _arrive("interactive", "batch", "interactive"),
            3: lambda stage: stage.release("a"),
            6: lambda stage: stage.release("b"),
            7: lambda stage: stage.release("c"),
        }
    ),
    "a batch call waits for the batch limit": Play(
        {
            0: _arrive("batch", "batch", "interactive"),
            2: lambda stage: stage.release("a"),
            5: lambda stage: stage.release("c", "b"),
        }
    ),
    "two wait and are served at once": Play(
        {
            0: lambda stage: stage.scheduler.pause("interactive"),
            1: _arrive("interactive", "interactive", "batch"),
            3: lambda stage: stage.scheduler.resume("interactive"),
            4: lambda stage: stage.release(*_NAMES),
        }
    ),
    "everything ends in one pass": Play(
        {0: _arrive("interactive", "batch", "batch"), 3: lambda stage: stage.release(*_NAMES)}
    ),
    "the cap rises": Play(
        {
            0: _arrive("interactive", "interactive", "interactive"),
            2: lambda stage: stage.release("c"),
            4: lambda stage: stage.scheduler.configure(max_concurrency=3),
            5: lambda stage: stage.scheduler.configure(max_concurrency=2),
            6: lambda stage: stage.release(*_NAMES),
        },
        cap=3,
    ),
    "calls time out while they wait": Play(
        {
            0: _arrive("interactive", "interactive", "batch", queue_timeout=0.5),
            4: lambda stage: stage.release(*_NAMES),
        },
        seconds=0.25,
        outcomes=(QueueTimeout,),
    ),
    "calls time out while they run": Play(
        {0: _arrive("interactive", "batch", "interactive", run_timeout=0.5), 5: lambda stage: stage.release(*_NAMES)},
        seconds=0.25,
        outcomes=(RunTimeout,),
    ),
    "the scheduler closes": Play(
        {
            0: _arrive("interactive", "interactive", "batch"),
            2: lambda stage: stage.close(timeout=0.5),
            3: lambda stage: stage.release("a"),
        },
        seconds=0.25,
        outcomes=(CallAborted, SchedulerClosed),
        closes=True,
    ),
}
each_play = pytest.mark.parametrize("play", PLAYS.values(), ids=list(PLAYS))


def _every_cancel(passes: int) -> Iterator[Cancel]:
    for name, step, order in itertools.product(_NAMES, range(passes + 1), _ORDERS):
        yield Cancel(name, step, order)


@each_door
@each_play
async def test_any_call_cancelled_in_any_pass_leaves_the_slots_whole(run: Door, play: Play) -> None:
    passes = await play.perform(run)

    assert passes >= 4
    for cancel in _every_cancel(passes):
        try:
            await play.perform(run, cancel)
        except AssertionError as error:
            error.add_note(f"with {cancel}")
            raise


@pytest.mark.asyncio(loop_factories=["virtual"])
@each_play
async def test_any_two_calls_cancelled_in_one_pass_leave_the_slots_whole(play: Play) -> None:
    passes = await play.perform(through_submit)

    for first, second in itertools.combinations(_every_cancel(passes), 2):
        if first.name != second.name and first.step == second.step:
            try:
                await play.perform(through_submit, first, second)
            except AssertionError as error:
                error.add_note(f"with {first} and {second}")
                raise


async def test_the_plays_do_what_their_names_say() -> None:
    waits = Stage(through_slot)
    PLAYS["an interactive call waits"].events[0](waits)
    await settle()

    assert waits.started == {"a", "b"}
    assert waits.scheduler.snapshot().interactive_queued == 1
    waits.release(*_NAMES)
    await asyncio.gather(*waits.tasks.values())
