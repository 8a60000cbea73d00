"""Whether the scheduler did in the scenarios what it is for: three criteria, each with its numbers.

Floor: fourth. Pure.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .scenarios import BATCH_MAX, SLOTS, ScenarioRun


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that must hold, whether it does, and what was measured."""

    claim: str
    passed: bool
    evidence: str


def judge(runs: Sequence[ScenarioRun]) -> tuple[Criterion, ...]:
    """The criteria for our arm; which other arms meet them too does not matter here."""
    yielding = [_yields_and_recovers(run) for run in runs if run.scenario.limit_at_peak is not None]
    return _stays_quick(runs), *yielding, _keeps_the_cap(runs)


def _stays_quick(runs: Sequence[ScenarioRun]) -> Criterion:
    thresholds = [run.scenario.p95_threshold for run in runs]
    measured = [run.ours.interactive.p95 for run in runs]
    return Criterion(
        f"interactive P95 is at most its threshold ({max(thresholds) * 1e3:.0f} ms)",
        all(p95 <= threshold for p95, threshold in zip(measured, thresholds, strict=True)),
        "; ".join(f"{run.scenario.name}: {p95 * 1e3:.0f} ms" for p95, run in zip(measured, runs, strict=True)),
    )


def _yields_and_recovers(run: ScenarioRun) -> Criterion:
    scenario, ours = run.scenario, run.ours
    floor = scenario.limit_at_peak
    assert floor is not None
    begin = scenario.first_at
    # On a real clock the last call may come late; the window counts from when it really came.
    last = max((call.arrived for call in ours.of_kind("interactive")), default=begin)
    end = max(begin + scenario.interactive_calls * scenario.gap, last)
    lowest = min((limit for time, limit in ours.limits if begin <= time <= end), default=BATCH_MAX)
    ended = Counter(math.floor(call.ended) for call in ours.of_kind("batch"))
    slowest = min((ended[second] for second in range(math.ceil(begin), math.floor(end))), default=0)
    reopened = next((time for time, limit in ours.limits if time >= end and limit == BATCH_MAX), math.inf)
    # A limit seen below its range later than a window after the peak refutes; one seen back late, because the loop was
    # busy, does not.
    later = [limit for time, limit in ours.limits if time > end + scenario.window]
    return Criterion(
        f"{scenario.name.lower()} the batch limit falls to {floor} or less, a batch call still ends in each second,"
        f" and the limit is back at {BATCH_MAX} within a window ({scenario.window:g} s) afterwards",
        lowest <= floor and slowest >= 1 and bool(later) and min(later) >= BATCH_MAX,
        f"falls to {lowest}; {slowest} ended in the slowest second; back after {reopened - end:.2f} s",
    )


def _keeps_the_cap(runs: Sequence[ScenarioRun]) -> Criterion:
    peak = max(run.ours.peak_at_server for run in runs)
    return Criterion(f"never more than {SLOTS} calls at the server", peak <= SLOTS, f"at most {peak}")
