"""Admission under every order of events, against a twin of plain lists that are sorted at each look.

Keeps promises 1 to 9, 13 and 14 of SEMANTICS.md as far as the core decides them, and 33: `check()` after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llm_traffic_scheduler.core.admission import GONE, QUEUED, RUNNING, Admission, Limits
from tests.unit.core.jobs import Job

# Multiples of 1/4 stay exact however many are added, so "at the deadline" is hit and not just passed.
TIMES = st.integers(0, 16).map(lambda quarters: quarters / 4)
BOUNDS = st.sampled_from([None, None, None, 0, 5])
KINDS = st.sampled_from(["interactive", "batch"])


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    cap = draw(st.integers(2, 6))
    batch_max = draw(st.integers(1, cap - 1))
    batch_min = draw(st.integers(1, batch_max))
    bound, other = draw(BOUNDS), draw(BOUNDS)
    return Limits(cap, batch_max, batch_min, bound, other, draw(st.sampled_from([None, 0.0, 1.0, 3.0])))


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


ARRIVE = step(
    "arrive",
    kind=KINDS,
    priority=st.sampled_from([-1, 0, 0, 0.5, 2]),
    patience=st.sampled_from([math.inf, math.inf, math.inf, math.inf, 2.0, 1.0, 0.25, 0.0, -1.0]),
    observed=st.booleans(),
    times=st.integers(1, 9),
    late=st.sampled_from([0.0, 0.0, 0.0, 0.25, 2.0]),
)
RELEASE = step("release", which=st.integers(0, 9), times=st.integers(1, 3))
TIME = st.one_of(step("pass_time", elapsed=TIMES), step("block_the_loop", elapsed=TIMES))
LEAVE = st.one_of(step("withdraw", which=st.integers(0, 99)), step("walk_away", which=st.integers(0, 99)))
STEER = st.one_of(
    step("set_limits", limits=limits()),
    step("pause", kinds=st.sampled_from([frozenset(), frozenset(), frozenset({"interactive"}), frozenset({"batch"})])),
    step("think_anew", value=st.integers(0, 6), moves=st.lists(st.tuples(TIMES, st.integers(0, 6)), max_size=4)),
)
# one_of would count what is named twice once.
STEPS = st.sampled_from([ARRIVE, ARRIVE, ARRIVE, RELEASE, RELEASE, RELEASE, TIME, TIME, LEAVE, STEER]).flatmap(
    lambda it: it
)


@dataclass
class Script:
    """A batch limit that moves at times written down beforehand."""

    value: int = 8
    steps: list[tuple[float, int]] = field(default_factory=list)
    fresh: bool = False  # it keeps nothing
    kept: int = 0
    kept_until: float = -math.inf

    def limit(self, now: float) -> int:
        return next((value for at, value in reversed(self.steps) if at <= now), self.value)

    def next_look(self, now: float) -> float:
        return next((at for at, _ in self.steps if at > now), math.inf)


class Dull:
    """The same promises, told the dullest way: lists, sorted each time."""

    def __init__(self, limits: Limits, script: Script) -> None:
        self.limits = limits
        self.script = script
        self.paused: frozenset[str] = frozenset()
        self.waiting: list[Job] = []  # in the order of arrival
        self.running: list[Job] = []
        self.dropped: list[Job] = []
        self.batch_stood_still_since = -math.inf

    def queue(self, kind: str) -> list[Job]:
        """Who waits, first come, first served within one priority: sorted() is stable."""
        return sorted((job for job in self.waiting if kind_of(job) == kind), key=lambda job: job.priority)

    def runs(self, kind: str) -> int:
        return sum(kind_of(job) == kind for job in self.running)

    def may_start(self, kind: str, now: float) -> bool:
        """Whether one more call of the kind may run, whoever waits."""
        if kind in self.paused or len(self.running) >= self.limits.max_concurrency:
            return False
        allowed = min(self.limits.batch_max, max(self.limits.batch_min, self.script.limit(now)))
        return kind == "interactive" or self.runs("batch") < allowed

    def starves(self, now: float) -> bool:
        timeout = self.limits.starvation_timeout
        too_few = self.runs("batch") < self.limits.batch_min
        return timeout is not None and too_few and now - self.batch_stood_still_since >= timeout

    def next(self, now: float) -> Job | None:
        """Who gets the next slot; those who would, but whose callers have gone, are dropped."""
        while True:
            chats = self.queue("interactive") if self.may_start("interactive", now) else []
            nightly = self.queue("batch") if self.may_start("batch", now) else []
            first = nightly if chats and nightly and self.starves(now) else chats or nightly
            if not first or not first[0].left:
                return first[0] if first else None
            self.waiting.remove(first[0])
            self.dropped.append(first[0])

    def start(self, job: Job, now: float) -> None:
        if job in self.waiting:
            self.waiting.remove(job)
        self.running.append(job)
        if not job.interactive:
            self.batch_stood_still_since = now

    def offer(self, job: Job, now: float) -> int:
        """It runs, waits, or is turned away; a newcomer passes nobody of its kind."""
        kind = kind_of(job)
        queue = self.queue(kind)
        bound = self.limits.max_queued_interactive if job.interactive else self.limits.max_queued_batch
        if not queue and self.may_start(kind, now):
            self.start(job, now)
            return RUNNING
        if (bound is not None and len(queue) >= bound) or job.deadline <= now:
            return GONE
        if not job.interactive and not queue:
            self.batch_stood_still_since = max(self.batch_stood_still_since, now)
        self.waiting.append(job)
        return QUEUED

    def pause(self, paused: frozenset[str], now: float) -> None:
        if "batch" in self.paused - paused:
            self.batch_stood_still_since = max(self.batch_stood_still_since, now)
        self.paused = paused


def kind_of(job: Job) -> str:
    return "interactive" if job.interactive else "batch"


class AdmissionMachine(RuleBasedStateMachine):
    """Does to admission what the shell does to it, in any order."""

    @initialize(limits=limits(), value=st.integers(0, 6))
    def build(self, limits: Limits, value: int) -> None:
        self.now = 0.0
        self.script = Script(value)
        self.admission: Admission[Job] = Admission(limits, self.script)
        self.dull = Dull(limits, self.script)
        self.gone: list[Job] = []
        self.offered = 0

    # One rule and not one for each step: swarm testing would leave out arrivals or releases in half of the runs.
    @rule(step=STEPS)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)
        self.settle()

    def arrive(self, kind: str, priority: float, patience: float, observed: bool, times: int, late: float) -> None:
        """`late`: the first may come while a timer is overdue."""
        self.now += late
        for _ in range(times):
            job = Job(kind == "interactive", priority, self.now + patience, self.now, observed)
            self.offered += 1
            state = self.admission.offer(job)
            assert state == job.state == self.dull.offer(job, self.now)
            if state == GONE:
                self.gone.append(job)
            self.settle()

    def withdraw(self, which: int) -> None:
        if self.dull.waiting:
            job = self.dull.waiting.pop(which % len(self.dull.waiting))
            self.admission.withdraw(job)
            self.leave(job)

    def walk_away(self, which: int) -> None:
        """The caller is cancelled, and will notice later in this loop pass: `withdraw`, if it still waits."""
        if self.dull.waiting:
            self.dull.waiting[which % len(self.dull.waiting)].left = True

    def release(self, which: int, times: int) -> None:
        """Several may come free before anybody settles."""
        for _ in range(min(times, len(self.dull.running))):
            job = self.dull.running.pop(which % len(self.dull.running))
            self.admission.release(job)
            self.leave(job)

    def pass_time(self, elapsed: float) -> None:
        """A timer stands at each `next_look`; in between nothing that may run can be waiting."""
        end = self.now + elapsed
        while (due := self.admission.next_look(self.now)) <= end:
            assert due > self.now
            self.now = due
            self.settle()
        self.now = end
        assert self.dull.next(end) is None, "a call may run, and nobody would have looked"

    def block_the_loop(self, elapsed: float) -> None:
        """The timer comes late."""
        self.now += elapsed

    def set_limits(self, limits: Limits) -> None:
        self.admission.set_limits(limits)
        self.dull.limits = limits

    def pause(self, kinds: frozenset[str]) -> None:
        self.admission.set_paused(kinds, self.now)
        self.dull.pause(kinds, self.now)

    def think_anew(self, value: int, moves: list[tuple[float, int]]) -> None:
        """The policy changes its mind, and will again."""
        self.script.value = value
        self.script.steps = sorted((self.now + 0.25 + after, value) for after, value in moves)

    def leave(self, job: Job) -> None:
        assert job.state == GONE
        self.gone.append(job)

    def settle(self) -> None:
        """What the shell does after each change: expire, then fill; each answer is the twin's."""
        late = [job for job in self.dull.waiting if job.deadline <= self.now]
        expired = self.admission.expire(self.now)
        assert expired == sorted(late, key=lambda job: (job.deadline, job.number))
        for job in expired:
            self.dull.waiting.remove(job)
            self.leave(job)
        for job in self.admission.fill(self.now):
            assert job is self.dull.next(self.now)
            self.dull.start(job, self.now)
            assert (job.state, job.started_at) == (RUNNING, self.now)
            # The caps once more, in their own words: the twin may share a mistake.
            assert len(self.dull.running) <= self.dull.limits.max_concurrency
            assert job.interactive or self.dull.runs("batch") <= self.dull.limits.batch_max
        assert self.dull.next(self.now) is None, "a call that may run is waiting"
        assert self.admission.dropped == self.dull.dropped
        for job in self.dull.dropped:
            self.leave(job)
        self.admission.dropped.clear()
        self.dull.dropped.clear()

    @invariant()
    def all_invariants_hold(self) -> None:
        self.admission.check()
        self.admission.check_conserving(self.now)

    @invariant()
    def no_call_is_lost_or_doubled(self) -> None:
        running, waiting = self.dull.running, self.dull.waiting
        assert len(running) + len(waiting) + len(self.gone) == self.offered
        chats, nightly = self.dull.queue("interactive"), self.dull.queue("batch")
        ordered = sorted(running, key=lambda job: not job.interactive)
        calls = list(self.admission.calls())
        assert set(calls[: len(running)]) == set(ordered)
        assert calls[len(running) :] == [*chats, *nightly]
        assert all(job.state == QUEUED and job.waiting for job in waiting)
        runs = self.dull.runs
        assert self.admission.counts == (runs("interactive"), len(chats), runs("batch"), len(nightly))
        assert self.admission.running == len(running)
        assert self.admission.idle == (not running and not waiting)

    @invariant()
    def ages_are_those_of_the_twin(self) -> None:
        now = self.now
        for kind in ("interactive", "batch"):
            waits = [now - job.queued_at for job in self.dull.queue(kind)]
            assert self.admission.oldest_wait(kind == "interactive", now) == max(waits, default=0.0)
        unfinished = [*self.dull.running, *self.dull.waiting]
        submitted = [job.submitted for job in unfinished if job.interactive and job.observed]
        assert self.admission.oldest_unfinished(now) == now - min(submitted, default=now)
        for threshold in (0.0, 1.0, 4.0):
            older = sorted((now - at for at in submitted if now - at > threshold), reverse=True)
            first_of_others = min((at for at in submitted if now - at <= threshold), default=math.inf)
            assert self.admission.unfinished(now, threshold) == (older, first_of_others)

    @invariant()
    def the_next_look_is_the_first_moment_at_which_time_alone_can_change_anything(self) -> None:
        due = min((job.deadline for job in self.dull.waiting), default=math.inf)
        slot_free = len(self.dull.running) < self.dull.limits.max_concurrency
        room = slot_free and self.dull.runs("batch") < self.dull.limits.batch_max
        if self.dull.queue("batch") and room and "batch" not in self.dull.paused:
            due = min(due, self.script.next_look(self.now))
        assert self.admission.next_look(self.now) == due


TestAdmissionMachine = AdmissionMachine.TestCase
