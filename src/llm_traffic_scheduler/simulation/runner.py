"""What one arm does with one workload: interactive traffic beside a batch backlog, measured in virtual time.

Floor: fourth. Each run has an event loop, an arm and a backend of its own, so runs are alike to the last digit and can
be spread over processes (`pool.py`).
Rules: the same workload is the same arrivals and the same lengths in the same order for every arm (common random
numbers). The batch job keeps a fixed number of calls submitted, so an arm that runs them faster gets more. Interactive
calls that are in flight when the traffic ends are waited for, for `grace` seconds, with the backlog still pressing.
Counting happens here, outside the arm: an arm that broke its cap could not hide it.
Good for ranking policies, not for absolute GPU figures.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.testing import run_virtual

from .arms import Arm
from .backend import Backend, Broken, Overloaded, Throttled
from .batching_server import BatchingServer
from .checks import at_least_zero
from .progress import Progress
from .recording import Sample, steering_of
from .reporting_backend import Reporting
from .results import BatchCall, RunResult
from .traces import CallLength, RecordedCall

__all__ = ["Clients", "Workload", "run_arm", "sampling"]

_SAMPLE_EVERY: Final = 0.25
_SAMPLES: Final = 2000  # a picture has fewer columns
_SHARES: Final = 100  # as many times is progress heard
# A batch call that failed is followed by the next one after this: at once would stop the virtual clock.
_AFTER_A_FAILURE: Final = 1.0


class Clients(Protocol):
    """Interactive traffic that waits for its answers: closed-loop agents.

    `play` begins calls for `span` seconds and returns when the last one has ended.
    """

    async def play(self, call: Callable[[CallLength], Coroutine[object, object, None]], span: float, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Interactive traffic beside an endless batch job on one backend.

    Attributes:
        interactive: recorded calls in order of arrival, or clients that wait for their answers.
        span: seconds in which interactive calls arrive, and in which batch work is counted.
        batch: the lengths of batch calls, taken in this order, round and round.
        backlog: batch calls that are submitted and not finished, at all times; 0: no batch work.
        backend: makes the backend; a `recomputed_tokens` attribute, where it has one, counts as waste.
        grace: seconds after the span for interactive calls to end.
        failures: exceptions of the backend that count as failed calls; every other one ends the run.
        reports: calls tell the scheduler of first tokens, of tokens and of throttling; for laws that look at those.
    """

    interactive: Sequence[RecordedCall] | Clients
    span: float
    batch: Sequence[CallLength]
    backlog: int = 256
    backend: Callable[[], Backend] = BatchingServer
    grace: float = 600.0
    failures: tuple[type[Exception], ...] = (Throttled, Overloaded, Broken, TimeoutError)
    reports: bool = False

    def __post_init__(self) -> None:
        at_least_zero(span=self.span)
        if self.backlog and not self.batch:
            raise ConfigError(f"a backlog of {self.backlog} batch calls needs their lengths, got none")


def run_arm(
    workload: Workload,
    make_arm: Callable[[], Arm],
    *,
    sample_every: float | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run the workload through a fresh arm in virtual time.

    `sample_every`: seconds between samples, None for none: asking a scheduler for a snapshot costs as much as a call.
    `progress` hears of the span as it passes.
    Raises: an `ExceptionGroup` of what the arm or the backend raises, but for `workload.failures`.
    """

    async def play() -> RunResult:
        return await _Run(workload, make_arm(), asyncio.get_running_loop()).play(sample_every, progress)

    return run_virtual(play())


def sampling(span: float) -> float:
    """Seconds between samples that show how a run went: 0.25, or more where that would be over 2000 samples."""
    return max(_SAMPLE_EVERY, span / _SAMPLES)


class _Over(Exception):
    """The run has been measured; whoever still waits need not go on."""


class _Run:
    """The state of one run. Its methods are on the path of every call: no task for a batch call."""

    group: asyncio.TaskGroup

    def __init__(self, workload: Workload, arm: Arm, loop: asyncio.AbstractEventLoop) -> None:
        self.workload, self.arm, self.loop = workload, arm, loop
        self.start = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()  # no interactive call is open, after the span
        self.backend = workload.backend()
        self.serve = (Reporting(self.backend) if workload.reports else self.backend).serve
        self.submit = arm.submit
        self.lengths: Iterator[CallLength] = itertools.cycle(workload.batch)
        self.arrivals: list[float] = []
        self.latencies: list[float] = []
        self.first_tokens: list[float] = []
        self.batch: list[BatchCall] = []
        self.samples: list[Sample] = []
        self.open = self.failed = self.batch_failed = 0
        self.at_server = self.batch_at_server = self.peak = 0
        self.instant, self.starts, self.before = -math.inf, 0, 0  # the last at which batch calls began or ended
        self.most_starts = self.most_added = 0

    async def play(self, sample_every: float | None, progress: Progress | None) -> RunResult:
        workload = self.workload
        longest = workload.span + workload.grace
        try:
            async with asyncio.TaskGroup() as self.group:
                for _ in range(workload.backlog):
                    self.group.create_task(self.keep_submitting())
                traffic = self.group.create_task(self.traffic())
                if sample_every is not None:
                    first = min(sample_every, workload.span) / 2
                    self.loop.call_at(self.start + first, self.sample, 0, sample_every)
                if progress is not None:
                    self.loop.call_at(self.start, self.tell, 0, progress)
                await asyncio.wait({traffic}, timeout=longest if longest < math.inf else None)
                result = self.result()
                raise _Over
        except* _Over:
            pass
        return result

    async def traffic(self) -> None:
        """All interactive calls, from the first arrival to the last end."""
        workload, end = self.workload, self.start + self.workload.span
        if isinstance(workload.interactive, Sequence):
            for recorded in workload.interactive:
                await self.sleep_until(self.start + recorded.arrival)
                self.group.create_task(self.interactive(recorded.length))
        else:
            await workload.interactive.play(self.interactive, workload.span)
        await self.sleep_until(end)
        await asyncio.sleep(0)  # a call that arrives at the very end counts itself as it begins
        if self.open:
            await self.done

    async def sleep_until(self, time: float) -> None:
        if (seconds := time - self.loop.time()) > 0:
            await asyncio.sleep(seconds)

    async def interactive(self, length: CallLength) -> None:
        """One interactive call through the arm, written down."""
        number, submitted = len(self.arrivals), self.loop.time()
        self.arrivals.append(submitted - self.start)
        self.latencies.append(math.inf)
        self.open += 1
        try:
            await self.submit("interactive", self.serve_interactive, length, submitted)
        except self.workload.failures:
            self.failed += 1
        else:
            self.latencies[number] = self.loop.time() - submitted
        self.open -= 1
        if not self.open and self.loop.time() >= self.start + self.workload.span and not self.done.done():
            self.done.set_result(None)

    async def keep_submitting(self) -> None:
        """One place in the backlog: batch calls, one after the other."""
        submit, serve, lengths, clock, failures = (
            self.submit, self.serve_batch, self.lengths, self.loop.time, self.workload.failures
        )  # fmt: skip
        while True:
            try:
                await submit("batch", serve, next(lengths), clock())
            except failures:
                self.batch_failed += 1
                await asyncio.sleep(_AFTER_A_FAILURE)

    async def serve_interactive(self, length: CallLength, submitted: float) -> None:
        self.at_server += 1
        self.peak = max(self.peak, self.at_server)

        def first_token() -> None:
            self.first_tokens.append(self.loop.time() - submitted)

        try:
            await self.serve(length.prompt_tokens, length.output_tokens, first_token=first_token)
        finally:
            self.at_server -= 1

    async def serve_batch(self, length: CallLength, submitted: float) -> None:
        started = self.loop.time()
        if started != self.instant:
            self.instant, self.starts, self.before = started, 0, self.batch_at_server
        self.at_server += 1
        self.batch_at_server += 1
        self.starts += 1
        self.most_starts = max(self.most_starts, self.starts)
        self.most_added = max(self.most_added, self.batch_at_server - self.before)
        self.peak = max(self.peak, self.at_server)
        try:
            await self.serve(length.prompt_tokens, length.output_tokens)
        finally:
            ended = self.loop.time()
            if ended != self.instant:
                self.instant, self.starts, self.before = ended, 0, self.batch_at_server
            self.at_server -= 1
            self.batch_at_server -= 1
        zero = self.start
        tokens = length.prompt_tokens + length.output_tokens
        self.batch.append(BatchCall(submitted - zero, started - zero, ended - zero, tokens))

    def sample(self, number: int, every: float) -> None:
        """Write down how it stands, and come again; half-way between round times, at which traffic comes and goes."""
        time, interactive = self.loop.time() - self.start, self.at_server - self.batch_at_server
        waiting = self.open - interactive
        self.samples.append(Sample(time, interactive, self.batch_at_server, steering_of(self.arm), waiting))
        following = (number + 1.5) * every
        if following <= self.workload.span:
            self.loop.call_at(self.start + following, self.sample, number + 1, every)

    def tell(self, number: int, progress: Progress) -> None:
        """Say that another part of the span is over, and come again."""
        if number:
            progress(1 / _SHARES)
        if number < _SHARES:
            due = self.start + (number + 1) * self.workload.span / _SHARES
            self.loop.call_at(due, self.tell, number + 1, progress)

    def result(self) -> RunResult:
        return RunResult(
            span=self.workload.span,
            arrivals=tuple(self.arrivals),
            latencies=tuple(self.latencies),
            first_tokens=tuple(self.first_tokens),
            unfinished=self.open,
            failed=self.failed,
            batch=tuple(self.batch),
            batch_failed=self.batch_failed,
            wasted_tokens=int(getattr(self.backend, "recomputed_tokens", 0)),
            most_starts=self.most_starts,
            most_added=self.most_added,
            peak_at_server=self.peak,
            samples=tuple(self.samples),
        )
