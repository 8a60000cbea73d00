"""What calls inside of calls count and cost: in a lent slot they are no traffic of their own. Promises 17 and 28."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from llm_traffic_scheduler import TrafficScheduler, current_slot
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.surroundings import active, lineage
from tests.behaviour.doors import assert_whole
from tests.behaviour.nested import full
from tests.support import Recorder, account, hold, make_scheduler, noop, now, settle
from tests.unit.core.tracing import lines_run


async def test_a_call_in_a_lent_slot_is_no_arrival_no_sample_no_total_and_no_event() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    (other,) = await full(scheduler)
    before = scheduler.snapshot().interactive

    async def inner() -> None:
        await asyncio.sleep(1)

    async def parent() -> None:
        await scheduler.submit("interactive", inner, label="inner")
        await asyncio.gather(*[scheduler.submit("interactive", inner, label="inner") for _ in range(2)])

    await scheduler.submit("batch", parent, label="parent")

    assert scheduler.snapshot().interactive.rps == before.rps
    assert scheduler.snapshot().interactive.sample_count == 0
    assert account(scheduler, "interactive").submitted == 1
    assert account(scheduler, "batch").submitted == 1
    assert not [name for name in recorder.names if name.endswith("inner")]
    other.release()


async def test_interactive_calls_in_the_slot_of_an_interactive_one_are_no_traffic_of_their_own() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    (other,) = await full(scheduler)

    async def inner(give_way: bool) -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        if give_way:
            async with slot.released():
                other.release()
                await settle()

    async def parent() -> None:
        await scheduler.submit("interactive", inner, False)
        await asyncio.gather(*[scheduler.submit("interactive", inner, give_way) for give_way in (False, True)])

    await scheduler.submit("interactive", parent)

    # The one that held the other slot, and the parent.
    assert scheduler.snapshot().interactive.rps == 0.2
    assert scheduler.snapshot().interactive.sample_count == 2
    await assert_whole(scheduler)


async def test_waiting_children_are_listed_but_count_only_with_a_slot_of_their_own() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    (other,) = await full(scheduler)
    gate = asyncio.Event()

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("interactive", gate.wait, label=f"child {n}") for n in range(3)])

    task = asyncio.create_task(scheduler.submit("interactive", parent))
    await settle()
    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.interactive_queued, snapshot.totals["interactive"].submitted) == (2, 0, 2)
    assert [call.label for call in scheduler.calls() if call.state == "queued"] == ["child 1", "child 2"]
    assert snapshot.interactive.rps == 0.2

    other.release()
    await settle()
    assert scheduler.snapshot().totals["interactive"].submitted == 3
    assert scheduler.snapshot().interactive.rps == pytest.approx(0.3)
    gate.set()
    await task
    assert account(scheduler, "interactive").completed == 3
    await assert_whole(scheduler)


async def test_a_full_queue_does_not_refuse_nested_calls() -> None:
    scheduler = make_scheduler(max_queued_batch=0)

    async def parent() -> None:
        await asyncio.gather(*[scheduler.submit("batch", asyncio.sleep, 1) for _ in range(3)])

    await scheduler.submit("batch", parent)
    assert now() == 3.0


async def test_a_call_that_has_ended_is_no_unfinished_sample_although_its_slot_is_still_used() -> None:
    scheduler = make_scheduler(interactive_p95_threshold=5.0)
    other, inner = hold(scheduler, observe=False), []

    async def parent() -> None:
        inner.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 60)))
        await asyncio.sleep(1)

    await settle()
    await scheduler.submit("interactive", parent)
    await asyncio.sleep(30)

    assert scheduler.snapshot().interactive_running == 2
    assert (scheduler.snapshot().pressure, scheduler.snapshot().interactive.sample_count) == (0.0, 0)
    other.release()
    await asyncio.gather(*inner)
    await assert_whole(scheduler)


async def test_chains_of_background_tasks_keep_nothing_of_the_calls_before() -> None:
    scheduler = make_scheduler()
    depth: list[int] = []
    tasks: list[asyncio.Task[Any]] = []

    async def hop(left: int) -> None:
        depth.append(len([node for node in lineage(active.get()) if isinstance(node, Call)]))
        if left:
            tasks.append(asyncio.create_task(later(left - 1)))

    async def later(left: int) -> None:
        await settle()
        await scheduler.submit("batch", hop, left)

    await scheduler.submit("batch", hop, 10)
    while tasks:
        await tasks.pop()
    assert depth == [1] * 11


async def test_a_newcomer_and_a_look_cost_no_more_among_thousands_of_nested_calls_that_wait() -> None:
    costs = []
    for number in (10, 2000):
        scheduler, gate = make_scheduler(max_queued_batch=10), asyncio.Event()
        other = hold(scheduler)

        async def parent(scheduler: TrafficScheduler, gate: asyncio.Event, number: int) -> None:
            await asyncio.gather(*[scheduler.submit("batch", gate.wait) for _ in range(number)])

        agent = asyncio.create_task(scheduler.submit("batch", parent, scheduler, gate, number))
        await settle()
        newcomer = scheduler.submit("batch", noop)

        costs.append(lines_run(partial(newcomer.send, None)) + lines_run(scheduler.snapshot))
        newcomer.close()
        gate.set()
        other.release()
        await asyncio.gather(agent, other.task)

    assert costs[1] == pytest.approx(costs[0], abs=20)
