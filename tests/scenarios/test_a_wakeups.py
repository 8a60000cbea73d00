"""Section A: a slot and a cancel, a timeout or an end meet; nobody may sleep for ever and no slot may be lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from llm_traffic_scheduler import QueueTimeout
from tests.behaviour.callers import Caller
from tests.behaviour.doors import Door, each_door, outcome, start
from tests.scenarios.jobs import KINDS, each_order, each_pair, noting
from tests.scenarios.stage import Stage, scenario
from tests.support import account, hold, noop, now, settle


@scenario
@each_door
@each_pair
@each_order
async def test_b01_a_slot_handed_to_a_waiter_that_is_cancelled_in_the_same_step_goes_on(
    stage: Stage, run: Door, kinds: tuple[str, str], cancel_first: bool
) -> None:
    """The woken waiter died before it ran, and every other waiter slept for ever."""
    scheduler, log = await stage.one_slot(), list[str]()
    waiting: list[asyncio.Task[None]] = []
    gate = asyncio.Event()

    async def holder() -> None:
        await gate.wait()
        if cancel_first:
            waiting[0].cancel()

    async def holder_and_after() -> list[str]:
        await run(scheduler, "interactive", holder)
        if not cancel_first:  # the slot has just been given back, in this very step
            waiting[0].cancel()
        await settle(2)
        return list(log)

    leader = start(holder_and_after())
    await settle()
    waiting += [start(run(scheduler, kind, noting(log, name))) for kind, name in zip(kinds, "BC", strict=True)]
    await settle()
    gate.set()

    assert await leader == ["C"]
    assert waiting[0].cancelled()
    await waiting[1]


@scenario
@each_door
@each_pair
@each_order
@pytest.mark.parametrize("whose", ["caller", "queue"])
async def test_b01_a_slot_that_comes_free_as_its_waiter_times_out_goes_on(
    stage: Stage, run: Door, kinds: tuple[str, str], cancel_first: bool, whose: str
) -> None:
    """As before, with a timeout for the cancel."""
    scheduler, log = await stage.one_slot(), list[str]()
    held = hold(scheduler)
    await settle()
    due = now() + stage.seconds(1)

    async def impatient() -> None:
        async with asyncio.timeout_at(due if whose == "caller" else None):
            wait = due - now() if whose == "queue" else None
            await run(scheduler, kinds[0], noting(log, "B"), queue_timeout=wait)

    def release_later() -> None:
        asyncio.get_running_loop().call_at(due, held.release)

    if not cancel_first:
        release_later()
    tasks = [start(impatient()), start(run(scheduler, kinds[1], noting(log, "C")))]
    await settle()
    if cancel_first:
        release_later()

    assert await outcome(tasks[1]) is None
    if stage.virtual:
        assert log == ["C"]
        assert await outcome(tasks[0]) is (QueueTimeout if whose == "queue" else TimeoutError)
    await asyncio.wait(tasks)


@scenario
@each_door
async def test_b02_after_a_storm_of_timeouts_every_canary_sings(stage: Stage, run: Door) -> None:
    """Dead entries stayed at the head of the queue, and a burst of timeouts became permanent."""
    scheduler, chance = stage.scheduler(), random.Random(2)
    tasks = [
        start(
            run(
                scheduler,
                KINDS[number % 2],
                asyncio.sleep,
                stage.seconds(chance.uniform(0.015, 0.025)),
                queue_timeout=stage.seconds(0.020),
            )
        )
        for number in range(200)
    ]
    await settle()
    if stage.virtual:
        assert scheduler.snapshot().interactive_queued > 90

    await asyncio.wait(tasks)
    await stage.canaries(scheduler, 5)

    assert scheduler.endings["rejected"] > 150
    assert scheduler.endings.total() == 210


@scenario
@pytest.mark.slow
async def test_b02_any_order_of_cancels_releases_and_submits_leaves_nobody_behind(stage: Stage) -> None:
    """As before, by chance: 500 seeds."""
    for seed in range(stage.share(500)):
        await _play_by_chance(stage, random.Random(seed))


async def _play_by_chance(stage: Stage, chance: random.Random) -> None:
    scheduler = stage.scheduler(max_concurrency=chance.choice([2, 3]))
    calls = []
    for _ in range(40):
        match chance.randrange(5):
            case 0 | 1:
                patience = chance.choice([None, None, stage.seconds(0.01)])
                calls.append(hold(scheduler, chance.choice(KINDS), queue_timeout=patience))
            case 2 if calls:
                chance.choice(calls).release()
            case 3 if calls:
                chance.choice(calls).cancel()
            case _:
                await asyncio.sleep(chance.choice([0, 0, 0, stage.seconds(0.01)]))
    for call in calls:
        call.release()
    await stage.canaries(scheduler)
    await asyncio.gather(*(call.task for call in calls), return_exceptions=True)


@scenario
@each_door
@pytest.mark.parametrize("trigger", ["release", "raise", "resume"])
async def test_b04_a_cancel_between_a_change_and_what_follows_from_it_stops_nothing(
    stage: Stage, run: Door, trigger: str
) -> None:
    """A 'wake-up is scheduled' flag was reset only by the waiter that was woken, and that one had been cancelled."""
    scheduler, log = await stage.one_slot(), list[str]()
    held = hold(scheduler)
    await settle()
    if trigger == "resume":
        scheduler.pause("batch")
        held.release()
        await held.task
    leaver = start(run(scheduler, "batch", noting(log, "leaver")))
    await settle()

    if trigger == "release":
        held.release()
    elif trigger == "raise":
        scheduler.configure(max_concurrency=3)
    else:
        scheduler.resume("batch")
    leaver.cancel()
    others = [start(run(scheduler, "batch", noting(log, str(number)))) for number in range(10)]

    await asyncio.gather(*others)
    assert log == [str(number) for number in range(10)]
    assert leaver.cancelled()
    held.release()


@scenario
@each_order
@pytest.mark.parametrize("ending", ["drain", "close"])
async def test_b05_of_two_that_wait_for_the_end_the_other_one_hears_of_it(
    stage: Stage, ending: str, cancel_first: bool
) -> None:
    """One was notified, left with a cancel, and did not pass it on; and the cancel had lost its message."""
    scheduler, gate = stage.scheduler(), asyncio.Event()

    async def last_call() -> None:
        await scheduler.submit("interactive", gate.wait)
        if not cancel_first:  # idle since the line before: both have just been told
            callers[0].task.cancel("the operator left")

    last = start(last_call())
    await settle()
    callers = [Caller(scheduler.drain() if ending == "drain" else scheduler.close()) for _ in range(2)]
    await settle()
    gate.set()
    if cancel_first:
        callers[0].task.cancel("the operator left")

    assert await callers[1].ended() == (None, 0)
    assert await callers[0].ended() == (asyncio.CancelledError, 1)
    assert str(callers[0].error) == "the operator left"
    await last


@scenario
@each_door
@each_order
async def test_b05_the_message_of_a_cancel_reaches_the_caller_of_a_waiting_call(
    stage: Stage, run: Door, cancel_first: bool
) -> None:
    """As before, for those that wait for a slot."""
    scheduler, log, gate = await stage.one_slot(), list[str](), asyncio.Event()

    async def holder() -> None:
        await run(scheduler, "interactive", gate.wait)
        if not cancel_first:
            leaver.task.cancel("changed my mind")

    holding = start(holder())
    await settle()
    leaver, stayer = Caller(run(scheduler, "batch", noop)), Caller(run(scheduler, "batch", noting(log, "stayer")))
    await settle()
    gate.set()
    if cancel_first:
        leaver.task.cancel("changed my mind")

    assert await leaver.ended() == (asyncio.CancelledError, 1)
    assert str(leaver.error) == "changed my mind"
    assert await stayer.ended() == (None, 0)
    assert log == ["stayer"]
    await holding


@scenario
@each_door
@each_order
async def test_b06_a_cancel_in_the_step_of_the_result_is_not_swallowed(
    stage: Stage, run: Door, cancel_first: bool
) -> None:
    """The caller went on as if it had never been cancelled, or the job was counted twice."""
    scheduler = stage.scheduler()
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller = Caller(run(scheduler, "interactive", lambda: gate))
    await settle()

    if cancel_first:
        caller.task.cancel()
        assert gate.cancelled()
    else:
        gate.set_result(None)
        caller.task.cancel()

    assert await caller.ended() == (asyncio.CancelledError, 1)
    totals = account(scheduler, "interactive")
    assert (totals.cancelled, totals.completed) == (1, 0)


@scenario
@each_door
@pytest.mark.parametrize("passes", range(8))
async def test_b06_a_caller_that_submits_for_ever_ends_when_it_is_cancelled(
    stage: Stage, run: Door, passes: int
) -> None:
    """As before, at shutdown."""
    scheduler = stage.scheduler()

    async def looping() -> None:
        while True:
            await run(scheduler, "batch", asyncio.sleep, 0)

    caller = Caller(looping())
    rival = Caller(looping())
    await settle(passes + 1)
    caller.task.cancel()
    rival.task.cancel()

    await settle()
    assert caller.task.cancelled()
    assert rival.task.cancelled()


@scenario
@each_door
async def test_b07_calls_whose_timeouts_beat_with_their_arrivals_all_settle(stage: Stage, run: Door) -> None:
    """The item had been taken out of the queue when the timeout reached the consumer, and vanished."""
    scheduler = stage.scheduler()
    beat, count = stage.seconds(0.010), stage.share(2_000)
    tasks = []

    for number in range(count):
        tasks.append(start(run(scheduler, KINDS[number % 2], asyncio.sleep, 2.5 * beat, queue_timeout=beat)))
        await asyncio.sleep(beat)
        if number % 40 == 39:  # fifty times
            scheduler.pause("batch")
            scheduler.pause("interactive")
        elif number % 40 == 9:
            scheduler.resume("interactive")
            scheduler.resume("batch")
    await asyncio.wait(tasks)

    assert scheduler.endings.total() == count
    least = count / 10 if stage.virtual else 0
    assert scheduler.endings["completed"] > least
    assert scheduler.endings["rejected"] > least


@scenario
@each_door
async def test_b08_callers_cancelled_at_any_step_leave_no_slot_without_an_owner(stage: Stage, run: Door) -> None:
    """A cancel between the grant and the use left a connection in a state that was neither free nor taken."""
    scheduler = stage.scheduler(max_concurrency=10)

    async def job() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(stage.seconds(0.005))
        await asyncio.sleep(0)

    for step in range(16):
        for shift in (0, 1, 5):
            tasks = [start(run(scheduler, KINDS[number % 2], job)) for number in range(20)]
            for turn in range(16):
                for number, task in enumerate(tasks):
                    if turn == (step + shift * number) % 16:
                        task.cancel()
                await asyncio.sleep(0 if turn % 5 else stage.seconds(0.004))
            await asyncio.wait(tasks)
            assert scheduler.snapshot().running == 0

    crowd = [hold(scheduler) for _ in range(10)]
    await settle()
    assert all(held.started for held in crowd)
    for held in crowd:
        held.release()
