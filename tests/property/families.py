"""Families of calls on one virtual loop: nested in each other, in child tasks, giving way, cancelled at any instant.

`python -m tests.property.families --steps 1000000 --seed 1` soaks without hypothesis.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from llm_traffic_scheduler import CallFinished, CallRejected, Event, FixedPolicy, TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.property.families_programs import Block, Pick, Visit, call_step, run_task
from tests.property.families_slots import check_slots
from tests.property.hearing import Hearing
from tests.property.world import Records, forgive

__all__ = ["Families", "Step", "closing", "draw_settings", "draw_step", "drawn", "play"]

Step: TypeAlias = tuple[Any, ...]
KINDS = ("interactive", "batch")


class Families:
    """A scheduler, its loop and the programs that use it. Every method that begins with `do_` is a step."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.loop = VirtualTimeLoop()
        self.settings = {name: value for name, value in settings.items() if name not in ("listening", "lavish")}
        self.lavish: bool = settings["lavish"]
        self.hearing = Hearing()
        self.scheduler = TrafficScheduler(**self.hearing.around(self.settings))
        self.hearing.scheduler = self.scheduler
        self.heard: Counter[tuple[str, str]] | None = Counter() if settings["listening"] else None
        if self.heard is not None:
            self.scheduler.add_listener(self.listen)
        self.visits: list[Visit] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.cancels: Counter[asyncio.Task[Any]] = Counter()
        self.gates: list[asyncio.Event] = []
        self.open = self.closed = False
        self.deadline = math.inf
        self.trace: list[tuple[float, object, object]] = []
        self.totals: dict[str, tuple[int, ...]] = {}
        self.highest_cap: int = settings["max_concurrency"]
        self.ran_before = 0
        self.living: list[Visit] = []
        self.again: list[Visit] = []  # which we had told to stop, and which may run again
        self.complaints: list[object] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.records = Records()
        logging.getLogger("asyncio").addHandler(self.records)
        self.root = Visit(self)

    # For programs

    def spawn(self, code: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(code)
        self.tasks[task] = None
        return task

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel from outside, and remember it."""
        if task.cancel():
            self.cancels[task] += 1

    async def gate(self) -> None:
        """Wait until a step opens it."""
        gate = asyncio.Event()
        if not self.open:
            self.gates.append(gate)
            await gate.wait()

    def entered(self, visit: Visit) -> None:
        """The code of a call begins to run."""
        if visit not in self.living:
            self.living.append(visit)
        self.tell(visit.name, "began")

    def tell(self, what: object, how: object) -> None:
        self.trace.append((self.loop.time(), what, how))

    def listen(self, event: Event) -> None:
        """Count the ends that the scheduler tells of."""
        self.tell("event", event)
        assert self.heard is not None
        if isinstance(event, (CallFinished, CallRejected)):
            self.heard[event.kind, event.outcome if isinstance(event, CallFinished) else "rejected"] += 1

    # Steps

    def take(self, step: Step) -> None:
        """Do it, and look whether all is well."""
        name, *arguments = step
        getattr(self, f"do_{name}")(*arguments)
        self.check()

    def do_start(self, program: Block) -> None:
        _ = self.spawn(run_task(self.root, None, program))

    def do_open(self, which: int) -> None:
        if self.gates:
            self.gates.pop(which % len(self.gates)).set()

    def do_crowd(self, kind: str, times: int) -> None:
        """Calls of two child tasks that give way, or with one inside of them that gives its slot up, in turn."""
        stint: Step = ("call", None, "submit", True, {}, (("stint",),))
        away: Step = ("call", None, "submit", True, {}, (("released", (("gate",),)), ("gate",)))
        works = (stint,), (away,), (("family", "leaves them", ((stint,), (stint,)), ()),)
        for number in range(times):
            self.do_start((("call", kind, "submit", True, {}, works[number % len(works)]),))

    def do_squeeze(self, batch: int, people: int, passes: int) -> None:
        """Calls that may be preempted, some with children when they are stopped, and people for their slots."""
        late: Step = ("call", None, "submit", True, {}, (("gate",),))
        works = (
            (("gate",),),
            (("stint",),),
            (("at last", (late,)),),
            (("gate",), ("family", "leaves them", ((late,),), ())),
        )
        for number in range(batch):
            work = works[(number + people) % len(works)]
            self.do_start((("call", "batch", "submit", True, {"preemptible": True}, work),))
        self.do_pass(passes)
        for _ in range(people):
            self.do_start((("call", "interactive", "submit", True, {}, (("gate",),)),))

    def do_cancel(self, aim: str, whose: tuple[int, ...], soon: bool) -> None:
        """`aim`: at tasks in which a slot has been given up, at those that were told to stop by us, or at any."""
        alive = [task for task in self.tasks if not task.done()]
        if aim == "away":
            away = [visit.task for visit in self.living if visit.given or visit.maybe]
            alive = [task for task in alive if task in away]
        elif aim == "told":
            alive = [task for task in alive if task.cancelling() > self.cancels[task]]
        for which in whose if alive else ():
            task = alive[which % len(alive)]
            if soon:
                self.loop.call_soon(self.cancel, task)
            else:
                self.cancel(task)

    def do_meet(self, which: int, times: int) -> None:
        """A cancel, or two, meets the grant to a call that comes back."""
        self.do_open(which)
        for _ in range(4):
            back = [visit for visit in self.living if visit.given + visit.maybe == 1 and visit.granted]
            if back:
                task = back[which % len(back)].task
                assert task is not None
                for _ in range(times):
                    self.cancel(task)
                break
            self.do_pass(1)

    def do_configure(self, changes: dict[str, Any]) -> None:
        self.settings.update(changes)
        self.highest_cap = max(self.highest_cap, self.settings["max_concurrency"])
        self.scheduler.configure(**changes)

    def do_limit(self, limit: int | None) -> None:
        self.scheduler.configure(**self.hearing.around({"policy": None if limit is None else FixedPolicy(limit)}))

    def do_pause(self, kind: Any) -> None:
        self.scheduler.pause(kind)

    def do_resume(self, kind: Any) -> None:
        self.scheduler.resume(kind)

    def do_pass(self, times: int) -> None:
        for _ in range(times):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.check()

    def do_clock(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def do_close(self, timeout: float | None, kept: Any) -> None:
        _ = self.spawn(self._close(timeout, kept))

    async def _close(self, timeout: float | None, kept: Any) -> None:
        self.closed = True
        if timeout is not None:
            self.deadline = min(self.deadline, self.loop.time() + timeout)
        self.tell("close", await self.scheduler.close(timeout=timeout, finish_queued=kept))

    # What must hold

    def check(self) -> None:
        if self.lavish:
            forgive(self.scheduler)
        self.scheduler.check()
        self.hearing.check()
        snapshot = self.scheduler.snapshot()
        assert snapshot.running <= max(self.highest_cap, self.ran_before)
        self.highest_cap, self.ran_before = self.settings["max_concurrency"], snapshot.running
        for kind, present in (
            ("interactive", snapshot.interactive_queued + snapshot.interactive_running),
            ("batch", snapshot.batch_queued + snapshot.batch_running),
        ):
            totals = snapshot.totals[kind]
            ended = totals.completed + totals.failed + totals.cancelled + totals.timed_out + totals.rejected
            assert totals.submitted == ended + present
            self._only_up(kind, totals.submitted, totals.started, totals.completed, totals.cancelled, totals.rejected)
        self.living = [visit for visit in self.living if not visit.over]
        for kind, running in (("interactive", snapshot.interactive_running), ("batch", snapshot.batch_running)):
            outermost = [visit for visit in self.living if visit.around is self.root and visit.kind == kind]
            assert sum(visit.inside for visit in outermost) <= running
        calls = {visit.call: visit for visit in self.living if visit.call is not None}
        self.again = [visit for visit in self.again if visit.over and not visit.settled]
        returning = {call for call, visit in calls.items() if visit.given or visit.maybe}
        returning |= {visit.call for visit in self.again if visit.call is not None}
        check_slots(self.scheduler._home, calls, returning)
        if self.deadline < self.loop.time():
            assert all(visit.stopping or visit.lost or visit.began >= self.deadline for visit in self.living)
        assert not self.complaints, self.complaints
        assert not self.records.messages, self.records.messages

    def _only_up(self, kind: str, *figures: int) -> None:
        before = self.totals.get(kind, (0,) * len(figures))
        assert all(old <= new for old, new in zip(before, figures, strict=True)), (kind, before, figures)
        assert figures[0] >= figures[1]
        self.totals[kind] = figures

    # The end

    def finish(self) -> None:
        """Let everything end, and look at what is left: nothing."""
        self.do_pass(1)
        for kind in KINDS:
            self.do_resume(kind)
        self.open = True
        for gate in self.gates:
            gate.set()
        while waiting := [task for task in self.tasks if not task.done()]:
            self.loop.run_until_complete(asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))
            self.check()
        self.do_pass(3)
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None, task.exception()
        self.hearing.check_end()
        assert self.scheduler.calls() == ()
        assert self.scheduler._home.admission.idle
        assert not self.scheduler._home.admission.aside
        assert not asyncio.all_tasks(self.loop)
        assert not [timer for _, _, timer in self.loop._clock.timers if not timer.cancelled()]
        if self.heard is not None:
            for kind, totals in self.scheduler.snapshot().totals.items():
                for how in ("completed", "failed", "cancelled", "timed_out", "rejected"):
                    assert self.heard[kind, how] == getattr(totals, how), (kind, how)
        if not self.closed:
            self._no_slot_was_lost_or_gained()

    def _no_slot_was_lost_or_gained(self) -> None:
        cap, before = self.settings["max_concurrency"], len(self.visits)
        self.open = False
        self.gates.clear()
        for _ in range(cap + 1):
            self.do_start((("call", "interactive", "submit", False, {}, (("gate",),)),))
        self.do_pass(3)
        assert sum(visit.calls for visit in self.visits[before:]) == cap
        for _ in range(2):
            for gate in self.gates:
                gate.set()
            self.do_pass(4)
        assert [visit.over for visit in self.visits[before:]] == [True] * (cap + 1)

    def dispose(self) -> None:
        """Whatever the state is."""
        logging.getLogger("asyncio").removeHandler(self.records)
        self.loop.set_exception_handler(lambda loop, context: None)
        self.open = True
        for _ in range(20):
            for gate in self.gates:
                gate.set()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()


# The same draws for hypothesis and for the soak


def draw_settings(pick: Pick) -> dict[str, Any]:
    """Of the constructor."""
    limit = pick((None, None, 1, 2))
    return {
        **_bounds(pick),
        "policy": None if limit is None else FixedPolicy(limit),
        "batch_starvation_timeout": pick((None, 0.0, 1.0)),
        "max_queued_batch": pick((None, None, 1)),
        "close_timeout": None,
        "listening": pick((False, True)),
        "lavish": pick((True, True, False)),
    }


def _bounds(pick: Pick) -> dict[str, int]:
    cap = pick((3, 4, 5, 2))
    batch_max = pick(range(cap - 1, 0, -1))
    return {
        "max_concurrency": cap,
        "batch_max_concurrency": batch_max,
        "batch_min_concurrency": pick((1, 1, 1, batch_max)),
    }


def draw_step(pick: Pick) -> Step:
    """Any step but the end."""
    name = pick(
        ("pass",) * 6
        + ("start",) * 3
        + ("open",) * 8
        + ("crowd", "crowd", "squeeze", "squeeze", "squeeze", "cancel", "cancel", "meet", "clock", "steer", "steer")
    )
    if name == "pass":
        return name, pick((1, 1, 2))
    if name == "start":
        said, *call = call_step(pick)[1:]
        return name, (("call", said or "interactive", *call),)
    if name == "open":
        return name, pick(range(10))
    if name == "cancel":
        whose = tuple(pick(range(20)) for _ in range(pick((1, 1, 2))))
        return name, pick(("any", "away", "told")), whose, pick((False, True))
    if name == "meet":
        return name, pick(range(10)), pick((1, 1, 2))
    if name == "crowd":
        return name, pick(("batch", "interactive")), pick((2, 1, 3, 4))
    if name == "squeeze":
        return name, pick((2, 3, 4)), pick((1, 2, 3, 4)), pick((1, 2))
    if name == "clock":
        return name, pick((0.25, 0.5, 1.0))
    name = pick(("limit", "configure", "limit", "pause", "resume", "resume"))
    if name == "configure":
        return name, _bounds(pick)
    return name, pick((None, 1, 1, 2) if name == "limit" else KINDS)


def closing(pick: Pick) -> tuple[Step, ...]:
    """How a run may end."""
    if pick((True, True, False)):
        return ()
    close = ("close", pick((0.0, 0.5, None)), pick((("interactive",), (), ("batch",), KINDS)))
    return (close, ("pass", 1), ("clock", pick((0.25, 1.0))), ("pass", 2), ("close", 0.75, ()), ("clock", 2.0))


def play(settings: dict[str, Any], steps: list[Step]) -> list[tuple[float, object, object]]:
    """All steps and the end; returns the trace."""
    world = Families(settings)
    try:
        for step in steps:
            world.take(step)
        world.finish()
        return world.trace
    finally:
        world.dispose()


# The soak

STEPS_PER_RUN = 50
RUNS_PER_REPEAT = 10


def drawn(seed: object) -> tuple[dict[str, Any], list[Step]]:
    """A run: its settings and its steps."""
    pick: Callable[[Any], Any] = random.Random(str(seed)).choice
    settings = draw_settings(pick)
    return settings, [*(draw_step(pick) for _ in range(STEPS_PER_RUN)), *closing(pick)]


def soak(steps: int, seed: int, first: int) -> None:
    """Play runs until so many steps are done; stops at the first finding."""
    began, done = time.perf_counter(), 0
    for run in itertools.count(first):
        settings, run_steps = drawn(f"{seed}/{run}")
        try:
            trace = play(settings, run_steps)
            if run % RUNS_PER_REPEAT == 0:
                assert play(settings, run_steps) == trace, "the same steps gave another run"
        except BaseException:
            print(f"run {run} of seed {seed}, after {done} steps without a finding: --first {run}", flush=True)
            print(f"settings = {settings}\nsteps = {run_steps}", flush=True)
            raise
        done += len(run_steps)
        if done >= steps:
            break
    seconds = time.perf_counter() - began
    print(f"{done} steps in {run - first + 1} runs without a finding, {done / seconds:.0f} steps per second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="run to begin with")
    given = parser.parse_args()
    soak(given.steps, given.seed, given.first)
