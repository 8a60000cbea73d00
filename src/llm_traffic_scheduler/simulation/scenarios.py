"""The two stories that this project exists for, and one variant, each with every arm on the same traffic.

Floor: fourth. Runs on whatever loop is running: in real time for people, in virtual time for tests.
Backend: one server that works on 8 calls at once, first come first served, behind every arm.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from llm_traffic_scheduler import TrafficScheduler

from .arms import OURS, Arm, Kind, opponents
from .progress import Progress, unheard
from .recording import ArmRun, Recorder
from .slot_server import SlotServer

SLOTS: Final = 8
BATCH_MAX: Final = 6
BATCH_MIN: Final = 1
_SAMPLE_EVERY: Final = 0.05
_ARMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Traffic of two kinds, and the thresholds that the scheduler gets for it.

    All batch calls come at 0 s. Interactive calls come `gap` seconds apart from `first_at` on; with
    `one_after_another`, each `gap` seconds after the one before has ended.
    """

    name: str
    story: str
    batch_calls: int
    interactive_calls: int
    first_at: float
    gap: float
    window: float
    one_after_another: bool = False
    batch_seconds: float = 0.2
    interactive_seconds: float = 0.02
    rps_threshold: float = 20.0
    p95_threshold: float = 0.5
    limit_at_peak: int | None = None  # the batch limit must fall to this while the interactive calls come


AS_FIRST_TOLD: Final = Scenario(
    name="As first told",
    story="20 batch calls of 200 ms at once; from 0.5 s on ten interactive calls of 20 ms, one after another,"
    " 10 ms apart",
    batch_calls=20,
    interactive_calls=10,
    first_at=0.5,
    gap=0.01,
    one_after_another=True,
    window=10.0,
)
NOBODY_WAITS: Final = Scenario(
    name="The same, sooner",
    story="the same batch calls; ten interactive calls of 20 ms from 0.1 s on, 10 ms apart, none waiting for the one"
    " before",
    batch_calls=20,
    interactive_calls=10,
    first_at=0.1,
    gap=0.01,
    window=10.0,
)
AT_THE_PEAK: Final = Scenario(
    name="At the peak",
    story="a backlog of 400 batch calls of 200 ms; from second 3 to second 7 interactive calls of 20 ms, 25 a second",
    batch_calls=400,
    interactive_calls=100,
    first_at=3.0,
    gap=0.04,
    window=2.0,
    limit_at_peak=3,
)
SCENARIOS: Final = (AS_FIRST_TOLD, NOBODY_WAITS, AT_THE_PEAK)


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """One scenario and what each arm did with it; the last arm is ours."""

    scenario: Scenario
    arms: tuple[ArmRun, ...]

    @property
    def ours(self) -> ArmRun:
        """The arm with this scheduler."""
        return self.arms[-1]


async def run_scenario(scenario: Scenario, *, progress: Progress = unheard) -> ScenarioRun:
    """Run all arms on `scenario` at the same time, each on its own server.

    `progress` hears of each finished call as a share of all.
    """
    scheduler = TrafficScheduler(
        max_concurrency=SLOTS,
        batch_max_concurrency=BATCH_MAX,
        batch_min_concurrency=BATCH_MIN,
        interactive_rps_threshold=scenario.rps_threshold,
        interactive_p95_threshold=scenario.p95_threshold,
        window=scenario.window,
    )

    arms: dict[str, Arm] = {**opponents(SLOTS, BATCH_MAX), OURS: scheduler}
    async with scheduler, asyncio.TaskGroup() as group:
        runs = [group.create_task(_run_arm(scenario, name, arm, progress)) for name, arm in arms.items()]
    return ScenarioRun(scenario, tuple(run.result() for run in runs))


async def _run_arm(scenario: Scenario, name: str, arm: Arm, progress: Progress) -> ArmRun:
    server = SlotServer(SLOTS)
    recorder = Recorder(arm)
    share = 1 / (_ARMS * (scenario.batch_calls + scenario.interactive_calls))

    async def call(kind: Kind, seconds: float) -> None:
        await recorder.call(kind, lambda: server.serve(seconds))
        progress(share)

    sampler = asyncio.create_task(recorder.sample(every=_SAMPLE_EVERY))
    async with asyncio.TaskGroup() as group:
        for _ in range(scenario.batch_calls):
            group.create_task(call("batch", scenario.batch_seconds))
        await recorder.sleep_until(scenario.first_at)
        for number in range(scenario.interactive_calls):
            if scenario.one_after_another:
                await call("interactive", scenario.interactive_seconds)
                await asyncio.sleep(scenario.gap)
            else:
                await recorder.sleep_until(scenario.first_at + number * scenario.gap)
                group.create_task(call("interactive", scenario.interactive_seconds))
    sampler.cancel()
    return recorder.result(name)
