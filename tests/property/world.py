"""One scheduler on one virtual loop, and everything that can be done to it, step by step from outside.

Each step is followed by what must always hold. The same steps give the same `trace`, whatever the addresses.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from llm_traffic_scheduler import CallInfo, CloseReport, SchedulerSnapshot, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.ledger import assert_accounted
from tests.property.hearing import Hearing
from tests.property.world_jobs import KINDS, Boom, Job, Kind
from tests.property.world_listener import Told
from tests.property.world_sources import LONGEST_CLEAN_UP
from tests.property.world_streams import PREFIX, Readers

__all__ = ["WAITS", "Records", "World", "forgive"]

# What a job does that only takes a slot until it is told to finish.
WAITS: dict[str, Any] = {
    "way": "waits",
    "through": "submit",
    "lasts": 0.0,
    "patience": None,
    "scarred": False,
    "labelled": True,
    "options": {},
}
ROUNDING = 1e-9
NEVER_RAN = ("QueueFull", "QueueTimeout", "SchedulerClosed")


class Records(logging.Handler):
    """What asyncio logs: an exception that nobody retrieved, a task that was destroyed."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def forgive(scheduler: TrafficScheduler) -> None:
    """However much preemption has cost, it may cost more."""
    if (preemption := scheduler._home.preemption) is not None:
        preemption._time.lose(scheduler._home.clock(), -1000.0)


class World:
    """A scheduler, its loop and its jobs. Every method that begins with `do_` is a step.

    `lavish`: it does not matter how much is lost when calls are preempted. `hearing`: a policy hears of single calls.
    `streams`: there are some.
    """

    def __init__(
        self, listening: bool, lavish: bool, hearing: bool = False, streams: bool = False, **settings: Any
    ) -> None:
        self.loop = VirtualTimeLoop()
        self.settings = settings
        self.hearing = Hearing(streams=streams) if hearing else None
        self.scheduler = TrafficScheduler(**(settings if self.hearing is None else self.hearing.around(settings)))
        if self.hearing is not None:
            self.hearing.scheduler = self.scheduler
        self.jobs: list[Job] = []
        self.readers = Readers(self)
        self.others: list[asyncio.Task[Any]] = []
        self.lavish = lavish
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
        self.loop.set_exception_handler(self._complain)
        self.records = Records()
        logging.getLogger("asyncio").addHandler(self.records)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.readers.forgives(context.get("exception")):
            self.complaints.append(context)

    # Steps

    def do_arrive(self, times: int, labelled: bool, **arguments: Any) -> None:
        labelled = labelled or self.told is not None
        for _ in range(times):
            self.jobs.append(Job(self, f"job-{len(self.jobs)}", labelled=labelled, **arguments))

    def do_squeeze(self, batch: int, people: int, passes: int, roomy: bool, **arguments: Any) -> None:
        """Batch calls that may be preempted, and people who want their slots; `roomy`: nothing keeps batch down."""
        if roomy:
            for kind in KINDS:
                self.scheduler.resume(kind)
            bounds = {"max_concurrency": 4, "batch_max_concurrency": 3, "batch_min_concurrency": 1}
            self._configure({**bounds, "policy": None, "interactive_rps_threshold": None, "smoothing": None})
        options = {**arguments.pop("options"), "preemptible": True, "queue_timeout": None}
        self.do_arrive(batch, kind="batch", through="submit", options=options, **arguments)
        self.do_pass(passes)
        self.do_arrive(people, kind="interactive", **WAITS)

    def do_finish(self, which: int, fails: bool, soon: bool) -> None:
        waiting = [job for job in self.jobs if not job.gate.is_set()]
        if waiting:
            job = waiting[which % len(waiting)]
            job.verdict = Boom() if fails else None
            self._at(soon, job.gate.set)

    def do_cancel(self, which: int, aim: str, soon: bool) -> None:
        """`aim`: at calls that have a slot and do not know it, at those that we told to stop, or at any."""
        alive = [job for job in self.jobs if job.alive]
        if aim == "granted":
            running = {info.label for info in self.scheduler.calls() if info.state == "running"}
            aimed_at = [job for job in alive if job.name in running and not job.calls]
        else:
            aimed_at = [job for job in alive if job.told_to_stop and aim == "told to stop"]
        chosen = aimed_at or alive
        if chosen:
            self._at(soon, chosen[which % len(chosen)].cancel)

    def do_meet(self, what: str, which: int) -> None:
        """A cancel meets what the scheduler does to the same call in the same loop pass."""
        alive = [job for job in self.jobs if job.alive and job.submitted]
        if what == "grant":
            inside = [job for job in alive if job.calls and not job.gate.is_set()]
            if inside:
                inside[which % len(inside)].gate.set()
                self.do_pass(1)
                self.do_cancel(which, "granted", soon=False)
            return
        due = {job: job.run_deadline if what == "run timeout" else job.queue_deadline for job in alive}
        ahead = [job for job in alive if self.loop.time() < due[job] < math.inf]
        if ahead:
            job = ahead[which % len(ahead)]
            self.loop.call_at(due[job], self.loop.stop)
            self.loop.run_forever()
            self.check()
            job.cancel()

    def do_configure(self, soon: bool, **changes: Any) -> None:
        self._at(soon, lambda: self._configure(changes))

    def _configure(self, changes: dict[str, Any]) -> None:
        self.settings.update(changes)
        self.highest_cap = max(self.highest_cap, self.settings["max_concurrency"])
        if changes.get("policy") is not None:
            self.settings.update(interactive_rps_threshold=None, interactive_p95_threshold=None, smoothing=None)
        self.scheduler.configure(**(changes if self.hearing is None else self.hearing.around(changes)))

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
        assert (slot.kind, slot.label) == (job.kind, job.name if job.labelled else None)

    def _each_job_inside_has_a_slot(self, snapshot: SchedulerSnapshot) -> None:
        assert self.inside["interactive"] + self.readers.inside("interactive") <= snapshot.interactive_running
        assert self.inside["batch"] + self.readers.inside("batch") <= snapshot.batch_running

    def check(self) -> None:
        if self.lavish:
            forgive(self.scheduler)
        self.scheduler.check()
        if self.hearing is not None:
            self.hearing.check()
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
        assert len(infos) == snapshot.running + snapshot.interactive_queued + snapshot.batch_queued
        self._calls_are_those_of_living_jobs([info for info in infos if not (info.label or "").startswith(PREFIX)])
        self.readers.check(infos)
        # One of the scheduler's own while somebody waits, and one of close().
        ours = bool(snapshot.interactive_queued or snapshot.batch_queued) + self.closed
        assert self.armed_timers <= ours + sum(job.timers for job in self.jobs) + self.readers.timers, (
            "a timer too many"
        )
        assert not self.complaints
        assert not self.records.messages

    def _calls_are_those_of_living_jobs(self, infos: list[CallInfo]) -> None:
        alive = {job.name: job for job in self.jobs if job.alive}
        assert len(infos) <= len(alive)
        for info in infos:
            if info.label is None:
                continue
            job = alive.pop(info.label)  # KeyError: its caller has gone, and it still holds a place or a slot
            if info.state == "queued":
                assert not job.calls or (job.preemptible and job.stops and not job.at_work)
                assert self.loop.time() <= job.queue_deadline + ROUNDING, "nobody looked in time"
            elif info.state == "overdue":
                just_now = self.loop.time() <= job.run_deadline + ROUNDING  # and it has not heard of it yet
                assert just_now or job.way == "swallows cancellation"

    @property
    def armed_timers(self) -> int:
        return sum(not timer.cancelled() for _, _, timer in self.loop._clock.timers)

    # The end

    def finish(self) -> None:
        """Let everything end, and look at what is left: nothing."""
        self.do_pass(1)  # for what was to be done soon
        for kind in KINDS:
            self.scheduler.resume(kind)
        for job in self.jobs:
            job.gate.set()
        tasks = [*(job.task for job in self.jobs), *self.readers.end(), *self.others]
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.do_sleep(LONGEST_CLEAN_UP)  # of a stream that was dropped, for which nobody waits
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
            assert job.calls <= 1 + 2 * job.preemptible
            assert not (job.calls and job.outcome in NEVER_RAN)
            assert job.calls or job.outcome not in ("returned", "Boom", "RunTimeout", "SchedulerMisuse")
            assert job.outcome or not job.calls
        self.readers.check_end()
        for kind in KINDS:
            self._totals_are_what_callers_saw(kind)
        if self.told is not None:
            self.told.check_complete()

    def _totals_are_what_callers_saw(self, kind: Kind) -> None:
        totals = self.scheduler.snapshot().totals[kind]
        jobs = [job for job in self.jobs if job.kind == kind and job.submitted and job.outcome]
        met = sum(job.outcome == "CancelledError" and not job.calls for job in jobs)
        streams = self.readers.outcomes(kind)
        outcomes = Counter(job.outcome for job in jobs) + streams
        called = sum(job.calls > 0 for job in jobs) + self.readers.started(kind)
        assert_accounted(totals, outcomes, called, met + streams["CancelledError"])
        again = sum(job.calls - 1 for job in jobs if job.calls)
        assert again <= totals.preempted <= sum(job.stops for job in jobs)

    def _nothing_is_left(self) -> None:
        if self.hearing is not None:
            self.hearing.check_end()
        snapshot = self.scheduler.snapshot()
        assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (0, 0, 0)
        assert self.scheduler.calls() == ()
        assert not asyncio.all_tasks(self.loop)
        assert self.armed_timers == 0

    def _no_slot_was_lost_or_gained(self) -> None:
        cap, before = self.settings["max_concurrency"], len(self.jobs)
        self.scheduler.configure(max_queued_interactive=None, max_running_per_tenant=None)
        self.do_arrive(times=cap + 2, kind="interactive", **WAITS)
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
        self.readers.dispose()

    def do_quietly(self) -> None:
        for job in self.jobs:
            job.gate.set()
        for reader in self.readers.all:
            reader.feed.end()
        for _ in range(5):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
