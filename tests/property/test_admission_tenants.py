"""Admission with tenants, a bound on them and calls that give way, under every order of events.

Who is next is `test_fair_queue.py`'s. Here: no call that may run waits, none beyond the bound runs, none is lost.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llm_traffic_scheduler.core.admission import AWAY, GONE, QUEUED, RUNNING, Admission, Limits
from tests.property.test_fair_queue import step
from tests.unit.core.jobs import Job, ScriptedLimit

WHICH = st.integers(0, 99)
BOUNDS = st.sampled_from([None, 1, 1, 2, 3])


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    cap = draw(st.integers(2, 6))
    batch_max = draw(st.integers(1, cap - 1))
    queued = draw(st.sampled_from([None, None, 3]))
    starvation = draw(st.sampled_from([None, 0.0]))
    return Limits(cap, batch_max, draw(st.integers(1, batch_max)), queued, None, starvation, draw(BOUNDS))


ARRIVE = step(
    "arrive",
    interactive=st.booleans(),
    tenant=st.sampled_from(["a", "a", "b", "c", None]),
    priority=st.sampled_from([0, 0, 1]),
    patience=st.sampled_from([math.inf, math.inf, 2.0]),
    times=st.integers(1, 5),
)
RELEASE = step("release", which=WHICH, times=st.integers(1, 3))
REST = st.one_of(
    step("withdraw", which=WHICH),
    step("walk_away", which=WHICH),
    step("give_up", which=WHICH),
    step("come_back", which=WHICH),
    step("leave", which=WHICH),
    step("set_limits", limits=limits()),
    step("pause", kinds=st.sampled_from([frozenset(), frozenset({"interactive"}), frozenset({"batch"})])),
    step("pass_time"),
)
STEPS = st.sampled_from([ARRIVE, ARRIVE, RELEASE, RELEASE, REST, REST]).flatmap(lambda it: it)


class TenantsMachine(RuleBasedStateMachine):
    @initialize(limits=limits(), batch_limit=st.integers(1, 6))
    def build(self, limits: Limits, batch_limit: int) -> None:
        self.now = 0.0
        self.limiter = ScriptedLimit(batch_limit)
        self.admission: Admission[Job] = Admission(limits, self.limiter)
        self.jobs: list[Job] = []

    @rule(step=STEPS)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)
        self.settle()

    def arrive(self, interactive: bool, tenant: str | None, priority: float, patience: float, times: int) -> None:
        for _ in range(times):
            job = Job(interactive, priority, self.now + patience, self.now, tenant=tenant)
            free = not any(other.interactive == interactive for other in self.of(QUEUED) if self.may_start(other))
            may_start = free and self.may_start(job)
            self.admission.offer(job)
            assert (job.state == RUNNING) == may_start
            self.jobs.append(job)

    def release(self, which: int, times: int) -> None:
        for _ in range(times):
            if job := self.pick(RUNNING, which):
                self.admission.release(job)

    def withdraw(self, which: int) -> None:
        if job := self.pick(QUEUED, which):
            self.admission.withdraw(job)

    def walk_away(self, which: int) -> None:
        if job := self.pick(QUEUED, which):
            job.left = True

    def give_up(self, which: int) -> None:
        if job := self.pick(RUNNING, which):
            self.admission.give_up(job)

    def come_back(self, which: int) -> None:
        if job := self.pick(AWAY, which):
            self.admission.come_back(job, self.now)

    def leave(self, which: int) -> None:
        if job := self.pick(AWAY, which):
            self.admission.leave(job)

    def set_limits(self, limits: Limits) -> None:
        self.admission.set_limits(limits)

    def pause(self, kinds: frozenset[str]) -> None:
        self.admission.set_paused(kinds, self.now)

    def pass_time(self) -> None:
        self.now += 1.0

    def settle(self) -> None:
        self.admission.expire(self.now)
        before = self.runs()
        for job in self.admission.fill(self.now):
            before[job.tenant] += 1
            bound = self.admission.limits.max_running_per_tenant
            assert bound is None or before[job.tenant] <= bound

    def of(self, state: int) -> list[Job]:
        return [job for job in self.jobs if job.state == state]

    def pick(self, state: int, which: int) -> Job | None:
        jobs = self.of(state)
        return jobs[which % len(jobs)] if jobs else None

    def runs(self) -> Counter[str | None]:
        return Counter(job.tenant for job in self.of(RUNNING))

    def may_start(self, job: Job) -> bool:
        limits, running = self.admission.limits, self.of(RUNNING)
        bound = limits.max_running_per_tenant
        if ("interactive" if job.interactive else "batch") in self.admission.paused:
            return False
        if len(running) >= limits.max_concurrency or (bound is not None and self.runs()[job.tenant] >= bound):
            return False
        batch = sum(not other.interactive for other in running)
        return job.interactive or batch < min(limits.batch_max, max(limits.batch_min, self.limiter.value))

    @invariant()
    def no_call_that_may_run_waits(self) -> None:
        assert not [job for job in self.of(QUEUED) if self.may_start(job)]
        self.admission.check()
        self.admission.check_conserving(self.now)

    @invariant()
    def no_call_is_lost_and_none_counted_twice(self) -> None:
        present = [job for job in self.jobs if job.state != GONE]
        calls = list(self.admission.calls())
        assert len(calls) == len(present)
        assert set(calls) == set(present)
        if (tenants := self.admission.tenants) is not None:
            runs = self.runs()
            assert all(tenants.running(tenant) == runs[tenant] for tenant in ("a", "b", "c", None))

    def teardown(self) -> None:
        """Nothing is left of anybody."""
        for job in self.jobs:
            if job.state == RUNNING:
                self.admission.release(job)
            elif job.state == QUEUED:
                self.admission.withdraw(job)
            elif job.state == AWAY:
                self.admission.leave(job)
        if self.admission.tenants is not None:
            assert repr(self.admission.interactive_queue) == "<FairQueue: 0 queued, 0 tenants, 0 ready>"
            assert repr(self.admission.batch_queue) == "<FairQueue: 0 queued, 0 tenants, 0 ready>"


TestTenantsMachine = TenantsMachine.TestCase
