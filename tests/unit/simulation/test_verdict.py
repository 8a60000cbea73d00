"""Each criterion passes when it should and fails when it should."""

from __future__ import annotations

from llm_traffic_scheduler.simulation import judge
from llm_traffic_scheduler.simulation.scenarios import AS_FIRST_TOLD
from tests.unit.simulation.runs import arm_run, limit_that_yields, peak_run


def test_a_run_that_does_everything_right_passes() -> None:
    criteria = judge([peak_run()])

    assert [criterion.passed for criterion in criteria] == [True, True, True]
    assert [criterion.evidence for criterion in criteria] == [
        "At the peak: 20 ms",
        "falls to 1; 1 ended in the slowest second; back after 1.53 s",
        "at most 8",
    ]


def test_slow_interactive_calls_fail_the_first_in_whichever_scenario() -> None:
    slow = peak_run(arm_run(latency=0.51), scenario=AS_FIRST_TOLD)

    assert [criterion.passed for criterion in judge([slow, peak_run()])] == [False, True, True]


def test_p95_at_its_threshold_passes() -> None:
    assert judge([peak_run(arm_run(latency=0.4999))])[0].passed


def test_a_limit_that_does_not_fall_far_enough_fails_the_second() -> None:
    shallow = arm_run(limit=lambda time: 4 if 4.0 <= time < 8.5 else 6)
    enough = arm_run(limit=lambda time: 3 if 4.0 <= time < 8.5 else 6)

    assert not judge([peak_run(shallow)])[1].passed
    assert judge([peak_run(enough)])[1].passed


def test_a_limit_that_falls_only_after_the_peak_fails_the_second() -> None:
    late = arm_run(limit=lambda time: 1 if 7.2 <= time < 8.5 else 6)

    assert not judge([peak_run(late)])[1].passed


def test_a_second_without_a_batch_end_fails_the_second() -> None:
    starved = judge([peak_run(arm_run(batch_ends=(3.5, 4.5, 6.5, 10.0)))])[1]

    assert not starved.passed
    assert "0 ended in the slowest second" in starved.evidence


def test_a_limit_that_is_back_too_late_or_never_fails_the_second() -> None:
    late = arm_run(limit=lambda time: 1 if 4.0 <= time < 9.2 else 6)
    never = arm_run(limit=lambda time: 1 if time >= 4.0 else 6)

    assert not judge([peak_run(late)])[1].passed
    assert not judge([peak_run(never)])[1].passed


def test_a_limit_that_nobody_looked_at_after_the_window_fails_the_second() -> None:
    run = arm_run()
    cut = type(run)(run.name, run.calls, run.samples[:170], run.peak_at_server)

    assert not judge([peak_run(cut)])[1].passed


def test_the_window_counts_from_when_the_last_call_really_came() -> None:
    run = arm_run(limit=lambda time: 1 if 4.0 <= time < 9.2 else 6)
    late_call = type(run.calls[0])("interactive", 7.3, 7.32)
    delayed = type(run)(run.name, (*run.calls, late_call), run.samples, run.peak_at_server)

    assert judge([peak_run(delayed, scenario=peak_run().scenario)])[1].passed


def test_one_call_above_the_cap_fails_the_third() -> None:
    assert not judge([peak_run(arm_run(peak_at_server=9))])[-1].passed


def test_only_our_arm_is_judged() -> None:
    others = arm_run("no scheduler", latency=9.0, limit=None, peak_at_server=400)

    assert all(criterion.passed for criterion in judge([peak_run(others, arm_run())]))


def test_without_a_peak_there_are_two_criteria() -> None:
    assert len(judge([peak_run(arm_run(limit=limit_that_yields), scenario=AS_FIRST_TOLD)])) == 2
