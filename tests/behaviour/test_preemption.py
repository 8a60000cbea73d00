"""`preemptible=True`: whom the scheduler stops for interactive calls that wait, and when. Promise 20."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import released
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.preemptible import Job, busy, slots, stopped
from tests.support import account, hold, noop, now, settle


async def test_a_call_that_may_be_preempted_makes_room_and_runs_again_when_there_is_some() -> None:
    scheduler = slots(3)
    old, new = await busy(scheduler, 2)
    person = hold(scheduler)
    await settle()

    assert person.started
    assert (stopped(old, new), len(new.began)) == ([0, 1], 1)
    assert scheduler.snapshot().batch_queued == 1
    person.release()
    await settle()
    assert len(new.began) == 2
    assert (await old.task, await new.task) == ("done", "done")


async def test_who_did_not_ask_for_it_is_never_preempted() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2, preemptible=False)
    person = hold(scheduler)
    await settle()

    assert not person.started
    assert stopped(*jobs) == [0, 0]
    assert not scheduler._home.attentive, "every change is looked at although nobody may be preempted"


async def test_an_interactive_call_is_never_preempted() -> None:
    scheduler = slots(4)
    for _ in range(2):
        hold(scheduler, "batch")
    jobs = await busy(scheduler, 1, kind="interactive")
    person = hold(scheduler)
    await settle()

    assert not person.started
    assert stopped(*jobs) == [0]


async def test_nobody_is_stopped_while_a_slot_is_free() -> None:
    scheduler = slots(4, batch=2)
    jobs = await busy(scheduler, 2)
    person = hold(scheduler)
    await settle()

    assert person.started
    assert stopped(*jobs) == [0, 0]


async def test_nobody_is_stopped_for_batch_calls_that_wait() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2)
    waiting = hold(scheduler, "batch")
    await settle()

    assert not waiting.started
    assert stopped(*jobs) == [0, 0]


async def test_a_slot_that_comes_free_in_the_same_pass_spares_the_call() -> None:
    scheduler = slots(3)
    first = hold(scheduler)
    await settle()
    jobs = [Job(scheduler), Job(scheduler)]
    await settle()
    person = hold(scheduler)
    first.release()
    await settle()

    assert person.started
    assert stopped(*jobs) == [0, 0]


async def test_nobody_is_stopped_for_one_that_has_left_again() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2)
    person = hold(scheduler)
    await asyncio.sleep(0)
    assert scheduler.snapshot().interactive_queued == 1
    person.cancel()
    await settle()

    assert stopped(*jobs) == [0, 0]


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_nobody_is_stopped_while_a_kind_is_paused(kind: Any) -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2)
    scheduler.pause(kind)
    person = hold(scheduler)
    await settle()
    assert stopped(*jobs) == [0, 0]

    scheduler.resume(kind)
    await settle()
    assert person.started
    assert stopped(*jobs) == [0, 1]


@pytest.mark.parametrize("minimum", [1, 2, 3])
async def test_never_below_the_minimum_of_batch_calls(minimum: int) -> None:
    scheduler = slots(4, batch_min_concurrency=minimum)
    jobs = await busy(scheduler, 3)
    people = [hold(scheduler) for _ in range(5)]
    await settle()

    assert scheduler.snapshot().batch_running == minimum
    assert stopped(*jobs) == [0, int(minimum < 2), int(minimum < 3)]
    assert sum(person.started for person in people) == 3 - minimum


async def test_the_newest_is_stopped_first() -> None:
    scheduler = slots(5)
    jobs = await busy(scheduler, 4)
    hold(scheduler)
    await settle()
    assert stopped(*jobs) == [0, 0, 0, 1]

    hold(scheduler)
    await settle()
    assert stopped(*jobs) == [0, 0, 1, 1]


async def test_the_newest_is_whose_run_began_last_not_who_came_last() -> None:
    scheduler = slots(4)
    first, second, third = await busy(scheduler, 3, cleans_up=0.0)
    people = [hold(scheduler) for _ in range(2)]
    await settle()
    assert stopped(first, second, third) == [0, 1, 1]
    for person in people:
        person.release()  # the second begins anew, then the third
    await settle()
    latest = Job(scheduler)
    second.lasts = 0.0
    await settle()
    hold(scheduler)
    await settle()

    assert stopped(first, second, third) == [0, 1, 2]
    assert not latest.began


async def test_at_most_two_at_once_and_more_only_when_those_have_ended() -> None:
    scheduler = slots(7)
    jobs = await busy(scheduler, 6, cleans_up=1.0)
    people = [hold(scheduler) for _ in range(5)]
    await settle()
    assert stopped(*jobs) == [0, 0, 0, 0, 1, 1]
    person = hold(scheduler)
    await asyncio.sleep(0.9)
    assert stopped(*jobs) == [0, 0, 0, 0, 1, 1]

    jobs[5].task.cancel()  # one of the two ends earlier
    await settle()
    assert sum(person.started for person in people) == 1
    assert stopped(*jobs) == [0, 0, 0, 0, 1, 1]
    assert not person.started


async def test_the_next_two_are_stopped_when_the_first_two_have_ended() -> None:
    scheduler = slots(7)
    jobs = await busy(scheduler, 6)
    people = [hold(scheduler) for _ in range(4)]
    await settle()

    assert stopped(*jobs) == [0, 0, 1, 1, 1, 1]
    assert all(person.started for person in people)


async def test_the_slot_is_free_when_the_call_has_really_ended_and_moves_within_a_pass() -> None:
    scheduler = slots(3)
    _, job = await busy(scheduler, 2, cleans_up=2.0)
    person = hold(scheduler)
    began, passes = now(), []

    def count() -> None:
        if not person.started:
            passes.append(now())
            asyncio.get_running_loop().call_soon(count)

    await asyncio.sleep(2.0 - 1e-6)
    assert job.stopped == [began]
    assert not person.started
    await asyncio.sleep(1e-6)
    count()
    await settle()
    assert person.started
    assert len(passes) <= 2  # the pass in which the call ends, and the next


async def test_nobody_is_cancelled_in_the_middle_of_another_ones_code() -> None:
    scheduler = slots(3)
    _, job = await busy(scheduler, 2)
    coroutine = scheduler.submit("interactive", noop)
    coroutine.send(None)  # it waits
    assert job.task.cancelling() == 0

    coroutine.close()
    await settle()


async def test_outside_of_its_slot_it_is_not_preempted() -> None:
    scheduler = slots(4)

    async def works_outside() -> None:
        async with released():
            await asyncio.sleep(1000)

    await busy(scheduler, 2)
    outside = start(scheduler.submit("batch", works_outside, preemptible=True))
    await settle()
    people = [hold(scheduler) for _ in range(2)]
    await settle()

    assert all(person.started for person in people)
    assert outside.cancelling() == 0
    assert scheduler.snapshot().released == 1


@pytest.mark.parametrize("cap, expected", [(4, [0, 0, 1, 1]), (3, [0, 0, 0, 0]), (5, [0, 0, 0, 1])])
async def test_with_more_running_than_the_cap_nobody_is_stopped_if_that_brings_no_slot(
    cap: int, expected: list[int]
) -> None:
    scheduler = slots(5)
    jobs = await busy(scheduler, 4)
    scheduler.configure(max_concurrency=cap, batch_max_concurrency=cap - 1)
    person = hold(scheduler)
    await settle()

    assert stopped(*jobs) == expected
    assert person.started == any(expected)


@pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])
async def test_it_works_on_every_loop() -> None:
    scheduler = slots(3)
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        await gate.wait()

    gate = asyncio.Event()
    first = hold(scheduler)
    batch = [start(scheduler.submit("batch", work, preemptible=True)) for _ in range(2)]
    await settle()
    # On a clock that moves something has run, so something would be lost: pretend that much has been had.
    assert scheduler._home.preemption is not None
    scheduler._home.preemption._time.lose(scheduler._home.clock(), -1000.0)
    person = hold(scheduler)
    await settle()
    assert person.started
    assert account(scheduler, "batch").preempted == 1

    gate.set()
    for each in (first, person):
        each.release()
    await asyncio.gather(*batch, first.task, person.task)
    assert len(runs) == 3
    await assert_whole(scheduler)


async def test_one_that_begins_while_people_wait_is_stopped_for_them() -> None:
    scheduler = slots(3)
    hold(scheduler, "batch")
    hold(scheduler)
    first = hold(scheduler, "batch")
    await settle()
    job = Job(scheduler)
    await settle()
    first.release()  # the slot is the job's in the next pass, in which somebody comes for it
    person = hold(scheduler)
    await settle()

    assert person.started
    assert (len(job.began), len(job.stopped)) == (1, 1)


async def test_who_comes_back_after_a_decision_that_found_nobody_can_be_stopped_by_the_next() -> None:
    scheduler = slots(3)
    job, other = await busy(scheduler, 2, preemptible=False)
    person = hold(scheduler)
    await settle()
    assert not person.started
    await other.end()
    assert person.started
    await job.end()
