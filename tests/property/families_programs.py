"""What runs in the world of `families.py`: small programs of calls inside calls, and how one is grown.

A block is a tuple of steps, a step a tuple of its name and its arguments, so that a run can be printed and repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from llm_traffic_scheduler import (
    CallAborted,
    RunTimeout,
    SchedulerError,
    Slot,
    checkpoint,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.core.admission import RUNNING
from llm_traffic_scheduler.nested import owner_of
from llm_traffic_scheduler.surroundings import active

if TYPE_CHECKING:
    from tests.property.families import Families

__all__ = ["Block", "Boom", "Pick", "Visit", "call_step", "run_task"]

Block: TypeAlias = tuple[tuple[Any, ...], ...]
Pick: TypeAlias = Callable[[Sequence[Any]], Any]

NEVER_RAN = ("QueueFull", "QueueTimeout", "SchedulerClosed")
ROUNDING = 1e-9
# What is named twice is drawn twice as often; the first is the simplest.
LEAVES = ("gate", "stint", "gate", "sleep", "stint", "checkpoint", "stint", "gate", "turn", "raise")
TREES = ("call", "family", "call", "family", "background", "background", "released", "released", "traffic", "swallow")


class Boom(Exception):
    """What a program raises."""


def call_step(pick: Pick, depth: int = 3) -> tuple[Any, ...]:
    """A call that runs a block."""
    options: dict[str, Any] = {}
    if pick((False, True)):
        options["label"] = True
    if (priority := pick((None, None, -1, 1))) is not None:
        options["priority"] = priority
    if (patience := pick((*[None] * 8, 0.5, 1.0, 0))) is not None:
        options["queue_timeout"] = patience
    if (limit := pick((*[None] * 8, 0.5, 1.0))) is not None:
        options["run_timeout"] = limit
    if pick((False, False, True)):
        options["observe"] = False
    if pick((False, False, True)):
        options["tenant"] = pick(("a", "b"))
    kind, through = pick(("batch", "batch", "interactive", None)), pick(("submit", "slot"))
    if through == "submit" and pick((True, False, True)):
        options["preemptible"] = True
    return "call", kind, through, pick((True, False)), options, _block(pick, depth - 1)


def _block(pick: Pick, depth: int) -> Block:
    return tuple(_step(pick, depth) for _ in range(pick((1, 2, 1, 3))))


def _step(pick: Pick, depth: int) -> tuple[Any, ...]:
    name = pick(LEAVES if depth <= 0 else (*TREES, *LEAVES))
    if name == "call":
        return call_step(pick, depth)
    if name == "sleep":
        return name, pick((0.25, 0.5, 1.0))
    if name == "family":
        children = tuple(_child(pick, depth) for _ in range(pick((1, 2, 3))))
        return name, pick(("leaves them", "waits for them")), children, _block(pick, depth - 2) if pick((0, 1)) else ()
    if name == "background":
        return name, _child(pick, depth)
    if name == "traffic":
        return name, pick(("batch", "interactive")), _block(pick, depth - 1)
    if name in ("released", "swallow"):
        return name, _block(pick, depth - 1)
    return (name,)


def _child(pick: Pick, depth: int) -> Block:
    """What a child task does: mostly a call at once."""
    if pick((True, True, True, False)):
        return (call_step(pick, depth),)
    return _block(pick, depth - 1)


class Visit:
    """One call of a program: what its code sees.

    Attributes:
        kind: the kind in force inside; of the root, None.
        given: blocks around its code in which its slot is given up.
        lost: it was cancelled while it had no slot, so it has none any more.
        maybe: it waits in a checkpoint, if it gave way.
        told: its code has swallowed a cancel.
        error: what its code raised.
    """

    def __init__(self, world: Families, kind: str | None = None, around: Visit | None = None) -> None:
        self.world = world
        self.name = f"call-{len(world.visits)}"
        self.kind = kind
        self.around = around
        self.task: asyncio.Task[Any] | None = None
        self.call: Call | None = None
        self.slot: Slot | None = None
        self.options: dict[str, Any] = {}
        self.calls = self.given = self.maybe = 0
        self.lost = self.over = self.told = self.settled = False
        self.began = self.away = 0.0
        self.error: BaseException | None = None
        world.visits.append(self)

    @property
    def inside(self) -> bool:
        """Its code runs and has its slot."""
        return self.slot is not None and not (self.over or self.lost or self.given or self.maybe)

    @property
    def granted(self) -> bool:
        """Whoever it shares its slot with has one; if it comes back, it has not heard of it."""
        return self.call is not None and not self.lost and owner_of(self.call).state == RUNNING

    @property
    def ran(self) -> float:
        """Seconds in its slot."""
        return self.world.loop.time() - self.began - self.away

    @property
    def stopping(self) -> bool:
        """Its task has been cancelled, by whomever."""
        return self.told or (self.task is not None and self.task.cancelling() > 0)

    def sharing(self) -> Iterator[Visit]:
        """It, and those around it in the same task whose slot it uses."""
        visit: Visit | None = self
        while visit is not None and visit.call is not None and visit.task is self.task:
            yield visit
            nesting, outer = visit.call.nesting, visit.around
            visit = outer if nesting is not None and outer is not None and nesting.lender is outer.call else None

    # Steps, each with the kind in force

    async def block(self, kind: str | None, steps: Block) -> None:
        for name, *arguments in steps:
            self.look()
            await getattr(self, f"do_{name.replace(' ', '_')}")(kind, *arguments)
        self.look()

    def look(self) -> None:
        """The slot is what this code may think it is."""
        slot = current_slot()
        if self.maybe or (self.given and self.task is not asyncio.current_task()):
            return  # another task may run between the grant and the wake-up
        if self.inside:
            assert slot is not None
            assert slot is self.slot
            assert slot.kind == self.kind
            limit = self.options.get("run_timeout")
            assert limit is None or self.ran <= limit + ROUNDING or self.stopping, "nobody has stopped it"
        else:
            assert slot is None, (self.name, slot)

    async def do_gate(self, kind: str | None) -> None:
        await self.world.gate()

    async def do_sleep(self, kind: str | None, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def do_turn(self, kind: str | None) -> None:
        await asyncio.sleep(0)

    async def do_stint(self, kind: str | None) -> None:
        for _ in range(2):
            await self.world.gate()
            await self.do_checkpoint(kind)

    async def do_at_last(self, kind: str | None, child: Block) -> None:
        """Wait, and start a child task on the way out."""
        try:
            await self.world.gate()
        finally:
            _ = self.world.spawn(run_task(self, kind, child))
            await asyncio.sleep(0)

    async def do_raise(self, kind: str | None) -> None:
        raise Boom

    async def do_swallow(self, kind: str | None, steps: Block) -> None:
        try:
            await self.block(kind, steps)
        except asyncio.CancelledError:
            visit: Visit | None = self
            while visit is not None and visit.task is asyncio.current_task():
                visit.told = True
                visit = visit.around

    async def do_traffic(self, kind: str | None, said: Any, steps: Block) -> None:
        with traffic(said):
            await self.block("batch" if kind == "batch" else said, steps)

    async def do_background(self, kind: str | None, steps: Block) -> None:
        _ = self.world.spawn(run_task(self, kind, steps))

    async def do_family(self, kind: str | None, way: str, children: tuple[Block, ...], meanwhile: Block) -> None:
        tasks = [self.world.spawn(run_task(self, kind, steps)) for steps in children]
        try:
            if meanwhile:
                await asyncio.sleep(0)
            await self.block(kind, meanwhile)
            await asyncio.wait(tasks)
        except (asyncio.CancelledError, Boom, SchedulerError):
            for task in tasks:
                self.world.cancel(task)
            if way == "waits for them":
                await asyncio.wait(tasks)
            raise

    async def do_checkpoint(self, kind: str | None) -> None:
        if self.task is not asyncio.current_task():
            return
        sharing = list(self.sharing())
        self._out(sharing, "maybe")
        try:
            await checkpoint()
        except asyncio.CancelledError:
            self._lose(sharing)
            raise
        finally:
            self._in(sharing, "maybe")

    async def do_released(self, kind: str | None, steps: Block) -> None:
        if self.task is not asyncio.current_task() or self.slot is None:
            return
        scope, sharing = self.slot.released(), list(self.sharing())
        if self.call is not None and self.call.nesting is not None and self.call.nesting.guest is not None:
            sharing = []  # a child uses the slot, so it is not given up
        self._out(sharing, "given")
        try:
            async with scope:
                await self.block(kind, steps)
        except asyncio.CancelledError:
            self._lose(sharing)
            raise
        finally:
            self._in(sharing, "given")

    def _out(self, sharing: list[Visit], how: str) -> None:
        for visit in sharing:
            setattr(visit, how, getattr(visit, how) + 1)
            if visit.given + visit.maybe == 1:
                visit.away -= self.world.loop.time()

    def _in(self, sharing: list[Visit], how: str) -> None:
        for visit in sharing:
            setattr(visit, how, getattr(visit, how) - 1)
            if visit.given + visit.maybe == 0:
                visit.away += self.world.loop.time()

    def _lose(self, sharing: list[Visit]) -> None:
        for visit in sharing:
            visit.lost = True

    async def do_call(
        self, kind: str | None, said: Any, through: str, catches: bool, options: dict[str, Any], steps: Block
    ) -> None:
        inner = Visit(self.world, "batch" if kind == "batch" else said or kind, self)
        inner.options = {**options, "label": inner.name} if "label" in options else options
        outcome = "returned"
        try:
            await inner.go(said, through, steps)
        except BaseException as error:
            outcome = type(error).__name__
            inner.judge(error)
            if not (catches and isinstance(error, (Boom, SchedulerError))):
                raise
        finally:
            inner.settled = True
            self.world.tell(inner.name, outcome)
            self.look()

    async def go(self, said: Any, through: str, steps: Block) -> None:
        """The call itself."""
        scheduler = self.world.scheduler
        if through == "submit":
            assert await scheduler.submit(said, self.run, steps, **self.options) == self.name
        else:
            async with scheduler.slot(said, **self.options) as slot:
                assert current_slot() is slot
                await self.run(steps)

    async def run(self, steps: Block) -> str:
        """Its code."""
        self.calls += 1
        assert self.calls <= (3 if self.preemptible else 1), "called too often"
        assert self.calls == 1 or self.over, "called while it runs"
        assert (self.given, self.maybe) == (0, 0)
        self.over = self.told = self.lost = False
        self.away = 0.0
        self.task, self.slot = asyncio.current_task(), current_slot()
        self.call = cast("Call", active.get())
        self.began = self.world.loop.time()
        self.world.entered(self)
        try:
            await self.block(self.kind, steps)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.over = True
            if self.preemptible:
                self.world.again.append(self)
        return self.name

    @property
    def preemptible(self) -> bool:
        """It may be called again, twice."""
        return self.kind == "batch" and bool(self.options.get("preemptible"))

    def judge(self, error: BaseException) -> None:
        """The error is one that the call could have."""
        if error is self.error:
            return
        outcome = type(error).__name__
        assert isinstance(error, (SchedulerError, asyncio.CancelledError)), error
        if outcome in NEVER_RAN:
            assert not self.calls
        elif isinstance(error, RunTimeout):
            assert self.ran >= self.options["run_timeout"] - ROUNDING, f"{self.name} timed out after {self.ran} s"
        elif isinstance(error, CallAborted):
            assert self.world.closed or (self.preemptible and self.lost and "lost its place" in str(error))
        else:
            assert outcome == "CancelledError"
            assert not self.calls or self.preemptible


async def run_task(visit: Visit, kind: str | None, steps: Block) -> None:
    """A task of a program: its root, or a child that inherits what is around it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await visit.block(kind, steps)
    except (Boom, SchedulerError):
        pass
    finally:
        assert task.cancelling() == visit.world.cancels[task], "a cancel was swallowed, or one of ours has stayed"
