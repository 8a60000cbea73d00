"""Recorded traffic through all arms: the same calls for each, thresholds from a first pass, nothing above the cap."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.simulation import (
    CallLength,
    RecordedCall,
    Replay,
    Setup,
    TraceError,
    builtin_lengths,
    paced,
    replay,
)

TRAFFIC = tuple(RecordedCall(0.4 * number, CallLength(800, 60)) for number in range(150))
SETUP = Setup(max_concurrency=24, batch_max=16, backlog=48)


@pytest.fixture(scope="module")
def result() -> Replay:
    return replay(TRAFFIC, builtin_lengths(), setup=SETUP)


def test_every_arm_gets_every_interactive_call_at_its_time(result: Replay) -> None:
    for arm in (result.alone, *result.arms):
        arrivals = sorted(call.arrived for call in arm.of_kind("interactive"))
        assert arrivals == pytest.approx([call.arrival for call in TRAFFIC])


def test_the_threshold_is_the_stated_multiple_of_the_first_pass_without_batch(result: Replay) -> None:
    assert not result.alone.of_kind("batch")
    assert result.p95_threshold == SETUP.threshold_factor * result.alone.interactive.p95


def test_no_arm_with_a_cap_exceeds_it_and_the_one_without_takes_the_whole_backlog(result: Replay) -> None:
    unscheduled, *capped = (arm.peak_at_server for arm in result.arms)

    assert unscheduled >= SETUP.backlog
    assert all(peak <= SETUP.max_concurrency for peak in capped)


def test_batch_never_runs_more_than_its_room(result: Replay) -> None:
    *_, split, _, ours = result.arms

    assert max(sample.batch for sample in split.samples) == SETUP.batch_max
    assert max(sample.batch for sample in ours.samples) <= SETUP.batch_max


def test_the_scheduler_is_quicker_than_no_scheduler_and_batch_still_gets_on(result: Replay) -> None:
    assert result.ours.interactive.p95 < result.arms[0].interactive.p95 / 2
    assert result.batch_rates(result.ours)[0] > 0


def test_the_last_fixed_split_is_the_mean_of_the_schedulers_limit(result: Replay) -> None:
    limits = [limit for _, limit in result.ours.limits]

    assert result.arms[-2].name == f"fixed split at our mean ({round(sum(limits) / len(limits))})"


def test_batch_is_counted_within_the_span_only(result: Replay) -> None:
    ended = [call for call in result.ours.of_kind("batch") if call.ended <= result.span]
    calls, tokens = result.batch_rates(result.ours)

    assert len(ended) < len(result.ours.of_kind("batch"))
    assert calls == pytest.approx(60 * len(ended) / result.span)
    assert tokens == pytest.approx(sum(call.tokens for call in ended) / result.span)


def test_two_replays_are_equal() -> None:
    first, second = (replay(TRAFFIC[:40], builtin_lengths(), setup=SETUP) for _ in range(2))

    assert first == second


def test_progress_adds_up_to_the_whole() -> None:
    heard: list[float] = []

    replay(TRAFFIC, builtin_lengths(), setup=SETUP, progress=heard.append)

    assert sum(heard) == pytest.approx(1.0, rel=0.01)


def test_one_call_alone_is_a_trace_too() -> None:
    result = replay(TRAFFIC[:1], builtin_lengths(), setup=SETUP)

    assert result.span == 0.0
    assert result.batch_rates(result.ours) == (0.0, 0.0)


def test_speed_changes_arrivals_and_until_cuts_in_the_new_time() -> None:
    half = paced(TRAFFIC, speed=0.5, until=2.5)

    assert [call.arrival for call in half] == pytest.approx([0.0, 0.8, 1.6, 2.4])
    assert paced(TRAFFIC) == TRAFFIC


def test_the_builtin_lengths_are_what_they_are_said_to_be() -> None:
    lengths = builtin_lengths()
    prompts = [length.prompt_tokens for length in lengths]
    outputs = [length.output_tokens for length in lengths]

    assert 1000 <= min(prompts) < 1010 < 3990 < max(prompts) <= 4000
    assert 100 <= min(outputs) < 103 < 497 < max(outputs) <= 500
    assert sum(prompts) / len(prompts) == pytest.approx(2588, rel=0.05)
    assert sum(outputs) / len(outputs) == pytest.approx(291, rel=0.05)


def test_a_call_that_the_engine_could_never_hold_is_refused_before_anything_runs() -> None:
    giant = RecordedCall(0.0, CallLength(444_000, 1000))

    with pytest.raises(TraceError, match="call 2 of the traffic: 445000 tokens never fit"):
        replay([TRAFFIC[0], giant], builtin_lengths())
    with pytest.raises(TraceError, match="call 1 of the batch lengths: 445000 tokens never fit"):
        replay(TRAFFIC, [giant.length])
