"""Section E: what jobs raise reaches their callers, costs no slot, and is not kept alive."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import sys
import traceback
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CloseReport,
    Kind,
    QueueFull,
    QueueTimeout,
    Rejected,
    RunTimeout,
    SchedulerClosed,
)
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.loops import loop_factories
from tests.scenarios.counted import Counted
from tests.scenarios.jobs import KINDS, noting
from tests.scenarios.stage import Stage, scenario
from tests.support import account, hold, make_scheduler, noop, now, settle


def _over_at_call() -> Awaitable[None]:
    raise StopIteration("over")


async def _over_inside() -> None:
    next(iter([]))


async def _over_async() -> None:
    raise StopAsyncIteration("over")


@scenario
@each_door
@pytest.mark.parametrize("job", [_over_at_call, _over_inside, _over_async], ids=lambda job: job.__name__.strip("_"))
async def test_b66_a_stop_iteration_reaches_the_caller_at_once(
    stage: Stage, run: Door, job: Callable[[], Awaitable[None]]
) -> None:
    """A future refuses StopIteration: its caller waited for ever."""
    scheduler = stage.scheduler()
    for kind in KINDS:
        for _ in range(3):
            task = start(run(scheduler, kind, job))
            await settle(3)
            error = task.exception()
            if job is _over_async:
                assert isinstance(error, StopAsyncIteration)
            else:
                assert isinstance(error, RuntimeError)
                assert isinstance(error.__cause__, StopIteration)
    await stage.canaries(scheduler)


@scenario
@each_door
async def test_b66_a_stop_iteration_in_a_thread_costs_no_slot(stage: Stage, run: Door) -> None:
    """As before: before 3.13 asyncio itself never tells the one who waits for the thread; a run timeout does."""
    scheduler = stage.scheduler()

    task = start(run(scheduler, "interactive", asyncio.to_thread, next, iter([]), run_timeout=0.05))
    ending = await outcome(task)

    assert ending in (RuntimeError, RunTimeout)
    assert ending is RuntimeError or sys.version_info < (3, 13)
    stage.complaints.clear()
    await stage.canaries(scheduler)


class _Fatal(BaseException):
    pass


@scenario
@each_door
@each_kind
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, _Fatal])
@pytest.mark.parametrize("waits", [True, False])
async def test_b67_what_is_no_exception_frees_the_slot_too(
    stage: Stage, run: Door, kind: str, error: type[BaseException], waits: bool
) -> None:
    """`except Exception` around the job: it ran for ever, and join and stop hung."""
    scheduler = await stage.one_slot()

    async def job() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    for _ in range(3):
        assert await outcome(run(scheduler, kind, job)) is error  # in this task: the loop does not see it
    await stage.canaries(scheduler)
    stage.unload()
    await scheduler.drain()

    assert account(scheduler, kind).failed == 3


@pytest.mark.parametrize("loop_name", ["virtual", "debug", "eager", "real", "uvloop"])
@each_door
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_b67_a_job_that_stops_its_loop_leaves_the_scheduler_whole_on_the_same_loop(
    loop_name: str, run: Door, error: type[BaseException]
) -> None:
    """As before with the two that end `run_until_complete`, which is then called again."""
    if (factory := loop_factories().get(loop_name)) is None:
        pytest.skip("uvloop is not installed")
    loop, scheduler = factory(), Counted(max_concurrency=2)
    tasks: list[asyncio.Task[Any]] = []

    async def raises() -> None:
        await asyncio.sleep(0)
        raise error

    async def first() -> None:
        tasks.append(asyncio.ensure_future(run(scheduler, "interactive", raises)))
        tasks.append(asyncio.ensure_future(run(scheduler, "batch", asyncio.sleep, 0.001)))
        await asyncio.sleep(5)

    async def afterwards() -> None:
        await tasks[1]
        await scheduler.drain()
        await assert_whole(scheduler)
        assert await scheduler.close() == CloseReport()
        ended.cancel()

    ended = loop.create_task(first())
    with pytest.raises(error):
        loop.run_until_complete(ended)
    assert isinstance(tasks[0].exception(), error)
    loop.run_until_complete(afterwards())
    loop.close()
    assert scheduler.inside == {"interactive": 0, "batch": 0}


def _depth(error: BaseException) -> int:
    return sum(1 for _ in traceback.walk_tb(error.__traceback__))


@scenario
@each_door
@pytest.mark.parametrize("refusal", [SchedulerClosed, QueueTimeout, QueueFull])
@pytest.mark.slow
async def test_b70_each_refused_call_gets_an_error_of_its_own(stage: Stage, run: Door, refusal: type[Rejected]) -> None:
    """One instance was raised to thousands of waiters, and its traceback grew with each."""
    count = stage.share(10_000 if refusal is SchedulerClosed else 1_000)
    scheduler = await stage.one_slot(max_queued_batch=0 if refusal is QueueFull else None)
    await stage.fill(scheduler, 1)
    patience = stage.seconds(1) if refusal is QueueTimeout else None
    tasks = [start(run(scheduler, "batch", noop, queue_timeout=patience)) for _ in range(count)]
    await settle()

    if refusal is SchedulerClosed:
        closing = start(scheduler.close())
        await settle()
        stage.unload()
        assert (await closing).rejected == count
    await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks]

    assert {type(error) for error in errors} == {refusal}
    assert len({id(error) for error in errors}) == count
    assert len({_depth(error) for error in errors if error is not None}) == 1
    scheduler.configure(max_queued_batch=None)


@scenario
@each_door
async def test_b70_the_error_of_one_job_that_many_wait_for_does_not_grow(stage: Stage, run: Door) -> None:
    """As before with an instance that cannot be a fresh one, as it is the user's."""
    scheduler = stage.scheduler()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ConnectionError

    shared, depths = start(fails()), list[int]()

    async def caller(kind: str) -> None:
        try:
            await run(scheduler, kind, lambda: shared)
        except ConnectionError as error:
            depths.append(_depth(error))

    await asyncio.gather(*(start(caller(KINDS[n % 2])) for n in range(stage.share(1_000))))

    assert depths[5:] == depths[5:6] * (stage.share(1_000) - 5)


class _Payload:
    """Stands for a megabyte."""


@scenario
@each_door
@pytest.mark.parametrize(
    "ending", ["failed", "failed task", "cancelled", "cancelled while it waits", "timed out", "refused"]
)
async def test_b71_what_a_job_held_is_gone_with_its_result_without_the_collector(
    stage: Stage, run: Door, ending: str
) -> None:
    """exception -> traceback -> frame -> future -> exception: failed jobs kept their payloads alive."""
    counted = await stage.one_slot()
    # Counting wraps what a job returns, which is what "failed task" is about.
    scheduler = make_scheduler() if ending == "failed task" else counted
    if ending in ("cancelled while it waits", "refused"):
        await stage.fill(counted, 1)
    payloads: list[weakref.ref[_Payload]] = []

    async def job(payload: _Payload) -> None:
        own = payload
        await asyncio.sleep(0)
        if ending.startswith("failed"):
            raise ConnectionError
        await asyncio.sleep(stage.seconds(50))
        del own

    def in_a_task(payload: _Payload) -> asyncio.Task[None]:
        return asyncio.ensure_future(job(payload))

    async def one() -> None:
        payload = _Payload()
        payloads.append(weakref.ref(payload))
        options = {"timed out": {"run_timeout": 0.001}, "refused": {"queue_timeout": 0.001}}
        work = in_a_task if ending == "failed task" else job
        task = start(run(scheduler, "batch", work, payload, **options.get(ending, {})))
        if ending.startswith("cancelled"):
            await settle(4)
            task.cancel()
        await asyncio.wait([task])

    gc.disable()
    try:
        for _ in range(stage.share(200)):
            await one()
        await settle()
        alive = sum(payload() is not None for payload in payloads)
    finally:
        gc.enable()
    assert alive == 0


class _Client:
    """An SDK with a timeout and retries of its own, in front of a backend that never answers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.attempts = 0

    async def ask(self) -> str:
        for _ in range(3):
            self.attempts += 1
            try:
                async with asyncio.timeout(self._stage.seconds(3)):
                    await asyncio.Event().wait()
            except TimeoutError:
                continue
        raise ConnectionError("gave up")


@scenario
@each_door
@pytest.mark.parametrize("bound", ["run_timeout", "outer"])
async def test_b72_one_deadline_stands_over_all_the_retries_of_a_client(stage: Stage, run: Door, bound: str) -> None:
    """timeout=30 became 91 s: timeouts and retries of the layers multiplied, and the slot was held all the while."""
    scheduler, client, began = await stage.one_slot(), _Client(stage), now()

    async def caller() -> None:
        async with asyncio.timeout(stage.seconds(4) if bound == "outer" else None):
            limit = stage.seconds(4) if bound == "run_timeout" else None
            await run(scheduler, "interactive", client.ask, run_timeout=limit)

    ending = await outcome(start(caller()))
    took = now() - began

    assert ending is (RunTimeout if bound == "run_timeout" else TimeoutError)
    assert client.attempts == 2
    assert scheduler.begun == 2  # with the ballast: we retry nothing
    assert scheduler.snapshot().interactive_running == 1
    if stage.virtual:
        assert took == 4


@scenario
async def test_b72_an_outer_timeout_bounds_the_wait_and_the_run_together(stage: Stage) -> None:
    """As before: a timeout per call was taken for the total."""
    scheduler, client = await stage.one_slot(), _Client(stage)
    held = hold(scheduler)
    await settle()
    asyncio.get_running_loop().call_later(stage.seconds(2.5), held.release)
    began = now()

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(stage.seconds(4)):
            await scheduler.submit("interactive", client.ask, run_timeout=stage.seconds(4))

    assert type(caught.value) is TimeoutError
    assert client.attempts == 1
    if stage.virtual:
        assert now() - began == 4


class _Throttled(Exception):
    def __init__(self, hint: object) -> None:
        super().__init__(hint)
        self.hint = hint


def _delay(hint: object, chance: random.Random) -> float:
    """Seconds to wait after a 429: at least what was asked for, with jitter, never more than an hour."""
    try:
        seconds = float(str(hint))
    except ValueError:  # a date in the past, or nonsense
        seconds = 0.0
    return min(3_600.0, max(1.0, seconds) * chance.uniform(1.0, 1.5))


async def _patiently(stage: Stage, run: Door, scheduler: Counted, kind: Kind, job: Callable[[], Any]) -> Any:
    """The documented pattern: the job raises, its slot is free while the caller waits, the caller submits again."""
    chance = random.Random(repr(job))
    while True:
        try:
            return await run(scheduler, kind, job)
        except _Throttled as error:
            await asyncio.sleep(stage.seconds(_delay(error.hint, chance)))


@scenario
@each_door
@pytest.mark.parametrize("hint", ["20", "0", "-1", "abc", "Wed, 21 Oct 2015 07:28:00 GMT", "86400"])
async def test_b73_a_throttled_call_waits_without_its_slot_and_not_in_step_with_the_others(
    stage: Stage, run: Door, hint: str
) -> None:
    """All jobs slept in their slots for as long as the backend asked, and came back in lockstep."""
    scheduler = stage.scheduler(max_concurrency=10)
    first = now()
    refused, answered = list[float](), list[float]()

    def backend() -> Callable[[], Awaitable[str]]:
        tries = itertools.count()

        async def job() -> str:
            if next(tries) == 0:
                refused.append(now() - first)
                raise _Throttled(hint)
            answered.append(now() - first)
            return "answer"

        return job

    tasks = [start(_patiently(stage, run, scheduler, KINDS[n % 2], backend())) for n in range(10)]
    await settle()
    assert len(refused) == 10
    assert scheduler.snapshot().running == 0  # all ten are free for others meanwhile
    log: list[str] = []
    await asyncio.gather(*(start(run(scheduler, "interactive", noting(log, str(n)))) for n in range(10)))
    assert len(log) == 10
    if hint == "86400" and not stage.virtual:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return
    assert await asyncio.gather(*tasks) == ["answer"] * 10

    assert min(answered) >= stage.seconds({"20": 20, "86400": 3600}.get(hint, 1)) - (0 if stage.virtual else 0.002)
    assert max(answered) <= stage.seconds(3600) + 1
    if stage.virtual and hint != "86400":
        assert len(set(answered)) == 10
