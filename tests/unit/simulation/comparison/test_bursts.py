"""Getting out of the way of a burst, and coming back."""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler.simulation.arms import FixedSplit, Unscheduled
from llm_traffic_scheduler.simulation.comparison.bursts import Burst, bursts_of, throughput
from llm_traffic_scheduler.simulation.comparison.instances import BURST, Instance
from llm_traffic_scheduler.simulation.recording import Sample
from llm_traffic_scheduler.simulation.results import BatchCall, RunResult
from llm_traffic_scheduler.simulation.runner import Workload, run_arm

EMPTY = run_arm(Workload(interactive=(), span=1.0, batch=(), backlog=0), Unscheduled)


def made_up(batch_at: dict[int, int]) -> RunResult:
    """120 s, one burst from 45 s to 60 s; so many batch calls, a token a second each, from each of these seconds on."""
    samples, calls, count = [], [], 0
    for second in range(120):
        count = batch_at.get(second, count)
        samples.append(Sample(second + 0.5, 0, count, None))
        calls += [BatchCall(0.0, float(second), second + 1.0, 1)] * count
    settings = {name: getattr(EMPTY, name) for name in RunResult.__dataclass_fields__}
    return RunResult(**{**settings, "span": 120.0, "batch": tuple(calls), "samples": tuple(samples)})


def test_only_bursts_that_calm_follows_are_counted() -> None:
    assert BURST.times(120.0) == ((45.0, 60.0),)
    assert BURST.times(179.0) == ((45.0, 60.0), (105.0, 120.0))


def test_a_call_is_spread_evenly_over_its_time_at_the_server() -> None:
    calls = [BatchCall(0.0, 1.25, 3.25, 20), BatchCall(0.0, 2.0, 3.0, 5)]

    assert throughput(calls, 5.0) == pytest.approx([0.0, 7.5, 15.0, 2.5, 0.0])


def test_what_runs_past_the_end_counts_up_to_it() -> None:
    assert throughput([BatchCall(0.0, 1.0, 9.0, 8)], 2.5) == pytest.approx([0.0, 1.0, 1.0])


def test_it_has_yielded_when_a_quarter_fewer_run_and_is_back_at_four_fifths_of_the_throughput() -> None:
    [burst] = bursts_of(made_up({0: 40, 48: 31, 50: 30, 55: 5, 63: 31, 66: 32}))

    assert burst == Burst(yielded=5.5, recovered=7.0)


def test_what_never_happens_takes_for_ever() -> None:
    assert bursts_of(made_up({0: 40})) == (Burst(math.inf, 1.0),)
    assert bursts_of(made_up({0: 40, 50: 10})) == (Burst(5.5, math.inf),)


def test_the_shape_has_its_bursts_where_they_are_looked_for() -> None:
    interactive = Instance("burst", 0, 600.0).workload(backlog=0).interactive
    assert isinstance(interactive, tuple)
    inside = sum(any(begin <= call.arrival < end for begin, end in BURST.times(660.0)) for call in interactive)

    assert inside / len(interactive) > 0.75  # 75 of 88.5 per minute


def test_a_fixed_split_never_yields() -> None:
    workload = Instance("burst", 0, 120.0).workload(backlog=64)

    [burst] = bursts_of(run_arm(workload, lambda: FixedSplit(128, 8), sample_every=1.0))

    assert (burst.yielded, burst.recovered < 30) == (math.inf, True)
