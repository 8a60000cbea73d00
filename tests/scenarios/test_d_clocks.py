"""Section D: clocks that jump, stand still, are coarse or old; timers of odd length; times that are measured."""

from __future__ import annotations

import ast
import asyncio
import math
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler import (
    CallFinished,
    CallQueued,
    CallStarted,
    ConfigError,
    PressurePolicy,
    QueueTimeout,
    RunTimeout,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, each_door, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.support import Recorder, hold, noop, now, settle

SOURCES = Path(llm_traffic_scheduler.__file__).parent


@scenario
@each_door
@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
async def test_b58_a_jump_of_the_wall_clock_changes_no_timeout_window_or_latency(
    stage: Stage, run: Door, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set back, limiters slept for an hour; set forward, all timeouts fired."""
    scheduler = stage.scheduler(window=stage.seconds(100), policy=PressurePolicy(p95_threshold=stage.seconds(50)))
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    waiting = start(run(scheduler, "batch", noop, queue_timeout=stage.seconds(4)))
    await asyncio.sleep(stage.seconds(1))

    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    await settle()
    assert not waiting.done()
    if stage.virtual:
        assert scheduler.snapshot().oldest_batch_wait == 1
    assert await outcome(waiting) is QueueTimeout
    for call in held:
        call.release()
    await asyncio.gather(*(call.task for call in held))
    assert await outcome(run(scheduler, "batch", asyncio.sleep, 1000, run_timeout=stage.seconds(1))) is RunTimeout

    seen = scheduler.snapshot().interactive
    assert seen.sample_count == 2
    assert stage.seconds(3.9) < seen.p95 < 60
    monkeypatch.undo()


def test_b58_nothing_in_the_package_reads_the_wall_clock() -> None:
    """As before: no `time.time`, no `datetime.now`; but for a Retry-After, which may be a date."""
    readers = [
        f"{room.relative_to(SOURCES)}:{node.lineno}"
        for room in sorted(SOURCES.rglob("*.py"))
        if room.relative_to(SOURCES).as_posix() != "adapters/http_rules.py"
        for node in ast.walk(ast.parse(room.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        if ast.unparse(node) in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today")
    ]

    assert readers == []


@scenario_on("real", "uvloop")
@each_door
async def test_b60_a_job_that_blocks_the_loop_is_measured_in_full(stage: Stage, run: Door) -> None:
    """The loop's clock is cached within a pass and has steps of a millisecond: what blocked a second measured 0."""
    scheduler = stage.scheduler(interactive_p95_threshold=0.5)
    recorder = Recorder(scheduler)
    spans: list[float] = []

    async def blocks(seconds: float) -> None:
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            pass
        spans.append(time.perf_counter() - began)

    for _ in range(10):
        await run(scheduler, "interactive", blocks, 0.00001)
    await run(scheduler, "interactive", blocks, 0.02)

    measured = [event.ran for event in recorder.of(CallFinished)]
    assert all(ran >= span for ran, span in zip(measured, spans, strict=True))
    assert scheduler.snapshot().interactive.p95 >= 0.0198


@scenario
@each_door
async def test_b60_a_latency_of_zero_is_a_sample_like_any_other(stage: Stage, run: Door) -> None:
    """As before: a division by the measured time."""
    scheduler = stage.scheduler(interactive_p95_threshold=0.5, interactive_rps_threshold=1e6, smoothing=1.0)
    for _ in range(20):
        await run(scheduler, "interactive", noop)
    await stage.canaries(scheduler)

    seen = scheduler.snapshot().interactive
    assert seen.sample_count == 21
    assert 0 <= seen.p50 <= seen.p95 <= seen.p99
    if stage.virtual:
        assert seen.p99 == 0
    assert "nan" not in scheduler.explain()


async def _short_life(run: Door, scheduler: Counted) -> list[object]:
    """A few milliseconds: timeouts, a limit that falls and rises by itself; what happened, and when."""
    began, log = now(), list[object]()
    recorder = Recorder(scheduler)
    for _ in range(4):
        await run(scheduler, "interactive", noop)
    batch = [start(run(scheduler, "batch", asyncio.sleep, 0.004)) for _ in range(3)]
    await settle()
    log += [scheduler.snapshot().batch_running, await outcome(run(scheduler, "batch", noop, queue_timeout=0.001))]
    log += [await outcome(run(scheduler, "interactive", asyncio.sleep, 5, run_timeout=0.001))]
    for _ in range(20):
        await asyncio.sleep(0.001)
        log += [scheduler.snapshot().batch_limit, scheduler.snapshot().interactive.sample_count]
    await asyncio.gather(*batch)
    return log + [(type(event), round(event.at - began, 5)) for event in recorder.events]


@scenario_on("default", "eager", "debug")
@each_door
@pytest.mark.parametrize("uptime", [1e7, 1e9])
@pytest.mark.parametrize("window", [0.001, 0.010])
async def test_b61_after_years_of_uptime_milliseconds_are_what_they_were(
    stage: Stage, run: Door, uptime: float, window: float
) -> None:
    """Floats lost the small increments: due timers did not run, or the loop turned for ever."""
    settings: dict[str, Any] = {"max_concurrency": 4, "window": window}
    young = stage.scheduler(policy=PressurePolicy(rps_threshold=4 / window), **settings)
    expected = await _short_life(run, young)

    await asyncio.sleep(uptime - now())
    old = stage.scheduler(policy=PressurePolicy(rps_threshold=4 / window), **settings)

    assert await _short_life(run, old) == expected
    assert QueueTimeout in expected
    assert RunTimeout in expected


ODD: list[tuple[object, str]] = [
    (0, "zero"),
    (-1, "below zero"),
    (1e-9, "tiny"),
    (1e12, "huge"),
    (math.inf, "huge"),
    (math.nan, "no number"),
    (None, "none"),
    ("5", "no number"),
    (True, "no number"),
    (timedelta(seconds=5), "no number"),
]

each_odd_value = pytest.mark.parametrize("value,what", ODD, ids=[str(value) for value, _ in ODD])


@scenario
@each_door
@each_odd_value
async def test_b64_a_queue_timeout_of_any_value_is_refused_or_means_what_it_says(
    stage: Stage, run: Door, value: Any, what: str
) -> None:
    """Odd delays went straight to the loop's timer: overflow, fired at once, or never fired and blocked the queue."""
    scheduler = stage.scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    tasks = [start(run(scheduler, kind, noop, queue_timeout=value)) for kind in KINDS]
    await asyncio.sleep(stage.seconds(1))
    for call in held:
        call.release()
    endings = {await outcome(task) for task in tasks}

    refused = {"no number": ConfigError, "huge": None, "none": None}
    assert endings == {refused.get(what, QueueTimeout)}


@scenario
@each_door
@each_odd_value
async def test_b64_a_run_timeout_of_any_value_is_refused_or_means_what_it_says(
    stage: Stage, run: Door, value: Any, what: str
) -> None:
    """As before, for running calls."""
    scheduler = stage.scheduler()

    endings = {
        await outcome(run(scheduler, kind, asyncio.sleep, stage.seconds(1), run_timeout=value)) for kind in KINDS
    }

    meaning = {"tiny": RunTimeout, "huge": None, "none": None}
    assert endings == {meaning.get(what, ConfigError)}


REFUSED = {
    "interactive_queue_timeout": {"no number"},
    "batch_queue_timeout": {"no number"},
    "interactive_run_timeout": {"no number", "zero", "below zero"},
    "batch_run_timeout": {"no number", "zero", "below zero"},
    "batch_starvation_timeout": {"no number", "below zero"},
    "close_timeout": {"no number", "below zero"},
    "window": {"no number", "zero", "below zero", "tiny", "huge", "none"},
    "interactive_p95_threshold": {"no number", "zero", "below zero"},
    "interactive_rps_threshold": {"no number", "zero", "below zero"},
}


@scenario
@each_odd_value
async def test_b64_a_setting_in_seconds_of_any_value_is_refused_whole_or_works(
    stage: Stage, value: Any, what: str
) -> None:
    """As before, for what is set for all calls, at birth and at run time."""
    for name, refused in REFUSED.items():
        scheduler = stage.scheduler(name=name)
        before = scheduler._settings
        if what in refused or (name.endswith("threshold") and value == math.inf):
            with pytest.raises(ConfigError, match=name):
                TrafficScheduler(max_concurrency=2, **{name: value})
            with pytest.raises(ConfigError, match=name):
                scheduler.configure(**{name: value}, max_concurrency=5)
            assert scheduler._settings is before
        else:
            scheduler.configure(**{name: value}, max_concurrency=5)
            twin = stage.scheduler(max_concurrency=5, **{name: value})
            for one in (scheduler, twin):
                await asyncio.wait([start(one.submit(kind, asyncio.sleep, 0)) for kind in KINDS for _ in range(3)])
                one.configure(**{name: getattr(before, name)})
            await stage.canaries(scheduler)


@scenario
@each_odd_value
async def test_b64_a_close_timeout_of_any_value_is_refused_or_means_what_it_says(
    stage: Stage, value: Any, what: str
) -> None:
    """As before, for the end."""
    scheduler = stage.scheduler()
    held = hold(scheduler)
    await settle()
    later = asyncio.get_running_loop().call_later(stage.seconds(1), held.release)
    if what in ("no number", "below zero"):
        with pytest.raises(ConfigError, match="timeout"):
            await scheduler.close(timeout=value)
        await stage.canaries(scheduler)
        await held.task
        return

    report = await scheduler.close(timeout=value)
    later.cancel()

    assert (report.finished, report.cancelled) == ((1, 0) if what in ("huge", "none") else (0, 1))


@scenario
@each_door
async def test_b65_no_call_starts_before_it_was_submitted_or_ends_before_it_starts(stage: Stage, run: Door) -> None:
    """Time was read several times, rounded, or moved meanwhile: dispatch before arrival, a negative duration."""
    for seed in range(stage.share(30)):
        await _live_in_small_steps(stage, run, random.Random(seed))


async def _live_in_small_steps(stage: Stage, run: Door, chance: random.Random) -> None:
    loop = asyncio.get_running_loop()
    steps = [0.0, 0.0, 0.0, 1e-9, 1e-6, 0.001]
    scheduler = stage.scheduler(max_concurrency=3, interactive_p95_threshold=0.001, window=0.05)
    recorder = Recorder(scheduler)
    ages: list[float] = []

    def time_passes() -> None:
        if isinstance(loop, VirtualTimeLoop):  # also within a callback, as real time does
            loop._clock.now += chance.choice(steps)

    async def job() -> None:
        time_passes()
        await asyncio.sleep(chance.choice(steps))
        time_passes()

    tasks = []
    for number in range(30):
        patience = chance.choice([None, 0, 1e-9, 0.001])
        tasks.append(start(run(scheduler, chance.choice(KINDS), job, label=str(number), queue_timeout=patience)))
        time_passes()
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice(steps))
            chance.choice(tasks).cancel()
        seen = scheduler.snapshot()
        ages += [seen.oldest_interactive_wait, seen.oldest_batch_wait, seen.timer_lateness]
        ages += [seen.oldest_interactive_running, seen.oldest_batch_running]
        ages += [age for call in scheduler.calls() for age in (call.age, call.waited)]
    await asyncio.wait(tasks)

    assert min(ages) >= 0
    # A timer that fires early has fired at its due time, on uvloop up to a millisecond later.
    _check_order(recorder, slack=0.0 if stage.virtual else 0.002)


def _check_order(recorder: Recorder, slack: float) -> None:
    queued = {event.label: event.at for event in recorder.of(CallQueued)}
    started = {event.label: event.at for event in recorder.of(CallStarted)}
    for event in recorder.of(CallStarted):
        assert event.waited >= 0
        assert queued.get(event.label, -math.inf) <= event.at
    for end in recorder.of(CallFinished):
        assert min(end.waited, end.ran) >= 0
        assert started.get(end.label, queued.get(end.label, -math.inf)) <= end.at + slack
    if not slack:  # real time passes between two readings within one step
        times = [event.at for event in recorder.events]
        assert times == sorted(times)
