"""`preemptible=True`: whom the scheduler stops for interactive calls that wait, and when. Promise 20."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import CallFinished, CallStarted, FixedPolicy, TrafficScheduler, current_slot, released
from tests.behaviour.doors import assert_whole, start
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, now, settle


class Job:
    """A batch call that may be preempted: when each of its runs began, and when each that was stopped heard of it."""

    def __init__(
        self,
        scheduler: TrafficScheduler,
        *,
        lasts: float = 1000.0,
        cleans_up: float = 0.0,
        preemptible: bool = True,
        kind: Any = "batch",
        **options: Any,
    ) -> None:
        self.lasts = lasts
        self.cleans_up = cleans_up
        self.began: list[float] = []
        self.stopped: list[float] = []
        self.task = start(scheduler.submit(kind, self.run, preemptible=preemptible, **options))

    async def run(self) -> str:
        self.began.append(now())
        try:
            await asyncio.sleep(self.lasts)
        except asyncio.CancelledError:
            self.stopped.append(now())
            if self.cleans_up:
                await asyncio.sleep(self.cleans_up)
            raise
        return "done"

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def slots(number: int, *, batch: int | None = None, **settings: Any) -> TrafficScheduler:
    return make_scheduler(max_concurrency=number, batch_max_concurrency=batch or number - 1, **settings)


async def busy(scheduler: TrafficScheduler, number: int, **options: Any) -> list[Job]:
    """So many batch calls that may be preempted, one after the other, and one interactive call; they run."""
    hold(scheduler)
    await settle()
    jobs = []
    for _ in range(number):
        jobs.append(Job(scheduler, **options))
        await settle()
    return jobs


def stopped(*jobs: Job) -> list[int]:
    return [len(job.stopped) for job in jobs]


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


async def test_a_preempted_call_waits_until_its_kind_is_resumed() -> None:
    scheduler = slots(3)
    _, job = await busy(scheduler, 2)
    person = hold(scheduler)
    await settle()
    scheduler.pause("batch")
    person.release()
    await settle()
    assert len(job.began) == 1

    scheduler.resume("batch")
    await settle()
    assert len(job.began) == 2


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


async def test_a_result_stands() -> None:
    scheduler = slots(3)

    async def stubborn() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "all the same"
        return "undisturbed"

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", stubborn, preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()

    assert person.started
    assert await task == "all the same"
    assert task.cancelling() == 0
    totals = account(scheduler, "batch")
    assert (totals.preempted, totals.completed) == (0, 1)


async def test_another_exception_stands() -> None:
    scheduler = slots(3)

    async def touchy() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ValueError("the cursor is lost") from None

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", touchy, preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()

    assert person.started
    with pytest.raises(ValueError, match="cursor"):
        await task
    totals = account(scheduler, "batch")
    assert (totals.preempted, totals.failed) == (0, 1)


async def test_it_waits_in_its_old_place() -> None:
    scheduler = slots(3)
    log: list[str] = []
    _, job = await busy(scheduler, 2)
    later = [
        hold(scheduler, "batch", name=name, log=log, priority=priority) for name, priority in (("z", 0), ("a", -1))
    ]
    await settle()
    person = hold(scheduler)
    await settle()
    assert len(job.stopped) == 1

    person.release()
    await settle()
    assert (log, len(job.began)) == (["a"], 1)  # a lower priority goes first
    later[1].release()
    await settle()
    assert (log, len(job.began)) == (["a"], 2)  # one that came later does not
    for each in later:
        each.release()


async def test_the_function_is_called_again_with_its_arguments_in_the_callers_task() -> None:
    scheduler = slots(3)
    calls: list[Any] = []

    async def work(*args: Any) -> int:
        calls.append((args, asyncio.current_task()))
        await asyncio.sleep(1.0)
        return len(calls)

    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", work, 1, "two", preemptible=True))
    await settle()
    person = hold(scheduler)
    await settle()
    person.release()

    assert await task == 2
    assert calls == [((1, "two"), task)] * 2


async def test_it_is_counted_as_one_call_that_was_preempted() -> None:
    scheduler = slots(3)
    heard = Recorder(scheduler)
    _, job = await busy(scheduler, 2, lasts=5.0, label="job")
    person = hold(scheduler)
    await settle()
    waiting = account(scheduler, "batch")
    assert (waiting.submitted, waiting.started, waiting.preempted, waiting.cancelled) == (2, 2, 1, 0)
    info = [info for info in scheduler.calls() if info.state == "queued"]
    assert [each.label for each in info] == ["job"]
    await asyncio.sleep(2.0)
    person.release()
    await job.task

    await settle()
    totals = account(scheduler, "batch")
    assert (totals.submitted, totals.started, totals.completed, totals.preempted) == (2, 2, 2, 1)
    starts = [event for event in heard.of(CallStarted) if event.label == "job"]
    assert [event.waited for event in starts] == [0.0, 0.0, 2.0]
    ends = [event for event in heard.of(CallFinished) if event.label == "job"]
    assert [(event.outcome, event.waited, event.ran) for event in ends] == [
        ("completed", 0.0, 5.0),
        ("completed", 2.0, 5.0),
    ]


async def test_each_run_has_a_handle_of_its_own() -> None:
    scheduler = slots(3)
    heard = Recorder(scheduler)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        handles.append(slot)
        slot.first_token()
        slot.tokens(5)
        await asyncio.sleep(1.0)

    handles: list[Any] = []
    await busy(scheduler, 1)
    task = start(scheduler.submit("batch", work, preemptible=True, label="work"))
    await settle()
    person = hold(scheduler)
    await asyncio.sleep(3.0)
    person.release()
    await task

    assert handles[0] is not handles[1]
    (end,) = (event for event in heard.of(CallFinished) if event.label == "work")
    assert (end.tokens, end.first_token) == (5, 3.0)


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


async def test_what_is_left_afterwards_is_nothing() -> None:
    scheduler = slots(3)
    jobs = await busy(scheduler, 2, lasts=1.0)
    person = hold(scheduler)
    await settle()
    person.release()
    await asyncio.gather(*(job.task for job in jobs))
    first = next(iter(scheduler._home.admission.interactive_running))
    assert first.task is not None
    first.task.cancel()
    await asyncio.sleep(2.0)

    await assert_whole(scheduler)
    assert armed_timers() == []
    preemption = scheduler._home.preemption
    assert preemption is not None
    assert not preemption._running
    assert not preemption._stopping
    assert not scheduler._home.attentive


async def test_the_limit_decides_whether_a_preempted_call_comes_back() -> None:
    scheduler = slots(4)
    jobs = await busy(scheduler, 3)
    person = hold(scheduler)
    await settle()
    scheduler.configure(policy=FixedPolicy(2))
    person.release()
    await settle()
    assert stopped(*jobs) == [0, 0, 1]
    assert len(jobs[2].began) == 1

    scheduler.configure(policy=FixedPolicy(3))
    await settle()
    assert len(jobs[2].began) == 2


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
