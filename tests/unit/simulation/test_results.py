"""What a run comes to is what was written down of it, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from llm_traffic_scheduler.simulation.recording import Sample, Steering
from llm_traffic_scheduler.simulation.results import BatchCall, RunResult, turns

RUN = RunResult(
    span=10.0,
    arrivals=(1.0, 2.0, 3.0, 4.0),
    latencies=(1.0, 2.0, 3.0, math.inf),
    first_tokens=(0.5,),
    unfinished=1,
    failed=0,
    batch=(BatchCall(0.0, 0.0, 10.0, 300), BatchCall(0.0, 1.0, 10.5, 5000)),
    batch_failed=0,
    wasted_tokens=0,
    most_starts=2,
    most_added=2,
    peak_at_server=4,
    samples=(
        Sample(2.5, 1, 2, Steering(4, 0.0), 1),
        Sample(5.0, 1, 6, Steering(5, 0.0), 0),
        Sample(7.5, 3, 4, Steering(6, 0.0), 2),
    ),
)


def test_goodput_counts_the_tokens_of_what_ended_within_the_span_its_end_included() -> None:
    assert RUN.goodput == 30.0
    assert replace(RUN, span=0.0).goodput == 0.0


def test_a_call_that_never_ended_is_within_no_target() -> None:
    assert RUN.within(2.0) == 0.5
    assert RUN.within(1e9) == 0.75
    assert replace(RUN, latencies=()).within(2.0) == 1.0


def test_slots_are_idle_as_far_as_batch_does_not_have_them_and_never_less_than_none() -> None:
    assert RUN.idle_slots(5) == pytest.approx((3 + 0 + 1) / 3)
    assert replace(RUN, samples=()).idle_slots(5) == 0.0


def test_a_total_counts_the_interactive_calls_that_wait_too() -> None:
    # The limit goes 4, 5, 6; with all that has not ended 6, 6, 11, and without what waits 5, 6, 9.
    assert (RUN.limit_turns, RUN.total_turns) == (0, 0)

    waiting_less = replace(RUN.samples[1], interactive_waiting=9)
    turned = replace(RUN, samples=(RUN.samples[0], waiting_less, RUN.samples[2]))

    assert (turned.limit_turns, turned.total_turns) == (0, 1)


def test_samples_without_a_scheduler_are_no_limits() -> None:
    bare = replace(RUN, samples=tuple(replace(sample, steering=None) for sample in RUN.samples))

    assert bare.limits == ()
    assert RUN.limits == ((2.5, 4), (5.0, 5), (7.5, 6))


@pytest.mark.parametrize("values, expected", [([], 0), ([1, 2, 3], 0), ([1, 2, 2, 1], 1), ([3, 1, 3, 3, 2], 2)])
def test_a_turn_is_a_fall_after_a_rise_or_a_rise_after_a_fall(values: list[int], expected: int) -> None:
    assert turns(values) == expected
