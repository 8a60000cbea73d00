"""The two scenarios and the variant come out as the mission says, arm by arm."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.simulation import SCENARIOS, ScenarioRun, judge, run_scenario
from llm_traffic_scheduler.simulation.run_texts import batch_done
from llm_traffic_scheduler.simulation.scenarios import AS_FIRST_TOLD, AT_THE_PEAK, NOBODY_WAITS


def _p95(run: ScenarioRun) -> list[float]:
    return [arm.interactive.p95 for arm in run.arms]


async def test_as_first_told_all_arms_are_equal() -> None:
    run = await run_scenario(AS_FIRST_TOLD)

    assert _p95(run) == pytest.approx([0.02] * 4)
    assert [batch_done(arm) for arm in run.arms] == pytest.approx([0.6, 0.6, 0.8, 0.8])
    assert [call.arrived for call in run.ours.of_kind("interactive")] == pytest.approx(
        [0.5 + 0.03 * number for number in range(10)]
    )


async def test_a_tenth_of_a_second_after_the_batch_the_unscheduled_arm_takes_320_ms_against_20() -> None:
    run = await run_scenario(NOBODY_WAITS)

    assert _p95(run) == pytest.approx([0.32, 0.32, 0.02, 0.02])


async def test_at_the_peak_the_limit_goes_down_and_comes_back() -> None:
    run = await run_scenario(AT_THE_PEAK)
    limits = dict(run.ours.limits)

    # 20 arrivals per second over a window of two seconds are reached after 40 calls, 1.6 s after the first.
    assert min(time for time, limit in limits.items() if limit == 1) < 3.0 + 1.6
    assert {limit for time, limit in limits.items() if 4.7 < time < 7.0} == {1}
    assert {limit for time, limit in limits.items() if time < 3.0 or time > 9.0} == {6}
    assert _p95(run)[2:] == pytest.approx([0.02, 0.02])
    assert _p95(run)[0] == pytest.approx(6.82, abs=0.01)
    assert [arm.peak_at_server for arm in run.arms] == [400, 8, 7, 7]


async def test_every_criterion_holds_and_progress_adds_up() -> None:
    for scenario in SCENARIOS:
        heard: list[float] = []
        run = await run_scenario(scenario, progress=heard.append)

        assert sum(heard) == pytest.approx(1.0)
        assert all(criterion.passed for criterion in judge([run]))
