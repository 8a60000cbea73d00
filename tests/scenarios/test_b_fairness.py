"""Section B: who goes first, who waits for ever, and what stands in the way of whom."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from llm_traffic_scheduler import CallStarted, ConfigError, Decision, Kind, QueueFull, QueueTimeout
from tests.behaviour.doors import Door, each_door, each_kind, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS, each_pair, noting
from tests.scenarios.stage import Stage, scenario
from tests.support import Law, Recorder, hold, noop, now, settle


@scenario
@each_door
@each_pair
@pytest.mark.parametrize("own_task", [True, False], ids=["in a new task", "in the task that released"])
async def test_b21_a_newcomer_in_the_step_of_a_release_does_not_take_the_slot_of_the_waiter(
    stage: Stage, run: Door, kinds: tuple[str, str], own_task: bool
) -> None:
    """The fast path saw 'free and queue empty': both ran, one more than the limit."""
    scheduler, log, gate = await stage.one_slot(), list[str](), asyncio.Event()

    async def holder() -> None:
        await run(scheduler, "interactive", gate.wait)
        newcomer = run(scheduler, kinds[1], noting(log, "newcomer"))
        await (start(newcomer) if own_task else newcomer)

    holding = start(holder())
    await settle()
    waiter = start(run(scheduler, kinds[0], noting(log, "waiter")))
    await settle()
    gate.set()

    await asyncio.gather(holding, waiter)
    assert log == ["waiter", "newcomer"]
    assert scheduler.most == 2  # with the ballast


@scenario
@each_door
@each_kind
async def test_b22_clients_that_come_back_at_once_do_not_overtake_one_who_waits(
    stage: Stage, run: Door, kind: str
) -> None:
    """A woken waiter had to compete with newcomers, and could wait for ever."""
    scheduler = await stage.one_slot()
    submitted, begun = list[int](), list[int]()

    async def client() -> None:
        number = len(submitted)
        submitted.append(number)

        async def job() -> None:
            begun.append(number)
            await asyncio.sleep(0)

        await run(scheduler, kind, job)

    async def closed_loop() -> None:
        while len(begun) < 100:
            await client()

    clients = [start(closed_loop()) for _ in range(5)]
    await settle(40)
    assert not clients[0].done()
    sixth, place = start(client()), len(submitted)
    await sixth
    assert len(begun) <= place + 6
    await asyncio.wait(clients)

    assert begun == sorted(begun) == submitted


async def _overload(stage: Stage, scheduler: Counted) -> list[float]:
    """Interactive calls at 120 % of what four slots can do, for thirty seconds; returns their latencies."""
    latencies = []

    async def client() -> None:
        asked = now()
        await scheduler.submit("interactive", asyncio.sleep, stage.seconds(0.4))
        latencies.append(now() - asked)

    began, tasks = now(), [start(client()) for _ in range(8)]
    for number in range(360):
        await asyncio.sleep(began + stage.seconds(number / 12) - now())
        tasks.append(start(client()))
    await asyncio.gather(*tasks)
    return sorted(latencies)


@scenario
async def test_b24_batch_work_gets_its_share_of_an_overload_and_interactive_hardly_feels_it(stage: Stage) -> None:
    """Low priority never ran while high priority kept coming."""
    scheduler = stage.scheduler(max_concurrency=4, batch_starvation_timeout=stage.seconds(5))
    alone = await _overload(stage, stage.scheduler(max_concurrency=4))
    started: list[int] = []

    async def job(number: int) -> None:
        started.append(number)
        await asyncio.sleep(stage.seconds(0.4))

    crowded = start(_overload(stage, scheduler))
    await settle()
    batch = [start(scheduler.submit("batch", job, number)) for number in range(50)]
    await asyncio.sleep(stage.seconds(30))
    starts_under_load = len(started)
    latencies = await crowded
    await asyncio.gather(*batch)

    assert started == list(range(50))
    if stage.virtual:
        assert starts_under_load == 5  # each five seconds and a bit
        assert latencies[350] <= alone[350] * 1.2


@scenario
async def test_b24_without_a_guard_waiting_batch_work_shows_and_times_out_on_time(stage: Stage) -> None:
    """As before: no metric showed the age of the queue, and deadlines passed unseen."""
    scheduler = stage.scheduler(max_concurrency=4, batch_starvation_timeout=None)
    crowded = start(_overload(stage, scheduler))
    await settle()
    patient = start(scheduler.submit("batch", noop))
    began = now()

    assert await outcome(scheduler.submit("batch", noop, queue_timeout=stage.seconds(10))) is QueueTimeout
    waited = now() - began

    assert not patient.done()
    if stage.virtual:
        assert waited == 10
        assert scheduler.snapshot().oldest_batch_wait == 10
    await crowded
    await patient


@scenario
@each_door
@pytest.mark.parametrize("batch_max", [1, 2, 3])
async def test_b25_interactive_calls_find_room_however_long_the_batch_jobs_are(
    stage: Stage, run: Door, batch_max: int
) -> None:
    """All seats were taken by long low-priority jobs, and an interactive request waited as long as they ran."""
    scheduler = stage.scheduler(max_concurrency=4, batch_max_concurrency=batch_max, window=stage.seconds(1))
    await asyncio.sleep(stage.seconds(2))  # no interactive traffic lately
    batch = [start(run(scheduler, "batch", asyncio.sleep, stage.seconds(60))) for _ in range(4)]
    await settle()
    assert scheduler.snapshot().batch_running == batch_max

    arrivals = [hold(scheduler) for _ in range(4 - batch_max)]
    await settle(2)

    assert all(held.started for held in arrivals)
    for held in arrivals:
        held.release()
    for task in batch:
        task.cancel()
    await asyncio.wait(batch)


@scenario
async def test_b25_batch_may_not_be_given_the_last_slot(stage: Stage) -> None:
    """As before: no setting may take the room away."""
    scheduler = stage.scheduler(max_concurrency=4)

    with pytest.raises(ConfigError):
        stage.scheduler(max_concurrency=4, batch_max_concurrency=4)
    with pytest.raises(ConfigError):
        scheduler.configure(batch_max_concurrency=4)
    scheduler.configure(batch_max_concurrency=3)
    with pytest.raises(ConfigError):
        scheduler.configure(max_concurrency=3)

    assert scheduler.snapshot().batch_max_concurrency == 3


@scenario
@each_door
@pytest.mark.parametrize("blocked", KINDS)
@pytest.mark.parametrize("wait", [0, 2], ids=["at once", "starving"])
async def test_b27_a_head_that_may_not_run_blocks_no_other_although_nothing_runs(
    stage: Stage, run: Door, blocked: Kind, wait: float
) -> None:
    """The scan stopped at a head that could not run; with nothing running, nothing ever moved it."""
    scheduler, log = stage.scheduler(batch_starvation_timeout=stage.seconds(1)), list[str]()
    other = KINDS[1 - KINDS.index(blocked)]
    scheduler.pause(blocked)
    heads = [start(run(scheduler, blocked, noting(log, "head"), priority=-n)) for n in range(3)]
    await asyncio.sleep(stage.seconds(wait))
    await start(run(scheduler, other, noting(log, "behind")))
    assert log == ["behind"]

    scheduler.resume(blocked)
    await settle()

    assert log == ["behind", "head", "head", "head"]
    assert all(task.done() for task in heads)


@scenario
@pytest.mark.parametrize("order", list(permutations(["free", "lower", "submit"])), ids="-".join)
async def test_b28_freeing_lowering_and_submitting_in_one_step_are_decided_on_what_is_so(
    stage: Stage, order: tuple[str, ...]
) -> None:
    """A flag 'full' was set after the place that read it: each decision was one step late."""
    scheduler = stage.scheduler(max_concurrency=4, batch_max_concurrency=3)
    slots = [scheduler.slot("batch") for _ in range(2)]
    for slot in slots:
        await start(slot.__aenter__())  # each in a task of its own: what is inside of a slot is nested in it
    running, limit, queued = 2, 3, 0

    def decided() -> bool:
        nonlocal running, queued
        starts = min(queued, max(0, limit - running))
        running, queued = running + starts, queued - starts
        seen = scheduler.snapshot()
        scheduler.check()
        return (seen.batch_running, seen.batch_queued) == (running, queued)

    at_once = stage.loop == "eager"  # elsewhere a task asks for its slot in the next pass
    for step in order:
        if step == "free":
            await slots.pop().__aexit__(None, None, None)
            running -= 1
        elif step == "lower":
            scheduler.configure(batch_max_concurrency=1)
            limit = 1
        else:
            held = hold(scheduler, "batch")
            queued += at_once
        assert decided()
    await settle()
    queued += not at_once
    assert decided()

    await slots.pop().__aexit__(None, None, None)
    await settle()
    assert held.started
    held.release()


@scenario
@each_kind
async def test_b30_a_limit_of_nothing_is_refused_and_a_pause_ends_on_resume(stage: Stage, kind: Kind) -> None:
    """Limit 0 was either refused or hung; what could never run blocked the queue."""
    scheduler, log = stage.scheduler(max_concurrency=4, policy=Law(lambda now, signals: Decision(0))), list[str]()
    for name in ("max_concurrency", "batch_max_concurrency", "batch_min_concurrency"):
        with pytest.raises(ConfigError, match=name):
            scheduler.configure(**{name: 0})
    await stage.canaries(scheduler)  # the policy's 0 is clamped to batch_min_concurrency

    scheduler.pause(kind)
    tasks = [start(scheduler.submit(kind, noting(log, str(n)))) for n in range(5)]
    await settle()
    assert log == []
    scheduler.resume(kind)
    await asyncio.gather(*tasks)

    assert log == ["0", "1", "2", "3", "4"]


@scenario
@each_door
@pytest.mark.parametrize("how", ["limit", "pause"])
async def test_b32_a_call_that_was_next_and_may_not_start_keeps_its_place_and_its_age(
    stage: Stage, run: Door, how: str
) -> None:
    """Jobs put back lost their place to newer ones of the same priority, and their wait began anew."""
    scheduler, log = stage.scheduler(max_concurrency=4), list[str]()
    recorder = Recorder(scheduler)
    holders = [hold(scheduler, "batch") for _ in range(3)]
    await settle()
    began = now()
    tasks = [start(run(scheduler, "batch", noting(log, "first"), label="first"))]
    await asyncio.sleep(stage.seconds(1))
    if how == "limit":
        scheduler.configure(batch_max_concurrency=1)
    else:
        scheduler.pause("batch")
    for held in holders[:2]:
        held.release()
    tasks += [start(run(scheduler, "batch", noting(log, str(n)))) for n in range(5)]
    await asyncio.sleep(stage.seconds(1))
    assert log == []

    waited = now() - began
    if how == "limit":
        scheduler.configure(batch_max_concurrency=2)
    else:
        scheduler.resume("batch")
    await asyncio.gather(*tasks)

    assert log == ["first", "0", "1", "2", "3", "4"]
    (event,) = [event for event in recorder.of(CallStarted) if event.label == "first"]
    assert event.waited == pytest.approx(waited, abs=0 if stage.virtual else 0.02)
    holders[2].release()


class _Payload:
    """A callable that has no order."""

    def __init__(self, job: Callable[[], asyncio.Future[None]]) -> None:
        self._job = job

    def __call__(self) -> asyncio.Future[None]:
        return self._job()


@scenario
@each_door
@each_kind
@pytest.mark.parametrize("priorities", [[0], [7, 7.0], [-0.0, 0]], ids=str)
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "before a later one"])
@pytest.mark.slow
async def test_b34_equal_priorities_run_in_the_order_of_arrival_whatever_the_payload(
    stage: Stage, run: Door, kind: str, priorities: list[float], behind: bool
) -> None:
    """Payloads were compared, with a TypeError, or the order among equals was chance."""
    scheduler, log, count = await stage.one_slot(), list[str](), stage.share(1_000)
    held = hold(scheduler)
    await settle()
    shapes: list[Callable[[Any], Any]] = [lambda job: job, lambda job: lambda: job(), functools.partial, _Payload]

    last = [start(run(scheduler, kind, noop, priority=99))] if behind else []
    await settle()
    tasks = [
        start(run(scheduler, kind, shapes[n % 4](noting(log, str(n))), priority=priorities[n % len(priorities)]))
        for n in range(count)
    ]
    await settle()
    held.release()
    await asyncio.gather(*tasks, *last)

    assert log == [str(n) for n in range(count)]


@scenario
@each_door
@each_kind
async def test_b35_over_a_full_queue_everybody_is_refused_and_a_free_place_is_there_at_once(
    stage: Stage, run: Door, kind: str
) -> None:
    """With a bounded queue a put that did not wait overtook those that waited for room; here nobody waits for room."""
    scheduler, log = await stage.one_slot(max_queued_interactive=2, max_queued_batch=2), list[str]()
    held = hold(scheduler)
    await settle()
    queued = [start(run(scheduler, kind, noting(log, name))) for name in "AB"]
    await settle()
    third = start(run(scheduler, kind, noting(log, "C")))
    assert await outcome(third) is QueueFull

    queued[0].cancel()
    await settle(3)
    fourth = start(run(scheduler, kind, noting(log, "D")))
    fifth = start(run(scheduler, kind, noting(log, "E")))
    assert await outcome(fifth) is QueueFull
    held.release()
    await asyncio.gather(queued[1], fourth)

    assert log == ["B", "D"]


@scenario
@each_kind
async def test_b35_a_newcomer_in_the_step_that_makes_room_does_not_take_the_room_of_items_that_wait_for_it(
    stage: Stage, kind: Kind
) -> None:
    """Room was not kept for whoever stood first in line. Here it is apart: items of `map` have a bound of their own."""
    scheduler, log = await stage.one_slot(max_queued_interactive=1, max_queued_batch=1), list[str]()
    gate, first = asyncio.Event(), asyncio.Event()

    async def note(name: str) -> None:
        log.append(name)
        if name == "A":
            await first.wait()

    async def holder() -> None:
        await scheduler.submit("interactive", gate.wait)
        await scheduler.submit(kind, note, "D")

    holding = start(holder())
    await settle()
    mapped = start(_each(scheduler.map(kind, note, ["A", "B", "C"], buffer=3)))
    await settle()
    gate.set()  # A gets the slot, B is next in line for A's place in the queue, and D comes in this very step
    await settle()

    assert log == ["A"]
    assert scheduler.snapshot().interactive_queued + scheduler.snapshot().batch_queued == 2  # B and D
    assert await outcome(start(scheduler.submit(kind, note, "E"))) is QueueFull
    first.set()
    await asyncio.gather(holding, mapped)
    assert [name for name in log if name != "D"] == ["A", "B", "C"]


async def _each(results: Any) -> None:
    async for _ in results:
        pass
