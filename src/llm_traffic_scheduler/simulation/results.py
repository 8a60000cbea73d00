"""What one arm did with one workload, and what that comes to: latencies, goodput, how its limit moved.

Floor: fourth. Pure: `runner` writes it down, texts and pictures read it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .recording import ArmRun, CallRecord, Latency, Sample

__all__ = ["BatchCall", "RunResult", "as_arm", "turns"]


class BatchCall(NamedTuple):
    """One finished batch call; seconds since the start of the run, tokens of prompt and answer."""

    submitted: float
    started: float
    ended: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one arm did with a workload. Seconds, tokens, calls.

    Attributes:
        arrivals: of the interactive calls, since the start of the run.
        latencies: of the same calls, end to end; infinite for those that failed or had not ended when the run was over.
        first_tokens: seconds to the first token of interactive calls, in the order in which they came.
        unfinished, failed: how many interactive calls did not end well.
        batch: finished batch calls in order of completion, also those that ended after the span.
        batch_failed: batch calls that failed.
        wasted_tokens: computed twice, because the backend ran out of memory.
        most_starts: batch calls that began at one instant, at most.
        most_added: by how many the batch calls at the server became more at one instant, at most; less than
            `most_starts` where calls took the place of others that ended.
        peak_at_server: calls of both kinds at the server at one instant, at most.
        samples: how it stood at regular times; empty if nobody asked for them.
    """

    span: float
    arrivals: tuple[float, ...]
    latencies: tuple[float, ...]
    first_tokens: tuple[float, ...]
    unfinished: int
    failed: int
    batch: tuple[BatchCall, ...]
    batch_failed: int
    wasted_tokens: int
    most_starts: int
    most_added: int
    peak_at_server: int
    samples: tuple[Sample, ...]

    @property
    def interactive(self) -> Latency:
        """Quantiles of the end-to-end latency of all interactive calls."""
        return Latency.of(self.latencies)

    @property
    def first_token(self) -> Latency:
        """Quantiles of the time to first token; of no calls where the backend does not report it."""
        return Latency.of(self.first_tokens)

    @property
    def goodput(self) -> float:
        """Tokens per second, prompt and answer, of the batch calls that ended within the span."""
        return sum(call.tokens for call in self.batch if call.ended <= self.span) / self.span if self.span else 0.0

    def within(self, target: float) -> float:
        """The share of interactive calls that ended within `target` seconds; failed and unfinished ones did not."""
        return sum(latency <= target for latency in self.latencies) / len(self.latencies) if self.latencies else 1.0

    @property
    def limits(self) -> tuple[tuple[float, int], ...]:
        """(time, batch limit) at each sample; empty for an arm without one that moves."""
        return tuple((sample.time, sample.steering.batch_limit) for sample in self.samples if sample.steering)

    @property
    def limit_turns(self) -> int:
        """How often the batch limit changed its direction, as far as the samples show."""
        return turns([limit for _, limit in self.limits])

    @property
    def total_turns(self) -> int:
        """The same for the limit plus the interactive calls that have not ended: what a law of totals steers."""
        return turns(
            [
                sample.steering.batch_limit + sample.interactive + sample.interactive_waiting
                for sample in self.samples
                if sample.steering
            ]
        )

    def idle_slots(self, batch_max: int) -> float:
        """How many of `batch_max` slots batch work does not have, on average over the samples; it always waits."""
        held_back = [max(0, batch_max - sample.batch) for sample in self.samples]
        return sum(held_back) / len(held_back) if held_back else 0.0


def as_arm(name: str, run: RunResult) -> ArmRun:
    """The run as pictures and tables of arms have it: all calls of both kinds, in order of completion."""
    interactive = (
        CallRecord("interactive", arrived, arrived + latency)
        for arrived, latency in zip(run.arrivals, run.latencies, strict=True)
    )
    batch = (CallRecord("batch", call.submitted, call.ended, call.tokens) for call in run.batch)
    calls = sorted((*interactive, *batch), key=lambda call: call.ended)
    return ArmRun(name, tuple(calls), run.samples, run.peak_at_server)


def turns(values: Sequence[int]) -> int:
    """How often a series that rose falls, or one that fell rises; standing still between them is neither."""
    steps = [after > before for before, after in itertools.pairwise(values) if after != before]
    return sum(before != after for before, after in itertools.pairwise(steps))
