"""One scheduler on one virtual loop, and everything that can be done to it, step by step from outside.

Each step is followed by what must always hold. The same steps give the same `trace`, whatever the addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_traffic_scheduler import (
    CallAborted,
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    CloseReport,
    Decision,
    Event,
    FixedPolicy,
    LimitChanged,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    SchedulerSnapshot,
    Signals,
    TrafficScheduler,
    current_slot,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop

__all__ = ["Headroom", "Job", "World"]

Kind = Literal["interactive", "batch"]
KINDS: tuple[Kind, Kind] = ("interactive", "batch")
# What the caller of a call sees, and where the totals count it; a submit after close counts nowhere.
COUNTED_AS = {
    "returned": "completed",
    "Boom": "failed",
    "SchedulerMisuse": "failed",
    "CancelledError": "cancelled",
    "CallAborted": "cancelled",
    "RunTimeout": "timed_out",
    "QueueFull": "rejected",
    "QueueTimeout": "rejected",
    "SchedulerClosed": "rejected",
}
NEVER_RAN = ("QueueFull", "QueueTimeout", "SchedulerClosed")


class Boom(Exception):
    """What a job raises."""


@dataclass(frozen=True)
class Headroom:
    """A law of the user's own: so many calls in all, interactive ones first."""

    total: int

    def advance(self, now: float, signals: Signals) -> None:
        """It learns nothing."""

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(self.total - signals.interactive_running - signals.interactive_queued)


@dataclass(eq=False)
class Job:
    """One call: how it comes, what it does, and what became of it."""

    world: World
    name: str
    kind: Kind
    way: str
    through: str
    lasts: float
    patience: float | None
    options: dict[str, Any]
    task: asyncio.Task[None] = field(init=False)
    verdict: BaseException | None = None
    calls: int = 0
    cancels: int = 0
    submitted: bool = False
    outcome: str = ""

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.task = self.world.loop.create_task(self._caller(), name=self.name)

    async def _caller(self) -> None:
        """The code around the call, which an `asyncio.timeout` of its own may bound."""
        scope = asyncio.timeout(self.patience)
        try:
            async with scope:
                try:
                    await self._call()
                    self._ended("returned")
                except BaseException as error:
                    self._ended(type(error).__name__)
                    raise
        except (Boom, RunTimeout, CallAborted, QueueFull, QueueTimeout, SchedulerClosed, SchedulerMisuse):
            assert not scope.expired() or self.outcome != "CancelledError"
        except TimeoutError:
            assert scope.expired()
        # Whoever cancelled has been heard, and only they: our own cancels are taken back.
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == self.cancels

    async def _call(self) -> None:
        scheduler = self.world.scheduler
        self.submitted = not self.world.closed
        if self.through == "slot":
            async with scheduler.slot(self.kind, label=self.name, **self.options) as slot:
                assert current_slot() is slot
                assert (slot.kind, slot.label) == (self.kind, self.name)
                await self._run()
        elif self.way == "raises before it awaits":
            await scheduler.submit(self.kind, self._raise, label=self.name, **self.options)
        elif self.way == "returns nothing to await":
            not_async: Any = self._count
            await scheduler.submit(self.kind, not_async, label=self.name, **self.options)
        else:
            assert await scheduler.submit(self.kind, self._run, label=self.name, **self.options) == self.name

    def _ended(self, outcome: str) -> None:
        assert not self.outcome, "a call ended twice"
        assert current_slot() is None
        self.outcome = outcome
        self.world.trace.append((self.world.loop.time(), self.name, outcome))

    def _count(self) -> None:
        self.calls += 1

    def _raise(self) -> Any:
        self.calls += 1
        raise Boom

    async def _run(self) -> str:
        self.calls += 1
        self.world.enter(self)
        try:
            await self._work()
        finally:
            self.world.inside[self.kind] -= 1
        if self.verdict is not None:
            raise self.verdict
        return self.name

    async def _work(self) -> None:
        if self.way == "sleeps":
            await asyncio.sleep(self.lasts)
        elif self.way == "waits":
            await self.gate.wait()
        elif self.way == "swallows cancellation":
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    continue
        elif self.way == "turns cancellation into an error":
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                raise Boom from None


class Records(logging.Handler):
    """What asyncio logs: an exception that nobody retrieved, a task that was destroyed."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class World:
    """A scheduler, its loop and its jobs. Every method that begins with `do_` is a step."""

    def __init__(self, listening: bool, **settings: Any) -> None:
        self.loop = VirtualTimeLoop()
        self.settings = settings
        self.scheduler = TrafficScheduler(**settings)
        self.jobs: list[Job] = []
        self.others: list[asyncio.Task[Any]] = []
        self.inside = dict.fromkeys(KINDS, 0)
        self.trace: list[tuple[float, object, object]] = []
        self.closed = False
        self.present_at_close = 0
        self.highest_cap: int = settings["max_concurrency"]  # since the last check
        self.ran_before = 0
        self.told = Told(self) if listening else None
        if self.told is not None:
            self.scheduler.add_listener(self.told)
        self.complaints: list[object] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.records = Records()
        logging.getLogger("asyncio").addHandler(self.records)

    # Steps

    def do_arrive(self, times: int, **arguments: Any) -> None:
        for _ in range(times):
            self.jobs.append(Job(self, f"job-{len(self.jobs)}", **arguments))

    def do_finish(self, which: int, fails: bool, soon: bool) -> None:
        waiting = [job for job in self.jobs if not job.gate.is_set()]
        if waiting:
            job = waiting[which % len(waiting)]
            job.verdict = Boom() if fails else None
            self._at(soon, job.gate.set)

    def do_cancel(self, which: int, soon: bool) -> None:
        alive = [job for job in self.jobs if not job.task.done()]
        if alive:
            self._at(soon, lambda: self._cancel(alive[which % len(alive)]))

    def _cancel(self, job: Job) -> None:
        if job.task.cancel():
            job.cancels += 1

    def do_configure(self, soon: bool, **changes: Any) -> None:
        self._at(soon, lambda: self._configure(changes))

    def _configure(self, changes: dict[str, Any]) -> None:
        self.settings.update(changes)
        self.highest_cap = max(self.highest_cap, self.settings["max_concurrency"])
        if changes.get("policy") is not None:
            self.settings.update(interactive_rps_threshold=None, interactive_p95_threshold=None, smoothing=None)
        self.scheduler.configure(**changes)

    def do_pause(self, kind: Kind, soon: bool) -> None:
        self._at(soon, lambda: self.scheduler.pause(kind))

    def do_resume(self, kind: Kind, soon: bool) -> None:
        self._at(soon, lambda: self.scheduler.resume(kind))

    def do_drain(self) -> None:
        self.others.append(self.loop.create_task(self.scheduler.drain()))

    def do_close(self, timeout: float | None, finish_queued: tuple[Kind, ...]) -> None:
        self.others.append(self.loop.create_task(self._close(timeout, finish_queued)))

    async def _close(self, timeout: float | None, finish_queued: tuple[Kind, ...]) -> CloseReport:
        if not self.closed:
            snapshot = self.scheduler.snapshot()
            self.present_at_close = snapshot.running + snapshot.interactive_queued + snapshot.batch_queued
        self.closed = True
        report = await self.scheduler.close(timeout=timeout, finish_queued=finish_queued)
        self.trace.append((self.loop.time(), "close", report))
        return report

    def do_pass(self, times: int) -> None:
        for _ in range(times):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            self.check()

    def do_sleep(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def _at(self, soon: bool, action: Callable[[], object]) -> None:
        """Now, between two passes; or in the next one, after what is ready already."""
        if soon:
            self.loop.call_soon(action)
        else:
            action()

    # What must hold

    def enter(self, job: Job) -> None:
        """A job's code runs: it has a slot, and so has every other one."""
        self.inside[job.kind] += 1
        self._each_job_inside_has_a_slot(self.scheduler.snapshot())
        slot = current_slot()
        assert slot is not None
        assert slot.label == job.name

    def _each_job_inside_has_a_slot(self, snapshot: SchedulerSnapshot) -> None:
        assert self.inside["interactive"] <= snapshot.interactive_running
        assert self.inside["batch"] <= snapshot.batch_running

    def check(self) -> None:
        self.scheduler.check()
        snapshot = self.scheduler.snapshot()
        self._each_job_inside_has_a_slot(snapshot)
        # More than the cap only where it was lowered, and then nothing starts.
        assert snapshot.running <= max(self.highest_cap, self.ran_before)
        self.highest_cap, self.ran_before = self.settings["max_concurrency"], snapshot.running
        for kind, present in (
            ("interactive", snapshot.interactive_queued + snapshot.interactive_running),
            ("batch", snapshot.batch_queued + snapshot.batch_running),
        ):
            totals = snapshot.totals[kind]
            ended = totals.completed + totals.failed + totals.cancelled + totals.timed_out + totals.rejected
            assert totals.submitted == ended + present
        infos = self.scheduler.calls()
        assert sum(info.state == "queued" for info in infos) == snapshot.interactive_queued + snapshot.batch_queued
        assert sum(info.state != "queued" for info in infos) == snapshot.running
        assert len({info.label for info in infos}) == len(infos)
        assert not self.complaints
        assert not self.records.messages

    # The end

    def finish(self) -> None:
        """Let everything end, and look at what is left: nothing."""
        self.do_pass(1)  # for what was to be done soon
        for kind in KINDS:
            self.scheduler.resume(kind)
        for job in self.jobs:
            job.gate.set()
        tasks = [*(job.task for job in self.jobs), *self.others]
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.do_pass(3)
        self._everything_settled_once()
        self._nothing_is_left()
        if not self.closed:
            self._no_slot_was_lost_or_gained()
        for task in self.others:
            if (report := task.result()) is not None:
                assert report == self.others[-1].result() or self.others[-1].result() is None
                assert report.finished + report.rejected + report.cancelled + report.abandoned == self.present_at_close

    def _everything_settled_once(self) -> None:
        for job in self.jobs:
            assert job.task.done()
            assert job.task.cancelled() or job.task.exception() is None, job.task.exception()
            assert job.calls <= 1
            assert not (job.calls and job.outcome in NEVER_RAN)
            assert job.calls or job.outcome not in ("returned", "Boom", "RunTimeout", "SchedulerMisuse")
            assert job.outcome or not job.calls
        for kind in KINDS:
            self._totals_are_what_callers_saw(kind)
        if self.told is not None:
            self.told.check_complete()

    def _totals_are_what_callers_saw(self, kind: Kind) -> None:
        totals = self.scheduler.snapshot().totals[kind]
        jobs = [job for job in self.jobs if job.kind == kind and job.submitted and job.outcome]
        seen = Counter(COUNTED_AS[job.outcome] for job in jobs)
        assert (totals.completed, totals.failed) == (seen["completed"], seen["failed"])
        assert totals.timed_out == seen["timed_out"]
        assert totals.cancelled + totals.rejected == seen["cancelled"] + seen["rejected"]
        # A cancel that meets a refusal before the caller has woken: counted as rejected, seen as the cancel.
        met = sum(job.outcome == "CancelledError" and not job.calls for job in jobs)
        assert 0 <= totals.rejected - seen["rejected"] <= met
        assert totals.started >= sum(job.calls for job in jobs)

    def _nothing_is_left(self) -> None:
        snapshot = self.scheduler.snapshot()
        assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (0, 0, 0)
        assert self.scheduler.calls() == ()
        assert not asyncio.all_tasks(self.loop)
        assert not [timer for _, _, timer in self.loop._clock.timers if not timer.cancelled()]

    def _no_slot_was_lost_or_gained(self) -> None:
        cap, before = self.settings["max_concurrency"], len(self.jobs)
        self.scheduler.configure(max_queued_interactive=None)
        waits = {"way": "waits", "through": "submit", "lasts": 0, "patience": None, "options": {}}
        self.do_arrive(times=cap + 2, kind="interactive", **waits)
        self.do_pass(3)
        assert self.inside == {"interactive": cap, "batch": 0}
        for job in self.jobs[before:]:
            job.gate.set()
        self.do_pass(5)
        assert [job.outcome for job in self.jobs[before:]] == ["returned"] * (cap + 2)

    def dispose(self) -> None:
        logging.getLogger("asyncio").removeHandler(self.records)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.set_exception_handler(lambda loop, context: None)
        self.do_quietly()
        self.loop.close()

    def do_quietly(self) -> None:
        for job in self.jobs:
            job.gate.set()
        for _ in range(5):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()


class Told:
    """A listener that replays the events: the only view in which each single start can be judged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state: dict[str, str] = {}
        self.kinds: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        self.world.trace.append((self.world.loop.time(), "event", event))
        if isinstance(event, LimitChanged):
            assert event.before != event.after
            return
        assert event.label is not None
        before = self.state.get(event.label)
        self.kinds[event.label] = event.kind
        if isinstance(event, CallQueued):
            assert before is None
            self.state[event.label] = "queued"
        elif isinstance(event, CallStarted):
            assert before in (None, "queued")
            self._judge(event)
            self.state[event.label] = "running"
        elif isinstance(event, CallFinished):
            assert before == "running" or (before == "queued" and event.outcome == "cancelled" and event.ran == 0.0)
            self.state[event.label] = "gone"
        else:
            assert isinstance(event, CallRejected)
            assert before in (None, "queued")
            self.state[event.label] = "gone"

    def number(self, kind: str, state: str) -> int:
        return sum(self.kinds[label] == kind and now == state for label, now in self.state.items())

    def _judge(self, event: CallStarted) -> None:
        """The caps, at the moment of each start."""
        settings = self.world.settings
        batch, interactive = self.number("batch", "running"), self.number("interactive", "running")
        assert batch + interactive < settings["max_concurrency"]
        if event.kind == "interactive":
            return
        limit = settings["batch_max_concurrency"]
        policy = settings["policy"]
        if isinstance(policy, FixedPolicy):
            limit = min(limit, policy.limit)
        elif isinstance(policy, Headroom):
            limit = min(limit, policy.total - interactive - self.number("interactive", "queued"))
        assert batch < max(limit, settings["batch_min_concurrency"])

    def check_complete(self) -> None:
        assert set(self.state.values()) <= {"gone"}
        submitted = {job.name for job in self.world.jobs if job.submitted and job.outcome}
        assert set(self.state) == submitted
