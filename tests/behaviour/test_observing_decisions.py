"""When a policy that hears of single calls is advanced, and how soon what it then decides holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import Arrived, Decision, Ended, FirstToken, Signals, TrafficScheduler, current_slot
from tests.behaviour.callers import forever
from tests.behaviour.doors import start
from tests.heard import Heard
from tests.support import Law, hold, make_scheduler, noop, settle


async def test_the_policy_is_advanced_once_in_a_slice_and_before_it_hears_of_its_first_event() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard, window=10.0)

    tasks = []
    for step in range(90):  # three calls in each slice of 0.1 s, the ends of which are others
        tasks.append(start(scheduler.submit("interactive", asyncio.sleep, 0.95)))
        await asyncio.sleep(1 / 30 + step * 1e-9)

    slices = [int(at * 10 + 1e-6) for at in heard.advanced]
    assert slices == sorted(set(slices))
    assert len(slices) >= 30
    heard.check()


async def test_what_it_decides_after_it_has_heard_of_a_call_holds_at_once() -> None:
    class OneLess(Heard):
        def decide(self, now: float, signals: Signals) -> Decision:
            return Decision(signals.batch_max - len(self.unfinished))

    scheduler = make_scheduler(max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=OneLess())
    interactive = [hold(scheduler) for _ in range(2)]
    await settle()
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()

    assert sum(call.started for call in batch) == 2
    interactive[0].release()
    await settle()
    assert sum(call.started for call in batch) == 3
    interactive[1].release()
    await settle()
    assert sum(call.started for call in batch) == 4


class RisesOn(Law):
    """Lets one batch call run, and four once it has heard of an event of this type."""

    def __init__(self, type_: type[Any]) -> None:
        super().__init__(lambda now, signals: Decision(self.limit), reads=frozenset({"batch_max"}))
        self.limit = 1
        self.type = type_

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        if isinstance(event, self.type):
            self.limit = 4


async def test_batch_work_starts_as_soon_as_a_first_token_has_raised_its_limit() -> None:
    scheduler = make_scheduler(
        max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=RisesOn(FirstToken)
    )
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert sum(call.started for call in batch) == 1

    async with scheduler.slot("interactive") as slot:
        slot.first_token()
        scheduler.check()  # nobody who may run waits
        await settle()

        assert all(call.started for call in batch)


async def leaves_its_released_block(scheduler: TrafficScheduler) -> None:
    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await forever()

    task = start(scheduler.submit("interactive", work))
    await settle()
    task.cancel()


async def leaves_the_queue_as_a_slot_comes_free(scheduler: TrafficScheduler) -> None:
    held = [hold(scheduler, observe=False) for _ in range(5)]
    task = start(scheduler.submit("interactive", noop))
    await settle()
    task.cancel()
    scheduler.configure(max_concurrency=10)  # finds it gone
    assert not any(call.task.done() for call in held)


async def leaves_the_queue_while_it_is_paused(scheduler: TrafficScheduler) -> None:
    scheduler.pause("interactive")
    task = start(scheduler.submit("interactive", noop))
    await settle()
    task.cancel()


@pytest.mark.parametrize(
    "leave",
    [leaves_its_released_block, leaves_the_queue_as_a_slot_comes_free, leaves_the_queue_while_it_is_paused],
)
async def test_batch_work_starts_as_soon_as_the_end_of_a_call_has_raised_its_limit(
    leave: Callable[[TrafficScheduler], Awaitable[None]],
) -> None:
    scheduler = make_scheduler(
        max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=RisesOn(Ended)
    )
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert sum(call.started for call in batch) == 1

    await leave(scheduler)
    await settle()

    scheduler.check()
    assert all(call.started for call in batch)
