"""C. Limits and the control loop, first half: the limit holds at each start, and a change of it reaches who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from llm_traffic_scheduler import Event, FixedPolicy, Kind, QueueFull, SchedulerMisuse
from tests.behaviour.doors import assert_whole, each_kind, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario
from tests.support import Held, hold, make_scheduler, noop, settle


def started(calls: list[Held]) -> int:
    return sum(held.started for held in calls)


async def release_all(calls: list[Held]) -> None:
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


def set_limit(scheduler: Counted, kind: Kind, limit: int) -> None:
    """`limit` calls of the kind may run; 0 is a pause, and 1 of both kinds together is below the smallest cap."""
    if kind == "batch":
        scheduler.configure(batch_max_concurrency=max(1, limit))
    else:
        scheduler.configure(max_concurrency=max(2, limit), batch_max_concurrency=1)
    if limit:
        scheduler.resume(kind)
    else:
        scheduler.pause(kind)


# B37


@scenario
@each_kind
async def test_b37_a_limit_cut_below_what_runs_and_raised_again_starts_nobody_before_there_is_room(
    stage: Stage, kind: Kind
) -> None:
    scheduler = stage.scheduler(max_concurrency=9)
    set_limit(scheduler, kind, 8)
    calls = [hold(scheduler, kind) for _ in range(28)]
    await settle()
    assert started(calls) == 8

    for limit in (2, 4):
        set_limit(scheduler, kind, limit)
        await settle()
        assert started(calls) == 8
    for ended, expected in enumerate((8, 8, 8, 8, 8, 9, 10)):  # one more only from the fifth end on: 3 of 4 run
        assert started(calls) == expected
        calls[ended].release()
        await settle()

    await release_all(calls)


@scenario
@each_kind
async def test_b37_a_limit_of_nothing_that_becomes_one_starts_nobody_before_there_is_room(
    stage: Stage, kind: Kind
) -> None:
    scheduler = stage.scheduler(max_concurrency=9)
    set_limit(scheduler, kind, 8)
    calls = [hold(scheduler, kind) for _ in range(28)]
    await settle()
    smallest = 1 if kind == "batch" else 2

    for limit in (0, smallest):
        set_limit(scheduler, kind, limit)
        await settle()
        assert started(calls) == 8
    for ended in range(8):
        calls[ended].release()
        await settle()
        assert started(calls) == max(8, ended + 1 + smallest)

    await release_all(calls)


class _RandomSteps:
    """Limits up and down, ends, arrivals and departures in any order, on one scheduler."""

    def __init__(self, scheduler: Counted, kind: Kind, random: Random) -> None:
        self.scheduler, self.kind, self.random = scheduler, kind, random
        self.limit = 8
        self.calls: list[Held] = []

    async def step(self) -> None:
        before = self.running()
        action = self.random.choice([self._set_limit, self._submit, self._end, self._end, self._cancel])
        action()
        await settle(4)
        running, waiting = self.running(), sum(not held.started for held in self.calls)
        assert running == min(self.limit, running + waiting) or (self.limit < running <= before)
        self.scheduler.check()

    def running(self) -> int:
        return self.scheduler.inside[self.kind]

    def _set_limit(self) -> None:
        self.limit = self.random.choice((0, 2, 3, 5, 8))
        set_limit(self.scheduler, self.kind, self.limit)

    def _submit(self) -> None:
        self.calls += [hold(self.scheduler, self.kind) for _ in range(self.random.randint(1, 6))]

    def _end(self) -> None:
        running = [held for held in self.calls if held.started]
        for held in self.random.sample(running, min(len(running), self.random.randint(1, 3))):
            held.release()
            self.calls.remove(held)

    def _cancel(self) -> None:
        for held in self.random.sample(self.calls, min(len(self.calls), 2)):
            held.cancel()
            self.calls.remove(held)

    async def finish(self) -> None:
        set_limit(self.scheduler, self.kind, 8)
        await release_all(self.calls)


@scenario
@each_kind
@pytest.mark.slow
async def test_b37_through_random_changes_calls_start_only_within_the_limit(stage: Stage, kind: Kind) -> None:
    scheduler = stage.scheduler(max_concurrency=9)
    for seed in range(stage.share(400) // (5 if stage.loop == "debug" else 1)):  # for each of the two kinds
        set_limit(scheduler, kind, 8)
        steps = _RandomSteps(scheduler, kind, Random(seed))
        for _ in range(15):
            await steps.step()
        await steps.finish()


# B38


@scenario
@pytest.mark.parametrize("how", ["the bound", "the cap", "the policy", "resume"])
async def test_b38_a_raise_starts_calls_that_wait_at_once(stage: Stage, how: str) -> None:
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=3, policy=FixedPolicy(1))
    kind: Kind = "interactive" if how == "the cap" else "batch"
    scheduler.configure(batch_max_concurrency=1 if how in ("the bound", "the cap") else 3)
    if how == "the cap":
        scheduler.configure(max_concurrency=2)
    elif how != "the policy":
        scheduler.configure(policy=FixedPolicy(3))
    scheduler.pause(kind)  # a limit of 0, with nothing running
    calls = [hold(scheduler, kind) for _ in range(5)]
    await settle()
    assert started(calls) == 0
    if how != "resume":
        scheduler.resume(kind)
        await settle()
    low = started(calls)

    {
        "the bound": lambda: scheduler.configure(batch_max_concurrency=3),
        "the cap": lambda: scheduler.configure(max_concurrency=3),
        "the policy": lambda: scheduler.configure(policy=FixedPolicy(3)),
        "resume": lambda: scheduler.resume("batch"),
    }[how]()
    await settle(2)

    assert (low, started(calls)) == ({"the cap": 2, "resume": 0}.get(how, 1), 3)
    await release_all(calls)


@scenario
@pytest.mark.parametrize("how", ["the bound", "the policy"])
async def test_b38_after_a_cut_nobody_starts_at_the_old_width(stage: Stage, how: str) -> None:
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=4)
    calls = [hold(scheduler, "batch") for _ in range(14)]
    await settle()
    assert started(calls) == 4

    if how == "the bound":
        scheduler.configure(batch_max_concurrency=1)
    else:
        scheduler.configure(policy=FixedPolicy(1))
    for ended in range(10):
        calls[ended].release()
        await settle()
        assert started(calls) == max(4, ended + 2)

    await release_all(calls)


# B51


@scenario
async def test_b51_no_storm_of_submits_and_hooks_overshoots_the_cap(stage: Stage) -> None:
    for seed in range(stage.share(20)):
        random = Random(seed)
        scheduler = stage.scheduler(max_concurrency=8, batch_max_concurrency=5)
        extra: list[asyncio.Task[Any]] = []
        calls = [start(_hesitant(scheduler, random)) for _ in range(200)]
        meddler = _meddler(scheduler, random, extra)
        scheduler.add_listener(meddler)
        for task in random.sample(calls, 40):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(calls)
        while any(not task.done() for task in extra):
            await asyncio.wait(extra)
        scheduler.remove_listener(meddler)

        assert scheduler.most == 8
        assert scheduler.most_batch <= 6
        assert extra


async def _hesitant(scheduler: Counted, random: Random) -> None:
    """Ask something asynchronous, as a hook or a shared store would be, and only then submit."""
    await settle(random.randint(0, 5))
    await scheduler.submit(random.choice(("interactive", "batch")), settle, random.randint(0, 4))


def _meddler(scheduler: Counted, random: Random, extra: list[asyncio.Task[Any]]) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if random.random() < 0.1 and len(extra) < 100:
            extra.append(start(_hesitant(scheduler, random)))
        elif random.random() < 0.1:  # later, as the stage asks at each start for the limit of that moment
            width = random.randint(1, 6)
            asyncio.get_running_loop().call_soon(lambda: scheduler.configure(batch_max_concurrency=width))

    return listener


# B53


def _raises() -> Any:
    raise ConnectionError


def _generator() -> Iterator[int]:
    yield 1


def _already_awaited() -> Any:
    coroutine = noop()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    return coroutine


def _future_of_another_loop() -> Any:
    other = asyncio.new_event_loop()
    future: asyncio.Future[None] = other.create_future()
    other.close()
    return future


_BAD_WORK: dict[str, tuple[Any, type[Exception]]] = {
    "raises at the call": (_raises, ConnectionError),
    "lacks an argument": (lambda argument: None, TypeError),
    "returns None": (lambda: None, SchedulerMisuse),
    "returns a value": (lambda: 3, SchedulerMisuse),
    "returns a future of another loop": (_future_of_another_loop, RuntimeError),
    "returns an awaited coroutine": (_already_awaited, RuntimeError),
    "is a generator function": (_generator, SchedulerMisuse),
    "cannot be called": (3, SchedulerMisuse),
}


@scenario
@each_kind
@pytest.mark.parametrize("name", _BAD_WORK)
async def test_b53_work_that_fails_before_its_first_await_gives_its_slot_back(
    stage: Stage, kind: Kind, name: str
) -> None:
    work, error = _BAD_WORK[name]
    counted, plain = stage.scheduler(), make_scheduler()

    for _ in range(20):
        for scheduler in (counted, plain):  # `plain` gets the function as it is
            with pytest.raises(error):
                await scheduler.submit(kind, work)
    await stage.canaries(counted)

    await assert_whole(plain)


# B54


@scenario
async def test_b54_a_burst_over_a_full_queue_leaves_nobody_hanging(stage: Stage) -> None:
    scheduler = stage.scheduler(max_concurrency=10, max_queued_interactive=100)
    gate = asyncio.Event()
    tasks = [start(scheduler.submit("interactive", gate.wait)) for _ in range(200)]
    for task in tasks[150:170]:
        task.cancel()
    await settle()
    for task in tasks[50:70]:
        task.cancel()
    await settle()
    assert (scheduler.snapshot().running, scheduler.snapshot().interactive_queued) == (10, 80)

    scheduler.configure(max_concurrency=3)  # refill has to work from above the limit as well
    again = [start(scheduler.submit("interactive", noop)) for _ in range(20)]
    await settle()
    gate.set()
    outcomes = [await outcome(task) for task in tasks + again]

    assert outcomes.count(None) == 110
    assert outcomes.count(QueueFull) == 70 if stage.loop != "eager" else 90
    assert scheduler.most == 10
