"""Runs made up by hand, for tests of what is said about them.

`from tests.unit.simulation.runs import arm_run, peak_run`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llm_traffic_scheduler.simulation import Scenario, ScenarioRun
from llm_traffic_scheduler.simulation.recording import ArmRun, CallRecord, Sample, Steering
from llm_traffic_scheduler.simulation.scenarios import AT_THE_PEAK

__all__ = ["arm_run", "limit_that_yields", "peak_run"]

_LASTS = 12.0


def limit_that_yields(time: float) -> int:
    """The batch limit as it should be: down at the peak (3 to 7 s), back within two seconds."""
    return 1 if 4.0 <= time < 8.5 else 6


def arm_run(
    name: str = "this scheduler",
    *,
    latency: float = 0.02,
    batch_ends: Iterable[float] = (3.5, 4.5, 5.5, 6.5, 10.0),
    limit: Callable[[float], int] | None = limit_that_yields,
    peak_at_server: int = 8,
) -> ArmRun:
    """One arm: 100 interactive calls from 3 s to 7 s, all of one latency."""
    arrivals = [3.0 + number * 0.04 for number in range(100)]
    interactive = [CallRecord("interactive", time, time + latency) for time in arrivals]
    batch = [CallRecord("batch", 0.0, time) for time in batch_ends]
    times = [0.05 * (number + 0.5) for number in range(round(_LASTS / 0.05))]
    samples = [Sample(time, 0, 4, Steering(limit(time), 0.5) if limit else None) for time in times]
    return ArmRun(name, (*interactive, *batch), tuple(samples), peak_at_server)


def peak_run(*arms: ArmRun, scenario: Scenario = AT_THE_PEAK) -> ScenarioRun:
    """The arms on the scenario at the peak; the last one is ours."""
    return ScenarioRun(scenario, arms or (arm_run(),))
