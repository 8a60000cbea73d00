"""What each arm would have done to recorded traffic: a trace, an endless batch backlog, one simulated engine.

Floor: fourth. Virtual time; each arm has an engine and an event loop of its own.
Rules: every arm sees the same interactive calls at the same times, and the same batch calls in the same order. The
batch job keeps a fixed number of calls submitted, so an arm that runs them faster gets more. A first pass
without batch work measures what the interactive calls cost by themselves; the scheduler's threshold is a multiple of
its P95. A second fixed split runs afterwards, with the mean of the scheduler's limit: the number that nobody knows
before, and the honest opponent.
"""

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from llm_traffic_scheduler import TrafficScheduler

from .arms import OURS, Arm, FixedSplit, Unscheduled, opponents
from .batching_server import A100, BatchingServer, Engine
from .progress import Progress, unheard
from .recording import ArmRun
from .results import as_arm
from .runner import Workload, run_arm, sampling
from .traces import CallLength, RecordedCall, check_fits

_ARMS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything about a replay that is not the traffic."""

    max_concurrency: int = 128
    batch_max: int = 64
    batch_min: int = 1
    window: float = 10.0
    # interactive_p95_threshold as a multiple of the P95 without batch. Chosen by looking: the pressure law missed
    # 1.25 by 20 and 29 %, 1.5 by 18 and 20 %, 2 by 7 % (recorded chat at half rate, arena), and kept 2.5.
    threshold_factor: float = 2.5
    backlog: int = 256  # batch calls that are submitted and not finished, at all times
    engine: Engine = A100


@dataclass(frozen=True, slots=True)
class Replay:
    """The traffic, the setup, and what each arm did; the last arm is ours."""

    setup: Setup
    traffic: tuple[RecordedCall, ...]
    p95_threshold: float
    alone: ArmRun
    arms: tuple[ArmRun, ...]

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last: what batch work is counted in."""
        return self.traffic[-1].arrival

    def batch_rates(self, arm: ArmRun) -> tuple[float, float]:
        """Batch calls per minute, and their prompt and answer tokens per second; those that ended within the span."""
        ended = [call for call in arm.of_kind("batch") if call.ended <= self.span]
        if not self.span:
            return 0.0, 0.0
        return 60 * len(ended) / self.span, sum(call.tokens for call in ended) / self.span

    @property
    def ours(self) -> ArmRun:
        """The arm with this scheduler."""
        return self.arms[-1]


def builtin_lengths() -> tuple[CallLength, ...]:
    """Lengths of a summarisation job: prompts of 1000 to 4000 tokens, answers of 100 to 500, both uniform.

    Their means are within 5 % of the recorded job in Vidur's repository (2588 and 291).
    """
    # Seeded: the same lengths in every run, and not all alike, or batch calls would march in step.
    draw = random.Random(2024)
    return tuple(CallLength(draw.randint(1000, 4000), draw.randint(100, 500)) for _ in range(4096))


def paced(trace: Sequence[RecordedCall], *, speed: float = 1.0, until: float | None = None) -> tuple[RecordedCall, ...]:
    """The trace with arrivals `speed` times as frequent, cut after `until` seconds of the new time."""
    calls = (RecordedCall(call.arrival / speed, call.length, call.client) for call in trace)
    return tuple(itertools.takewhile(lambda call: until is None or call.arrival <= until, calls))


def replay(
    traffic: Sequence[RecordedCall],
    lengths: Sequence[CallLength],
    *,
    setup: Setup | None = None,
    progress: Progress = unheard,
) -> Replay:
    """Run the traffic through each arm, one after the other.

    Raises: `TraceError` for a call that the engine's memory could not hold.
    """
    setup = setup or Setup()
    check_fits((call.length for call in traffic), "traffic", setup.engine.kv_tokens - 1)
    check_fits(lengths, "batch lengths", setup.engine.kv_tokens - 1)

    span = traffic[-1].arrival
    server = partial(BatchingServer, setup.engine)

    def run(name: str, arm: Arm, *, backlog: int = setup.backlog) -> ArmRun:
        workload = Workload(
            interactive=traffic, span=span, batch=lengths, backlog=backlog, backend=server, grace=math.inf
        )
        return _arm_run(name, arm, workload, progress)

    cap = setup.max_concurrency
    alone = run("no batch at all", Unscheduled(), backlog=0)
    threshold = setup.threshold_factor * alone.interactive.p95
    arms = [run(name, arm) for name, arm in opponents(cap, setup.batch_max).items()]
    ours = run(OURS, _scheduler(setup, threshold))
    split = round(statistics.fmean(limit for _, limit in ours.limits))
    hindsight = run(f"fixed split at our mean ({split})", FixedSplit(cap, split))
    return Replay(setup, tuple(traffic), threshold, alone, (*arms, hindsight, ours))


def _scheduler(setup: Setup, p95_threshold: float) -> TrafficScheduler:
    return TrafficScheduler(
        max_concurrency=setup.max_concurrency,
        batch_max_concurrency=setup.batch_max,
        batch_min_concurrency=setup.batch_min,
        interactive_p95_threshold=p95_threshold,
        window=setup.window,
    )


def _arm_run(name: str, arm: Arm, workload: Workload, progress: Progress) -> ArmRun:
    every = sampling(workload.span)
    run = run_arm(workload, lambda: arm, sample_every=every, progress=lambda share: progress(share / _ARMS))
    return as_arm(name, run)
