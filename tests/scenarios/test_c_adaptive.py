"""C. The control loop, with a law that learns: a burst is one piece of news, noise is none, and disuse proves nothing.

Virtual time only: the law learns in seconds of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from llm_traffic_scheduler import AdaptivePolicy, current_slot
from tests.behaviour.doors import outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario_on
from tests.scenarios.traffic import arrivals, backlog, limits_seen
from tests.support import settle

in_virtual_time = scenario_on("default", "eager", "debug")

WINDOW = 10.0


def gateway(stage: Stage, *, batch_max: int, target: float) -> Counted:
    """As many slots for batch as said, 56 more, and an interactive P95 that is to be kept."""
    return stage.scheduler(
        max_concurrency=batch_max + 56,
        batch_max_concurrency=batch_max,
        batch_min_concurrency=2,
        policy=AdaptivePolicy(p95_target=target),
        window=WINDOW,
    )


# B41


async def _fail(told: float | None) -> None:
    slot = current_slot()
    assert slot is not None
    await asyncio.sleep(0.1)
    if told is not None:
        slot.throttled(told)
    raise RuntimeError("429")


@in_virtual_time
async def test_b41_a_burst_of_failures_does_not_cut_the_limit_once_for_each(stage: Stage) -> None:
    """One error burst of the same in-flight group cut the limit from 128 to single digits at once."""
    scheduler = gateway(stage, batch_max=64, target=1.0)
    with backlog(scheduler, 1.0, width=70):
        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=80, every=0.5)
        before = scheduler.snapshot().batch_limit
        burst = [start(scheduler.submit("interactive", _fail, None)) for _ in range(20)]
        await asyncio.sleep(0.11)
        assert all(task.done() for task in burst)
        after = await limits_seen(scheduler, count=100, every=0.1)

    assert before >= 50
    assert min(after) >= 32
    assert min(after[:10]) >= before - 25  # room for the twenty themselves, which end in between


@in_virtual_time
async def test_b41_twenty_wishes_to_wait_are_one_and_what_was_learnt_stays(stage: Stage) -> None:
    scheduler = gateway(stage, batch_max=64, target=1.0)
    with backlog(scheduler, 0.5, width=70):
        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=80, every=0.5)
        before = scheduler.snapshot().batch_limit
        burst = [start(scheduler.submit("interactive", _fail, 2.0)) for _ in range(20)]
        await asyncio.sleep(0.11)
        assert all(task.done() for task in burst)
        held_back = await limits_seen(scheduler, count=19, every=0.1)
        opened = await limits_seen(scheduler, count=12, every=0.1)

    assert before >= 50
    assert set(held_back) == {2}
    # Back within a tenth of the window, and in steps: not all of them start in one pass.
    assert opened[-1] >= before - 5
    assert max(later - earlier for earlier, later in itertools.pairwise(opened)) <= 64 // 8 + 1


# B45


@in_virtual_time
async def test_b45_a_limit_that_nobody_uses_does_not_grow(stage: Stage) -> None:
    """Ten quiet minutes took the limit to its maximum; the next burst went through at full width."""
    scheduler = gateway(stage, batch_max=200, target=1.0)
    minutes = 4 if stage.loop == "default" else 1
    # With nobody else about a call takes 0.1 s: by the law's own reckoning 18 may run, 26 as none ever misses, and a
    # little more, as one call at its end weighs more than one.
    await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=minutes * 120, every=0.5)
    before = scheduler.snapshot().batch_limit

    tasks = [start(scheduler.submit("batch", asyncio.sleep, 5)) for _ in range(200)]
    await settle()
    started = scheduler.snapshot().batch_running

    assert before <= 50
    assert started <= 26
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# B48


def backend(scheduler: Counted, noise: float) -> Callable[[int], Awaitable[None]]:
    """A call takes half a second beside ten others, and the longer the more there are; up to `noise` more or less."""
    chance = random.Random(48)

    async def job(_: int) -> None:
        load = scheduler.snapshot().running / 10
        await asyncio.sleep(0.5 * load**0.8 * chance.uniform(1 - noise, 1 + noise))

    return job


@scenario_on("default")
@pytest.mark.parametrize("noise", [0.2, 0.0])
@pytest.mark.slow
async def test_b48_noise_around_the_target_does_not_make_the_limit_swing(stage: Stage, noise: float) -> None:
    """The limit alternated between two values in each window."""
    scheduler = gateway(stage, batch_max=40, target=1.0)
    windows = 40
    seen = []
    with backlog(scheduler, 1.0, width=45):
        job = backend(scheduler, noise)
        await arrivals(scheduler, job, count=120, every=0.5)  # it learns
        for _ in range(windows):
            tasks = await arrivals(scheduler, job, count=5, every=2.0)
            await asyncio.wait(tasks)
            seen.append(scheduler.snapshot().batch_limit)

    steps = [later - earlier for earlier, later in itertools.pairwise(seen)]
    assert all(abs(step) <= 2 for step in steps)
    swings = sum(first * second < 0 for first, second in itertools.pairwise(steps))
    assert swings <= windows / 5


@scenario_on("default")
async def test_b48_at_the_very_target_the_limit_stands_still(stage: Stage) -> None:
    scheduler = gateway(stage, batch_max=40, target=1.0)
    with backlog(scheduler, 1.0, width=45):
        await arrivals(scheduler, lambda _: asyncio.sleep(1.0), count=150, every=2.0)
        seen = await limits_seen(scheduler, count=1, every=0.0)
        for _ in range(100):
            await arrivals(scheduler, lambda _: asyncio.sleep(1.0), count=1, every=2.0)
            seen += await limits_seen(scheduler, count=1, every=0.0)

    assert sum(first != second for first, second in itertools.pairwise(seen)) <= 3
    assert await outcome(scheduler.submit("interactive", asyncio.sleep, 0)) is None
