"""What preemption may cost: two runs of a call, and a twentieth of the last minute's batch time. Promise 20."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import released
from tests.behaviour.doors import start
from tests.behaviour.preemptible import Job, busy, slots, stopped
from tests.support import account, hold, now, settle


async def test_each_call_is_preempted_at_most_twice() -> None:
    scheduler = slots(3)
    await busy(scheduler, 1, preemptible=False)
    job = Job(scheduler)
    await settle()
    for times in (1, 2, 2):
        person = hold(scheduler)
        await settle()
        assert len(job.stopped) == times
        assert person.started == (len(job.began) == times)
        person.release()
        await settle()

    assert len(job.began) == 3
    assert account(scheduler, "batch").preempted == 2


async def test_a_call_that_has_run_for_longer_than_may_be_lost_is_left_alone() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2)
    await asyncio.sleep(1.0)  # two slots for a second: a tenth of a second may be lost
    person = hold(scheduler)
    await settle()

    assert not person.started
    assert stopped(*jobs) == [0, 0]


@pytest.mark.parametrize("age, preempted", [(8.7, True), (9.1, False)])
async def test_what_is_lost_is_at_most_a_twentieth_of_the_last_minute(age: float, preempted: bool) -> None:
    scheduler = slots(4)
    await busy(scheduler, 2)
    await Job(scheduler, lasts=60.0).task
    newest = Job(scheduler)
    await asyncio.sleep(age)
    person = hold(scheduler)  # three slots for sixty seconds: nine may be lost, but for the rounding to slices
    await settle()

    assert person.started == preempted
    assert len(newest.stopped) == preempted


async def test_what_has_been_lost_counts_for_a_minute() -> None:
    scheduler = slots(4)
    await busy(scheduler, 2)
    await Job(scheduler, lasts=60.0).task
    victim = Job(scheduler, cleans_up=1.0)
    await asyncio.sleep(6.0)
    person = hold(scheduler)
    await asyncio.sleep(1.1)
    assert (person.started, len(victim.stopped)) == (True, 1)  # of nine seconds, seven are lost
    person.release()
    await asyncio.sleep(3.0)

    person = hold(scheduler)
    await settle()
    assert (person.started, len(victim.stopped)) == (False, 1)
    person.cancel()
    await victim.end()
    await asyncio.sleep(62.0)
    later = Job(scheduler)
    await asyncio.sleep(3.0)
    person = hold(scheduler)
    await settle()
    assert (person.started, len(later.stopped)) == (True, 1)


async def test_batch_time_before_anybody_looked_counts_as_far_as_it_still_runs() -> None:
    scheduler = slots(4)
    await busy(scheduler, 2, preemptible=False)
    await asyncio.sleep(60.0)
    newest = Job(scheduler)
    await asyncio.sleep(5.9)  # two slots for a minute, one for six seconds
    person = hold(scheduler)
    await settle()

    assert person.started
    assert len(newest.stopped) == 1


async def test_time_without_a_slot_is_no_loss() -> None:
    scheduler = slots(4)

    async def works_outside() -> None:
        runs.append(now())
        async with released():
            await asyncio.sleep(20.0)
        await asyncio.sleep(1000)

    runs: list[float] = []
    await busy(scheduler, 2)
    job = start(scheduler.submit("batch", works_outside, preemptible=True))
    await asyncio.sleep(21.0)
    person = hold(scheduler)
    await settle()

    assert person.started
    assert account(scheduler, "batch").preempted == 1
    job.cancel()


async def test_what_it_did_before_it_gave_its_slot_up_would_be_lost_too() -> None:
    scheduler = slots(4)

    async def works_outside() -> None:
        await asyncio.sleep(3.0)
        async with released():
            await asyncio.sleep(17.0)
        await asyncio.sleep(1000)

    await busy(scheduler, 2)
    job = start(scheduler.submit("batch", works_outside, preemptible=True))
    await asyncio.sleep(21.0)
    person = hold(scheduler)  # of 46 slot-seconds, 2.3 may be lost, and four would be
    await settle()

    assert not person.started
    assert account(scheduler, "batch").preempted == 0
    job.cancel()
