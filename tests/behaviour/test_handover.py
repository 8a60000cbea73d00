"""How a slot passes from one call to the next: promises 8 and 14 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time

import pytest

from llm_traffic_scheduler import Decision, QueueTimeout, TrafficScheduler
from tests.support import Held, Law, account, hold, make_scheduler, noop, settle


async def test_the_slot_is_counted_to_the_next_call_before_that_one_wakes() -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    heir = hold(scheduler, label="heir")
    await settle()

    first.release()
    while not first.task.done():
        await asyncio.sleep(0)
        if not heir.started:
            snapshot = scheduler.snapshot()
            assert snapshot.running == 2
            assert len(scheduler.calls()) == 2 + snapshot.interactive_queued

    await settle()
    assert heir.started
    assert not second.task.done()


async def test_a_newcomer_cannot_take_a_slot_between_its_release_and_the_wake_up_of_its_heir() -> None:
    scheduler = make_scheduler()
    gate = asyncio.Event()

    async def leave_and_come_back() -> None:
        async with scheduler.slot("interactive"):
            await gate.wait()
        # No suspension point since the release: the heir has not woken up yet.
        assert not heir.started
        await scheduler.submit("interactive", noop, queue_timeout=0)

    greedy = asyncio.create_task(leave_and_come_back())
    hold(scheduler)
    await settle()
    heir = hold(scheduler)
    await settle()

    gate.set()
    await settle()

    assert heir.started
    assert isinstance(greedy.exception(), QueueTimeout)


async def test_a_call_takes_a_free_slot_at_once_only_if_nobody_of_its_kind_waits() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    log: list[str] = []
    hold(scheduler, name="first", log=log)
    await settle()

    scheduler.resume("interactive")  # both slots are free, and `first` has not woken up
    hold(scheduler, name="second", log=log)
    hold(scheduler, name="third", log=log)
    await settle()

    assert log == ["first", "second"]


async def test_a_call_that_comes_the_moment_the_limit_rises_goes_behind_those_who_wait() -> None:
    law = Law(lambda now, signals: Decision(1, valid_until=5.0) if now < 5 else Decision(2), reads=frozenset())
    scheduler = make_scheduler(max_concurrency=8, policy=law)
    hold(scheduler, "batch")
    first = hold(scheduler, "batch")
    await asyncio.sleep(5)
    assert not first.started  # the timer is about to fire

    newcomer = hold(scheduler, "batch")
    await settle()

    assert first.started
    assert not newcomer.started


async def test_a_lowered_and_raised_limit_makes_no_slots() -> None:
    scheduler = make_scheduler(max_concurrency=6)
    running = [hold(scheduler) for _ in range(6)]
    await settle()
    waiting = [hold(scheduler) for _ in range(6)]
    await settle()

    for _ in range(5):
        scheduler.configure(max_concurrency=2)
        scheduler.configure(max_concurrency=6)
    running[0].release()
    await settle()

    assert [held.started for held in waiting] == [True] + [False] * 5
    scheduler.check()


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next_one() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    hold(scheduler)
    await settle()
    leaver, stayer = hold(scheduler), hold(scheduler)
    await settle()

    first.release()  # its task wakes before the leaver's ...
    leaver.cancel()  # ... which is dead when the slot is handed on
    await settle()

    assert leaver.task.cancelled()
    assert not leaver.started
    assert stayer.started
    scheduler.check()


async def test_a_slot_passes_any_number_of_dead_waiters_without_recursion() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    hold(scheduler)
    await settle()
    dead = [hold(scheduler) for _ in range(sys.getrecursionlimit() + 200)]
    alive = hold(scheduler)
    await settle()

    first.release()
    for held in dead:
        held.cancel()
    await settle()

    assert alive.started
    assert not any(held.started for held in dead)
    assert account(scheduler, "interactive").cancelled == len(dead)
    scheduler.check()


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_what_stood_behind_a_cancelled_call_moves_up_by_the_next_pass(kind: str) -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    hold(scheduler)
    await settle()
    leaver, stayer = hold(scheduler, kind), hold(scheduler, kind)
    await settle()

    leaver.cancel()
    await asyncio.sleep(0)
    assert len(scheduler.calls()) == 3

    first.release()
    await settle()
    assert stayer.started


async def test_a_cancelled_call_gives_its_place_in_a_bounded_queue_back() -> None:
    scheduler = make_scheduler(max_queued_interactive=1)
    first, _, leaver = hold(scheduler), hold(scheduler), hold(scheduler)
    await settle()

    leaver.cancel()
    await settle()
    successor = hold(scheduler)
    await settle()
    first.release()
    await settle()

    assert successor.started


async def queue_up(scheduler: TrafficScheduler, count: int) -> list[Held]:
    waiting = [hold(scheduler, "batch", queue_timeout=600) for _ in range(count)]
    await settle()
    return waiting


async def test_thousands_of_cancelled_waiters_leave_no_memory_behind() -> None:
    scheduler = make_scheduler()
    hold(scheduler), hold(scheduler)
    await settle()
    anchor = hold(scheduler, "batch", queue_timeout=600)
    await settle()

    async def storm(count: int) -> None:
        waiting = await queue_up(scheduler, count)
        random.Random(3).shuffle(waiting)
        for held in waiting:
            held.cancel()
        await settle()

    await storm(500)  # what is made once and kept is no leak
    gc.collect()
    before = sys.getallocatedblocks()
    await storm(5_000)
    gc.collect()

    assert sys.getallocatedblocks() - before < 1_000  # of more than ten that each call takes
    assert len(scheduler.calls()) == 3
    assert not anchor.started
    scheduler.check()


async def test_a_queue_that_never_empties_keeps_only_those_who_wait() -> None:
    scheduler = make_scheduler(batch_starvation_timeout=None)
    scheduler.pause("batch")
    current = [hold(scheduler) for _ in range(5)]

    async def go_round(count: int) -> None:
        """An interactive call ends and another comes to wait, in turn with a batch call that leaves again."""
        for _ in range(count):
            fleeting = hold(scheduler, "batch")
            current.append(hold(scheduler))
            current.pop(0).release()
            await settle(3)
            fleeting.cancel()
            await settle(2)

    await go_round(200)
    gc.collect()
    before = sys.getallocatedblocks()
    await go_round(1_000)
    gc.collect()

    assert sys.getallocatedblocks() - before < 1_000
    assert scheduler.snapshot().running == 2


async def test_removing_a_waiting_call_does_not_take_longer_in_a_longer_queue() -> None:
    async def seconds_per_cancel(count: int) -> float:
        scheduler = make_scheduler()
        hold(scheduler), hold(scheduler)
        await settle()
        waiting = await queue_up(scheduler, count)
        leaving = waiting[:: count // 150]  # 150 of them, from all over the queue
        begin = time.process_time()
        for held in leaving:
            held.cancel()
        await settle()
        spent = time.process_time() - begin
        for held in waiting:
            held.cancel()
        await settle()
        return spent / len(leaving)

    short = min([await seconds_per_cancel(300) for _ in range(3)])
    long = await seconds_per_cancel(6_000)

    # Twenty times the queue; a scan of it would take twenty times as long.
    assert long < 8 * short
