"""One arm on one instance: the figures that are kept of a run.

Floor: fourth. A trial is a small value that goes to another process and comes back as figures.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from ..arms import Unscheduled
from ..results import RunResult
from ..runner import Workload, run_arm
from .bursts import Burst, bursts_of
from .families import Candidate, Room
from .instances import Instance

__all__ = ["Figures", "Trial", "run_trial", "seconds_to_open"]

BACKLOG: Final = 256  # batch calls submitted at all times
_SAMPLE_EVERY: Final = 5.0
_SAMPLE_BURSTS_EVERY: Final = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """`candidate` None: the traffic without any batch work, by whose P95 (`p95_alone`) all else is measured."""

    instance: Instance
    room: Room
    candidate: Candidate | None = None
    p95_alone: float = math.nan

    def __repr__(self) -> str:
        arm = f"{self.candidate.family} {self.candidate.setting}" if self.candidate else "no batch"
        instance = self.instance
        return f"{arm} on {instance.shape}, seed {instance.seed}, {instance.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is kept of a run. Seconds, tokens per second, calls.

    Attributes:
        p50, p95, p99: interactive latency end to end; infinite where so many calls failed or never ended.
        ttft_p50, ttft_p95, ttft_p99: to first token.
        within_target: share of interactive calls within the arm's target, if it has one.
        limit_turns, total_turns: changes of direction per minute, as far as samples every 5 s show; None for an arm
            whose limit does not move.
        idle_slots: of `batch_max`, how many batch did not have on average while it waited.
        most_starts, most_added: batch calls that began at one instant, and by how many they became more.
        bursts: what each burst did to it, where the shape has bursts.
    """

    calls: int
    unfinished: int
    failed: int
    p50: float
    p95: float
    p99: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    within_target: float | None
    goodput: float
    wasted_tokens: int
    limit_turns: float | None
    total_turns: float | None
    idle_slots: float
    most_starts: int
    most_added: int
    bursts: tuple[Burst, ...]


def run_trial(trial: Trial) -> Figures:
    """Run it, in virtual time."""
    candidate, room = trial.candidate, trial.room
    if candidate is None:
        return _figures(trial, run_arm(trial.instance.workload(backlog=0), Unscheduled))
    every = _SAMPLE_BURSTS_EVERY if trial.instance.shape == "burst" else _SAMPLE_EVERY
    workload = replace(trial.instance.workload(backlog=BACKLOG), reports=candidate.reports)
    with _unwarned():
        return _figures(trial, run_arm(workload, lambda: candidate.build(room, trial.p95_alone), sample_every=every))


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without the scheduler's warnings of thresholds that do not fit: a sweep is made of such."""
    log = logging.getLogger("llm_traffic_scheduler")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _figures(trial: Trial, run: RunResult) -> Figures:
    target = trial.candidate.target if trial.candidate else None
    latency, first = run.interactive, run.first_token
    minutes = run.span / 60
    return Figures(
        calls=latency.count,
        unfinished=run.unfinished,
        failed=run.failed,
        p50=latency.p50,
        p95=latency.p95,
        p99=latency.p99,
        ttft_p50=first.p50,
        ttft_p95=first.p95,
        ttft_p99=first.p99,
        within_target=None if target is None else run.within(target * trial.p95_alone),
        goodput=run.goodput,
        wasted_tokens=run.wasted_tokens,
        limit_turns=run.limit_turns / minutes if run.limits else None,
        total_turns=run.total_turns / minutes if run.limits else None,
        idle_slots=run.idle_slots(trial.room.batch_max),
        most_starts=run.most_starts,
        most_added=run.most_added,
        bursts=bursts_of(run) if trial.instance.shape == "burst" else (),
    )


def seconds_to_open(candidate: Candidate, room: Room, *, span: float = 180.0) -> float:
    """Seconds from a cold start without interactive traffic until `batch_max` batch calls run; infinite if never."""
    instance = Instance("steady", 0, span)
    batch = instance.workload(backlog=BACKLOG)
    idle = Workload(interactive=(), span=span, batch=batch.batch, backlog=BACKLOG, backend=batch.backend)
    run = run_arm(idle, lambda: candidate.build(room, 10.0), sample_every=0.5)
    return next((sample.time for sample in run.samples if sample.batch >= room.batch_max), math.inf)
