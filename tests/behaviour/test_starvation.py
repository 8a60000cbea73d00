"""Batch work moves, however much interactive traffic there is: promise 7 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from llm_traffic_scheduler import FixedPolicy, TrafficScheduler
from tests.support import Held, armed_timers, hold, make_scheduler, now, settle

SERVICE = 0.5  # seconds that each call of the flood takes


class Flood:
    """Interactive calls that never stop waiting: two take the slots, and five wait at any instant."""

    def __init__(self, scheduler: TrafficScheduler) -> None:
        self._clients = [asyncio.create_task(self._client(scheduler)) for _ in range(7)]

    async def _client(self, scheduler: TrafficScheduler) -> None:
        while True:
            await scheduler.submit("interactive", asyncio.sleep, SERVICE)

    async def end(self) -> None:
        for client in self._clients:
            client.cancel()
        await settle()


async def start_times(scheduler: TrafficScheduler, count: int, until: float) -> list[float]:
    """When each of `count` batch calls of no length started, of those that did by `until`."""
    starts: list[float] = []

    async def note() -> None:
        starts.append(now())

    calls = [asyncio.create_task(scheduler.submit("batch", note)) for _ in range(count)]
    await asyncio.sleep(until - now())
    for call in calls:
        call.cancel()
    return starts


async def test_the_first_batch_call_starts_with_the_first_free_slot_after_the_timeout() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=30)
    flood = Flood(scheduler)
    await settle()

    starts = await start_times(scheduler, 3, until=100)
    await flood.end()

    # Thirty seconds after the queue became non-empty, then thirty after each start.
    assert starts == pytest.approx([30, 60, 90], abs=SERVICE)
    assert all(at >= 30 for at in starts)


async def test_the_guard_is_thirty_seconds_unless_said_otherwise() -> None:
    scheduler = make_scheduler()
    flood = Flood(scheduler)
    await settle()

    assert await start_times(scheduler, 1, until=35) == pytest.approx([30], abs=SERVICE)
    await flood.end()


async def test_none_switches_the_guard_off_and_the_longest_wait_stays_visible() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=None)
    flood = Flood(scheduler)
    await settle()
    waiting = hold(scheduler, "batch")

    await asyncio.sleep(120)
    assert not waiting.started
    assert scheduler.snapshot().oldest_batch_wait == 120
    assert "longest 120 s" in scheduler.explain()

    await flood.end()
    assert waiting.started


async def test_the_guard_needs_no_timer() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=5)
    hold(scheduler), hold(scheduler)
    await settle()
    hold(scheduler, "batch"), hold(scheduler)
    await settle()

    assert armed_timers() == []


async def test_the_wait_is_counted_from_when_the_queue_became_non_empty() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=10)
    running = [hold(scheduler), hold(scheduler)]
    await settle()
    for _ in range(3):
        hold(scheduler)
    await asyncio.sleep(50)  # nothing of batch has started for long, but none was waiting either
    batch = hold(scheduler, "batch")
    await asyncio.sleep(9)

    running[0].release()
    await settle()
    assert not batch.started

    await asyncio.sleep(1)
    running[1].release()
    await settle()
    assert batch.started


async def test_the_wait_is_counted_from_the_last_batch_start() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=10)
    first, person = hold(scheduler, "batch"), hold(scheduler)
    await settle()
    batch, people = hold(scheduler, "batch"), [hold(scheduler) for _ in range(3)]
    await asyncio.sleep(9.9)

    first.release()  # none of batch runs, but one started ten seconds ago, less a tenth
    await settle()
    assert people[0].started
    assert not batch.started

    await asyncio.sleep(0.1)
    person.release()
    await settle()
    assert batch.started
    assert not people[1].started


async def test_the_guard_rests_while_the_minimum_of_batch_runs() -> None:
    scheduler = make_scheduler(max_concurrency=4, batch_min_concurrency=2, batch_starvation_timeout=10)
    batch = [hold(scheduler, "batch") for _ in range(2)]
    people = [hold(scheduler) for _ in range(5)]
    await settle()
    waiting = hold(scheduler, "batch")
    await asyncio.sleep(100)

    people[0].release()
    await settle()
    assert people[2].started  # two of batch run: that is no starvation, however long nothing starts
    assert not waiting.started

    batch[0].release()
    await settle()
    assert waiting.started  # past two people who wait
    assert not people[3].started


async def test_the_guard_passes_people_in_the_order_of_batch() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=10)
    running = [hold(scheduler), hold(scheduler)]
    await settle()
    log: list[str] = []
    for name, priority in [("a", 0), ("b", 0), ("urgent", -1)]:
        hold(scheduler, "batch", name=name, log=log, priority=priority)
    hold(scheduler, name="person", log=log, priority=-5)
    await asyncio.sleep(10)

    running[0].release()
    await settle()
    running[1].release()
    await settle()

    assert log == ["urgent", "person"]


async def test_the_guard_passes_neither_the_cap_nor_the_batch_limit() -> None:
    scheduler = make_scheduler(max_concurrency=4, policy=FixedPolicy(1), batch_starvation_timeout=0)
    running = hold(scheduler, "batch")
    people = [hold(scheduler) for _ in range(4)]
    batch = [hold(scheduler, "batch") for _ in range(3)]
    await asyncio.sleep(100)
    assert not people[3].started

    scheduler.configure(max_concurrency=3)
    running.release()
    await settle()
    assert not any(held.started for held in batch)  # three people run, and three is the cap

    people[0].release()
    people[1].release()
    await settle()
    assert [held.started for held in batch] == [True, False, False]
    assert people[3].started


async def test_the_guard_rests_while_batch_is_paused_and_counts_anew_afterwards() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=10)
    flood = Flood(scheduler)
    await settle()
    batch = hold(scheduler, "batch")
    await asyncio.sleep(5)
    scheduler.pause("batch")
    await asyncio.sleep(60)
    assert not batch.started

    scheduler.resume("batch")
    await asyncio.sleep(9.9)
    assert not batch.started
    await asyncio.sleep(0.1 + SERVICE)

    assert batch.started
    await flood.end()


@pytest.mark.parametrize("leave", [Held.cancel, None])
async def test_a_batch_call_that_is_dead_when_its_turn_comes_does_not_use_the_turn_up(
    leave: Callable[[Held], None] | None,
) -> None:
    scheduler = make_scheduler(batch_starvation_timeout=10)
    running = [hold(scheduler), hold(scheduler)]
    await settle()
    options: dict[str, Any] = {} if leave else {"queue_timeout": 20}
    first, second = hold(scheduler, "batch", **options), hold(scheduler, "batch")
    person = hold(scheduler)
    await asyncio.sleep(20)

    running[0].release()  # the turn is the first one's, whose caller has gone without having started
    if leave:
        leave(first)
    await settle()

    assert not first.started
    assert second.started
    assert not person.started


async def test_a_new_timeout_counts_from_the_next_release() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=None)
    running = [hold(scheduler), hold(scheduler)]
    await settle()
    batch, person = hold(scheduler, "batch"), hold(scheduler)
    await asyncio.sleep(20)

    scheduler.configure(batch_starvation_timeout=15)
    running[0].release()
    await settle()

    assert batch.started
    assert not person.started
