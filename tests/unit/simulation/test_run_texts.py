"""The report says what the numbers say, also when they speak against us, and fits a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_traffic_scheduler.simulation import (
    CallLength,
    RecordedCall,
    Setup,
    builtin_lengths,
    judge,
    plain,
    replay,
    replay_text,
    scenario_text,
    verdict_text,
)
from llm_traffic_scheduler.simulation.run_texts import limit_line, replay_remarks, scenario_remarks
from tests.unit.simulation.runs import arm_run, peak_run

UNSCHEDULED = arm_run("no scheduler", latency=2.0, batch_ends=(8.0,), limit=None, peak_at_server=400)
SPLIT = arm_run("priority with fixed split (6)", batch_ends=(9.0,), limit=None)


def test_equal_arms_are_called_equal_and_the_price_is_named() -> None:
    remarks = scenario_remarks(peak_run(UNSCHEDULED, SPLIT, arm_run()))

    assert remarks[0] == (
        "Equal and quick: priority with fixed split (6), this scheduler (P95 20 ms). Slow: no scheduler"
        " (P95 2,000 ms). The price: batch is done after 10.0 s; the slow arms need 8.0 s."
    )
    assert remarks[1].startswith("Batch is done sooner with priority with fixed split (6), after 9.0 s")
    assert remarks[1].endswith("the simpler way is the better one.")


def test_where_all_arms_are_equal_the_report_says_so_and_why() -> None:
    quick = arm_run("no scheduler", limit=None)

    (remark,) = scenario_remarks(peak_run(quick, arm_run()))

    assert remark.startswith(
        "All arms are equal for interactive calls: P95 20 ms. When the first of them comes, at 3 s"
    )
    assert remark.endswith("4 of the server's 8 slots are free even without a scheduler.")


def test_an_arm_of_ours_that_is_slow_is_called_slow() -> None:
    remarks = scenario_remarks(peak_run(SPLIT, arm_run(latency=1.0)))

    assert remarks[-1] == "This scheduler is not among the quick arms here."


def test_a_few_milliseconds_of_a_busy_machine_are_no_difference() -> None:
    jittery = arm_run(latency=0.035)

    assert scenario_remarks(peak_run(SPLIT, jittery))[0].startswith("All arms are equal for interactive calls")


def test_a_batch_that_is_done_a_moment_sooner_is_no_difference_either() -> None:
    ahead = arm_run("priority with fixed split (6)", batch_ends=(9.6,), limit=None)

    assert len(scenario_remarks(peak_run(ahead, arm_run()))) == 1


def test_the_limit_is_drawn_between_its_bounds() -> None:
    line = limit_line(arm_run(), 1, 6)

    assert line.startswith("batch limit 1 to 6  ████████████████▁▁")
    assert line.endswith("████  12 s, lowest 1, mean 4.1")
    assert plain(line).isascii()


def test_a_failed_criterion_is_marked_fail() -> None:
    text = verdict_text(judge([peak_run(arm_run(peak_at_server=9))]))

    assert "\npass  (1)" in text
    assert "\nFAIL  (3) never more than 8 calls at the server: at most 9" in text


def test_scenario_and_verdict_fit_a_terminal_of_100_columns() -> None:
    run = peak_run(UNSCHEDULED, SPLIT, arm_run())
    text = scenario_text(run) + verdict_text(judge([run]))

    assert max(map(len, text.splitlines())) <= 100
    assert "no scheduler                      2,000 ms  2,000 ms  2,000 ms        8.00 s             400" in text


@pytest.fixture(scope="module")
def traffic() -> tuple[RecordedCall, ...]:
    return tuple(RecordedCall(0.4 * number, CallLength(800, 60)) for number in range(150))


def test_a_replay_states_traffic_rules_and_where_the_threshold_comes_from(traffic: tuple[RecordedCall, ...]) -> None:
    result = replay(traffic, builtin_lengths(), setup=Setup(max_concurrency=24, batch_max=16, backlog=48))

    text = replay_text(result, "monday.csv", "built-in lengths")

    assert "monday.csv: 150 calls in 60 s, 2.5 per second" in text
    assert "Good for ranking policies, not for absolute GPU figures" in " ".join(text.split())
    assert "which is 2.5 x the P95 that a first pass measured without batch" in " ".join(text.split())
    assert "no batch at all" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_threshold_that_is_missed_is_said_to_be_missed(traffic: tuple[RecordedCall, ...]) -> None:
    result = replay(traffic[:60], builtin_lengths(), setup=Setup(max_concurrency=24, batch_max=16, backlog=48))

    assert ", within its threshold" in replay_remarks(replace(result, p95_threshold=1e6))[0]
    assert ", over its threshold" in replay_remarks(replace(result, p95_threshold=1e-6))[0]
    assert replay_remarks(replace(result, traffic=traffic[:19]))[0].startswith("From only 19 interactive calls")


def test_traffic_that_overloads_the_server_by_itself_is_called_out(traffic: tuple[RecordedCall, ...]) -> None:
    flood = tuple(RecordedCall(call.arrival / 40, call.length) for call in traffic)
    small = Setup(max_concurrency=24, batch_max=16, backlog=48)

    assert "more than the cap of 24" in replay_remarks(replay(flood, builtin_lengths(), setup=small))[-1]
    assert "more than the cap" not in replay_remarks(replay(traffic, builtin_lengths(), setup=small))[-1]
