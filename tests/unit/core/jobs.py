"""The dullest call that admission can work with, and a batch limit moved by hand; for tests of the core.

`from tests.unit.core.jobs import Job, ScriptedLimit, arrive, batch, make_admission, occupy, release`
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_traffic_scheduler.core.admission import GONE, QUEUED, Admission, Limits

__all__ = ["Job", "ScriptedLimit", "arrive", "batch", "make_admission", "occupy", "release"]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Job:
    """The least that admission can work with."""

    interactive: bool = True
    priority: float = 0
    deadline: float = math.inf
    submitted: float = 0.0
    observed: bool = True
    left: bool = False
    number: int = 0
    state: int = GONE
    queued_at: float = 0.0
    started_at: float = 0.0
    tenant: str | None = None

    @property
    def waiting(self) -> bool:
        return self.state == QUEUED


class ScriptedLimit:
    """A batch limit set by hand, which counts how often it was asked."""

    def __init__(self, value: int = 100, rises_at: float = math.inf) -> None:
        self.value = value
        self.rises_at = rises_at
        self.asked = 0
        self.fresh, self.kept, self.kept_until = False, 0, -math.inf  # it keeps nothing

    def limit(self, now: float) -> int:
        self.asked += 1
        return self.value

    def next_look(self, now: float) -> float:
        return self.rises_at


def make_admission(
    max_concurrency: int = 2, batch_max: int = 1, *, batch_min: int = 1, limiter: ScriptedLimit | None = None
) -> Admission[Job]:
    limits = Limits(max_concurrency=max_concurrency, batch_max=batch_max, batch_min=batch_min)
    return Admission(limits, ScriptedLimit() if limiter is None else limiter)


def batch(*, priority: float = 0, deadline: float = math.inf, submitted: float = 0.0) -> Job:
    return Job(interactive=False, priority=priority, deadline=deadline, submitted=submitted)


def arrive(admission: Admission[Job], *jobs: Job) -> None:
    """Each job runs or waits, and what may run runs, as after a submit."""
    for job in jobs:
        admission.offer(job)
        admission.fill(job.submitted)
        admission.check()


def occupy(admission: Admission[Job]) -> list[Job]:
    """Interactive jobs in every free slot."""
    jobs = [Job() for _ in range(admission.limits.max_concurrency - admission.running)]
    arrive(admission, *jobs)
    return jobs


def release(admission: Admission[Job], job: Job, now: float = 0.0) -> list[Job]:
    """Take back one slot; returns who got it."""
    admission.release(job)
    started = admission.fill(now)
    admission.check()
    admission.check_conserving(now)
    return started
