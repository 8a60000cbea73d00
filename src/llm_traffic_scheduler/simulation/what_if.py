"""What a policy would have done to traffic, beside that traffic without batch, and what people do without a scheduler.

Floor: fourth. Virtual time; each arm has an event loop, a backend and, if it is ours, a scheduler of its own.
Rules: those of `runner`. A first pass without batch measures what the interactive calls cost by themselves. The last
fixed split has the mean of our limit: the number that nobody knows before, and the honest opponent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from llm_traffic_scheduler import LimitPolicy, TrafficScheduler

from .arms import OURS, Arm, FixedSplit, Unscheduled, opponents
from .backend import Backend
from .batching_server import A100, BatchingServer
from .progress import Progress, unheard
from .results import RunResult
from .runner import Workload, run_arm, sampling
from .shapes import Agents
from .traces import CallLength, RecordedCall, check_fits

__all__ = ["Answer", "Question", "what_if"]

_RUNS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What would this policy have done to this traffic?

    Attributes:
        interactive: calls in order of arrival, or agents.
        span: seconds; in them interactive calls arrive and batch work is counted.
        batch: lengths of batch calls, taken in this order, round and round.
        policy: makes the policy, from the interactive P95 in seconds that a first pass measures without batch.
        target: likewise, the P95 that interactive calls are judged by.
        backend: makes the backend; each run has its own.
        healthy: the same for the first pass, without batch, if nothing shall go wrong in it; None: `backend`.
        fault: from when to when `backend` is not healthy, in seconds; for pictures, nothing is steered by it.
        most_tokens: of a call that the backend can serve, prompt and answer.
        max_concurrency, batch_max, batch_min: the scheduler's bounds, in calls; the other arms get the first two.
        window: seconds over which the scheduler looks at interactive calls.
        backlog: batch calls that are submitted and not finished, at all times.
    """

    interactive: Sequence[RecordedCall] | Agents
    span: float
    batch: Sequence[CallLength]
    policy: Callable[[float], LimitPolicy]
    target: Callable[[float], float]
    backend: Callable[[], Backend] = BatchingServer
    healthy: Callable[[], Backend] | None = None
    fault: tuple[float, float] | None = None
    most_tokens: float = A100.kv_tokens - 1
    max_concurrency: int = 128
    batch_max: int = 64
    batch_min: int = 1
    window: float = 10.0
    backlog: int = 256


@dataclass(frozen=True, slots=True)
class Answer:
    """What each arm did; the last one is ours.

    Attributes:
        policy: ours, as it shows itself.
        target: the interactive P95 that calls are judged by, in seconds.
        alone: the traffic without any batch work.
        arms: the runs by the names of their arms.
    """

    question: Question
    policy: str
    target: float
    alone: RunResult
    arms: dict[str, RunResult]

    @property
    def ours(self) -> RunResult:
        """The run with this scheduler."""
        return self.arms[OURS]

    @property
    def cap_kept(self) -> bool:
        """Whether our arm never had more calls at the backend than `max_concurrency`."""
        return self.ours.peak_at_server <= self.question.max_concurrency


def what_if(question: Question, *, progress: Progress = unheard) -> Answer:
    """Run the traffic through each arm, one after the other; `progress` hears of it.

    Raises: `TraceError` for a call that the backend could never serve, `ConfigError` for bounds that cannot be; what
    goes wrong in a run, as `run_arm`.
    """
    check_fits(question.batch, "batch lengths", question.most_tokens)
    if not isinstance(question.interactive, Agents):
        check_fits((call.length for call in question.interactive), "traffic", question.most_tokens)
    _scheduler(question, question.policy(1.0))  # what it refuses, it shall refuse before an hour of traffic has run

    def run(
        arm: Callable[[], Arm], *, backlog: int = question.backlog, backend: Callable[[], Backend] = question.backend
    ) -> RunResult:
        workload = Workload(
            interactive=question.interactive,
            span=question.span,
            batch=question.batch,
            backlog=backlog,
            backend=backend,
            reports=True,
        )
        every = sampling(question.span)
        return run_arm(workload, arm, sample_every=every, progress=lambda share: progress(share / _RUNS))

    alone = run(Unscheduled, backlog=0, backend=question.healthy or question.backend)
    p95 = alone.interactive.p95
    policy = question.policy(p95)
    arms = {
        name: run(lambda arm=arm: arm)  # type: ignore[misc]
        for name, arm in opponents(question.max_concurrency, question.batch_max).items()
    }
    ours = run(lambda: _scheduler(question, policy))
    split = max(1, round(fmean(limit for _, limit in ours.limits)))
    arms[f"fixed split at our mean ({split})"] = run(lambda: FixedSplit(question.max_concurrency, split))
    return Answer(question, repr(policy), question.target(p95), alone, {**arms, OURS: ours})


def _scheduler(question: Question, policy: LimitPolicy) -> TrafficScheduler:
    return TrafficScheduler(
        max_concurrency=question.max_concurrency,
        batch_max_concurrency=question.batch_max,
        batch_min_concurrency=question.batch_min,
        policy=policy,
        window=question.window,
    )
