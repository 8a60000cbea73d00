"""L. Memory and scale: who has left costs nothing, and nothing costs more because many wait.

Work is counted in lines of Python, which no busy machine disturbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from llm_traffic_scheduler import FixedPolicy, Kind, QueueFull, QueueTimeout
from tests.behaviour.doors import each_kind, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.scale import counted_lines
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.support import armed_timers, hold, noop, now, settle

in_virtual_time = scenario_on("default", "eager", "debug")
counting_lines = scenario_on("default", "eager", "uvloop")  # in debug mode most lines are asyncio's


def entries(scheduler: Counted) -> int:
    """Places taken in all queues, by the living and the dead."""
    admission = scheduler._home.admission
    queues: tuple[Any, ...] = (admission.interactive_queue, admission.batch_queue, admission._deadlines)
    stragglers = len(admission._interactive_stragglers) + len(admission._batch_stragglers)
    return stragglers + sum(len(queue._run) + len(queue._heap) + len(queue._dead) for queue in queues)


# B129


@scenario
@each_kind
@pytest.mark.parametrize("leave", ["queue timeout", "cancel"])
@pytest.mark.slow
async def test_b129_waves_of_calls_that_give_up_leave_nothing_behind(stage: Stage, kind: Kind, leave: str) -> None:
    wave = 500 if stage.loop == "default" else 100
    scheduler = stage.scheduler(**{f"max_queued_{kind}": wave + 2})
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    patience = stage.seconds(0.01) if leave == "queue timeout" else None
    first, last = hold(scheduler, kind, priority=-1), hold(scheduler, kind, priority=1)
    await settle()
    for _ in range(stage.share(40)):  # in the four variants together 80,000 calls
        tasks = [start(scheduler.submit(kind, noop, queue_timeout=patience)) for _ in range(wave)]
        await settle(2)
        if leave == "cancel":
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)
        assert not any(isinstance(task.exception(), QueueFull) for task in tasks if not task.cancelled())
        assert entries(scheduler) <= 10 + 2 * 40  # the stragglers' slack

    seen = scheduler.snapshot()
    assert seen.interactive_queued + seen.batch_queued == 2  # the bound counts the living only
    blockers[0].release()
    await settle(3)
    assert (first.started, last.started) == (True, False)  # at once, past no dead
    for held in (blockers[1], first, last):
        held.release()
    await asyncio.gather(first.task, last.task, *(held.task for held in blockers))
    assert entries(scheduler) == 0


# B131


class Crowd:
    """`count` calls of a kind that wait behind two that run, and what one thing more costs there."""

    def __init__(self, scheduler: Counted, kind: Kind, count: int) -> None:
        self.scheduler, self.kind, self.count = scheduler, kind, count
        self.blockers = [hold(scheduler), hold(scheduler)]
        self.tasks: list[asyncio.Task[None]] = []

    async def gather(self) -> None:
        await settle()
        self.tasks = [start(self.scheduler.submit(self.kind, noop)) for _ in range(self.count)]
        await settle(2)

    async def submit(self) -> None:
        self.tasks.append(start(self.scheduler.submit(self.kind, noop)))
        await asyncio.sleep(0)

    async def cancel_last(self) -> None:
        self.tasks.pop().cancel()
        await asyncio.sleep(0)

    async def cancel_first(self) -> None:
        self.tasks.pop(0).cancel()
        await asyncio.sleep(0)

    async def cancel_in_the_middle(self) -> None:
        self.tasks.pop(len(self.tasks) // 2).cancel()
        await asyncio.sleep(0)

    async def snapshot(self) -> None:
        self.scheduler.snapshot()

    async def release(self) -> None:
        """The next one starts and ends; then a new blocker takes its slot, and is first in the queue."""
        self.blockers.append(hold(self.scheduler, "interactive", priority=-1))
        await asyncio.sleep(0)
        self.blockers.pop(0).release()
        await settle(3)

    async def disperse(self) -> None:
        for task in self.tasks:
            task.cancel()
        await settle(2)
        for held in self.blockers:
            held.release()
        await settle()


OPERATIONS: Final[list[Callable[[Crowd], Awaitable[None]]]] = [
    Crowd.submit,
    Crowd.cancel_last,
    Crowd.cancel_first,
    Crowd.cancel_in_the_middle,
    Crowd.release,
    Crowd.snapshot,
]


async def _cost(crowd: Crowd, operation: Callable[[Crowd], Awaitable[None]]) -> float:
    with counted_lines() as lines:
        for _ in range(30):
            await operation(crowd)
    return lines.count / 30


@counting_lines
@each_kind
@pytest.mark.slow
async def test_b131_no_operation_costs_more_because_more_wait(stage: Stage, kind: Kind) -> None:
    costs: dict[int, list[float]] = {}
    most = 40_000 if stage.loop == "default" and kind == "interactive" else 5_000
    for count in (500, most):
        scheduler = stage.scheduler(policy=FixedPolicy(1), window=1e6)  # no slice ends meanwhile
        crowd = Crowd(scheduler, kind, count)
        await crowd.gather()
        costs[count] = [await _cost(crowd, operation) for operation in OPERATIONS]
        await crowd.disperse()

    few, many = costs.values()
    for operation, at_few, at_many in zip(OPERATIONS, few, many, strict=True):
        assert at_many < 2 * at_few + 50, operation.__name__


@counting_lines
@each_kind
@pytest.mark.parametrize("order", ["first to last", "last to first", "every other one"])
async def test_b131_cancelling_all_costs_each_the_same(stage: Stage, kind: Kind, order: str) -> None:
    costs: list[float] = []
    for count in (200, 2_000):
        crowd = Crowd(stage.scheduler(), kind, count)
        await crowd.gather()
        tasks = {
            "first to last": crowd.tasks,
            "last to first": crowd.tasks[::-1],
            "every other one": crowd.tasks[::2] + crowd.tasks[1::2],
        }[order]
        with counted_lines() as lines:
            for task in tasks:
                task.cancel()
            await settle(2)
        costs.append(lines.count / count)
        assert all(task.cancelled() for task in tasks)
        await crowd.disperse()

    assert costs[1] < 2 * costs[0] + 50


@counting_lines
async def test_b131_a_snapshot_looks_once_at_each_call_that_is_older_than_the_threshold(stage: Stage) -> None:
    scheduler = stage.scheduler(interactive_p95_threshold=stage.seconds(0.01), window=stage.seconds(10))
    crowd = Crowd(scheduler, "interactive", 2_000)
    await crowd.gather()
    await asyncio.sleep(stage.seconds(5))  # long enough without an event for many slices to have passed

    assert await _cost(crowd, Crowd.snapshot) < 8 * 2_000
    await crowd.disperse()


# B132, of which the rate limit is for later


@counting_lines
@each_kind
@pytest.mark.slow
async def test_b132_thousands_of_waiting_deadlines_are_one_timer_and_each_start_wakes_one(
    stage: Stage, kind: Kind
) -> None:
    costs: list[float] = []
    for count in (200, 5_000 if stage.loop == "default" else 1_000):
        scheduler = stage.scheduler()
        blockers = [hold(scheduler), hold(scheduler)]
        await settle()
        tasks = [
            start(scheduler.submit(kind, noop, queue_timeout=stage.seconds(1e6 + number))) for number in range(count)
        ]
        await settle(2)
        assert not stage.virtual or len(armed_timers()) == 1

        with counted_lines() as lines:
            for held in blockers:
                held.release()
            await asyncio.wait(tasks)
        costs.append(lines.count / count)
        assert all(task.exception() is None for task in tasks)

    assert costs[1] < 2 * costs[0] + 50


# B134


class Users:
    """Each asks, gives up after a second, asks once more, and gives up for good."""

    def __init__(self, scheduler: Counted, give_up: str) -> None:
        self.scheduler = scheduler
        self.by_queue_timeout = give_up == "queue timeout"
        self.served = self.asked = self.refused = 0
        self.late_starts: list[float] = []

    async def arrive(self, per_second: float, seconds: float) -> list[asyncio.Task[None]]:
        tasks = []
        for _ in range(round(per_second * seconds)):
            tasks.append(start(self._user()))
            await asyncio.sleep(1 / per_second)
        return tasks

    async def _user(self) -> None:
        self.asked += 1
        for _ in range(2):
            try:
                await self._ask(now() + 1)
            except QueueFull:
                self.refused += 1
                await asyncio.sleep(1)
            except TimeoutError:
                continue
            else:
                self.served += 1
                return

    async def _ask(self, deadline: float) -> None:
        async def answer() -> None:
            if now() >= deadline:
                self.late_starts.append(now() - deadline)
            await asyncio.sleep(0.1)

        if self.by_queue_timeout:
            await self.scheduler.submit("interactive", answer, queue_timeout=1)
        else:
            async with asyncio.timeout_at(deadline):
                await self.scheduler.submit("interactive", answer)


@in_virtual_time
@pytest.mark.parametrize("give_up", ["queue timeout", "the caller's timeout"])
@pytest.mark.parametrize("bound", [None, 20])
@pytest.mark.slow
async def test_b134_after_a_peak_of_three_times_the_capacity_all_is_well_again(
    stage: Stage, give_up: str, bound: int | None
) -> None:
    scheduler = stage.scheduler(max_concurrency=4, max_queued_interactive=bound)
    users = Users(scheduler, give_up)
    seconds = {"default": 20, "eager": 5}.get(stage.loop, 3)
    peak = await users.arrive(per_second=120, seconds=seconds)  # 40 are served per second
    await asyncio.sleep(3)
    served_in_the_peak = users.served

    after = await users.arrive(per_second=28, seconds=seconds)
    await asyncio.wait(peak + after)

    assert users.served - served_in_the_peak >= 0.99 * 28 * seconds
    assert users.late_starts == []
    assert bool(users.refused) == (bound is not None)
    if users.by_queue_timeout or bound is not None:  # who gives up while it runs has been served for nothing
        assert served_in_the_peak >= 0.9 * 40 * seconds


@scenario
async def test_b134_over_the_bound_the_refusal_comes_at_once(stage: Stage) -> None:
    scheduler = stage.scheduler(max_queued_interactive=20)
    gate = asyncio.Event()
    tasks = [start(scheduler.submit("interactive", gate.wait, queue_timeout=stage.seconds(1e5))) for _ in range(100)]
    await settle(2)
    endings = [task.exception() for task in tasks if task.done()]
    gate.set()
    await asyncio.wait(tasks)

    assert [type(ending) for ending in endings] == [QueueFull] * 78
    assert await outcome(scheduler.submit("interactive", noop, queue_timeout=0)) in (None, QueueTimeout)
