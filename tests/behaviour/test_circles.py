"""Two schedulers whose calls wait for each other's slots: the end of promise 17. Never a silent hang."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from typing import Any

import pytest

from llm_traffic_scheduler import PossibleDeadlock, TrafficScheduler, circles
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.support import armed_timers, hold, make_scheduler, noop, settle
from tests.unit.core.tracing import lines_run


async def crossed(first: TrafficScheduler, second: TrafficScheduler, label: str) -> None:
    """Calls in every slot of `first` that want one of `second`."""

    async def inner() -> None:
        await settle()
        await second.submit("interactive", noop, label=f"{label} inside")

    await asyncio.gather(*[first.submit("interactive", inner, label=f"{label} {n}") for n in range(2)])


async def test_calls_that_wait_for_each_others_slots_in_a_circle_are_named_after_five_seconds() -> None:
    left, right = make_scheduler(name="left"), make_scheduler(name="right")
    tasks = [asyncio.create_task(crossed(left, right, "l")), asyncio.create_task(crossed(right, left, "r"))]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await asyncio.sleep(4.9)
        assert not caught
        await asyncio.sleep(0.2)

    assert {warning.category for warning in caught} == {PossibleDeadlock}
    assert len(caught) <= 2  # of four calls that wait
    message = str(caught[0].message)
    assert "interactive call 'l 0'" in message
    assert "'r inside' waits for one of 'left'" in message
    for task in tasks:
        task.cancel()
    await settle()
    assert not left._home.crossing
    assert not right._home.crossing
    assert not armed_timers()


async def test_a_circle_of_three_is_found_too() -> None:
    ring = [make_scheduler() for _ in range(3)]
    tasks = [asyncio.create_task(crossed(ring[n], ring[(n + 1) % 3], str(n))) for n in range(3)]
    with pytest.warns(PossibleDeadlock):
        await asyncio.sleep(5.1)
    for task in tasks:
        task.cancel()
    await settle()
    assert not any(scheduler._home.crossing for scheduler in ring)


async def test_waiting_for_another_scheduler_in_one_direction_is_no_circle() -> None:
    gateway, backend = make_scheduler(), make_scheduler()

    async def slow() -> None:
        await asyncio.sleep(20)

    async def through() -> Any:
        return await backend.submit("interactive", slow)

    await asyncio.gather(*[gateway.submit("interactive", through) for _ in range(2)], backend.submit("batch", slow))
    assert not backend._home.crossing
    assert not armed_timers()


async def test_a_look_costs_no_more_among_thousands_that_wait() -> None:
    costs = []
    for number in (10, 2000):
        gateway, backend = make_scheduler(), make_scheduler()
        held = [hold(backend, label="held") for _ in range(2)]
        await settle()
        agent = asyncio.create_task(gateway.submit("interactive", fan_out, backend, number))
        await settle()
        waiting = next(iter(backend._home.crossing[gateway._home]))

        costs.append(lines_run(lambda call=waiting: circles._look(call)))  # type: ignore[misc]
        for each in held:
            each.release()
        await agent

    assert costs[0] == costs[1]


async def fan_out(backend: TrafficScheduler, number: int) -> None:
    await asyncio.gather(*[backend.submit("interactive", noop) for _ in range(number)])


def test_calls_of_a_loop_that_was_dropped_are_not_kept() -> None:
    loop, gateway, backend = VirtualTimeLoop(), make_scheduler(), make_scheduler()
    backend.pause("interactive")

    async def begin(gateway: TrafficScheduler, backend: TrafficScheduler) -> None:
        agent = asyncio.create_task(gateway.submit("interactive", fan_out, backend, 3))
        await settle()
        assert not agent.done()

    loop.run_until_complete(begin(gateway, backend))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    home = weakref.ref(backend._home)
    del gateway, backend, loop, task
    gc.collect()

    assert home() is None
