"""E. The backend asks to wait, and the calls say so: one back-off for all, in which nobody's slot lies idle."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from llm_traffic_scheduler import AdaptivePolicy, PressurePolicy, current_slot
from tests.behaviour.doors import Door, each_door, start
from tests.scenarios.jobs import noting
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.support import now, settle


@scenario
@each_door
@pytest.mark.parametrize("policy", [PressurePolicy, AdaptivePolicy])
async def test_b73_what_one_call_is_told_holds_batch_back_for_all_and_no_slot_lies_idle(
    stage: Stage, run: Door, policy: type[PressurePolicy] | type[AdaptivePolicy]
) -> None:
    """429 with Retry-After was ignored by all others, and its own slot slept."""
    law = PressurePolicy(rps_threshold=1e9) if policy is PressurePolicy else AdaptivePolicy()
    scheduler = stage.scheduler(max_concurrency=10, batch_max_concurrency=6, batch_min_concurrency=1, policy=law)
    tries, answered = itertools.count(), list[float]()
    first, wait = now(), stage.seconds(20)

    async def job() -> None:
        slot = current_slot()
        assert slot is not None
        if next(tries) < 3:
            async with slot.released():
                slot.throttled(wait)
                await asyncio.sleep(wait)
        answered.append(now() - first)

    throttled = [start(run(scheduler, "batch", job)) for _ in range(3)]
    await settle()
    assert (scheduler.snapshot().running, scheduler.snapshot().reason) == (0, "throttled")
    later = [start(run(scheduler, "batch", asyncio.sleep, stage.seconds(2))) for _ in range(30)]
    log: list[str] = []
    await asyncio.gather(*(start(run(scheduler, "interactive", noting(log, str(n)))) for n in range(9)))

    assert len(log) == 9
    assert scheduler.snapshot().batch_running <= 1
    if stage.virtual:
        await asyncio.sleep(19.9)
        assert sum(task.done() for task in later) == 9  # one at a time, of two seconds each
    await asyncio.gather(*throttled, *later)

    assert min(answered) >= wait - (0 if stage.virtual else 0.002)


@scenario_on("default", "eager", "debug")
@pytest.mark.parametrize("hint, seconds", [(20, 20.0), (0, 0.0), (None, 1.0), (86_400, 86_400.0)])
async def test_b73_a_hint_holds_as_long_as_it_says(stage: Stage, hint: float | None, seconds: float) -> None:
    scheduler = stage.scheduler(max_concurrency=10, batch_max_concurrency=6, policy=PressurePolicy(rps_threshold=1e9))
    async with scheduler.slot("interactive") as slot:
        slot.throttled(hint)
    began = now()
    tasks = [start(scheduler.submit("batch", asyncio.Event().wait)) for _ in range(6)]
    await settle()
    assert scheduler.snapshot().batch_running == (1 if seconds else 6)

    await asyncio.sleep(seconds)
    await asyncio.sleep(0.001)
    await settle()

    assert scheduler.snapshot().batch_running == 6
    assert now() - began == pytest.approx(seconds, abs=0.01)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
