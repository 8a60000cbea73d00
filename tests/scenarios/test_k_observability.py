"""K. Observability: what watches the scheduler cannot stop it, and what it shows does not grow with the traffic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    CallStarted,
    Decision,
    Event,
    QueueTimeout,
    RunTimeout,
    SchedulerMisuse,
    SchedulerSnapshot,
    Signals,
)
from tests.behaviour.doors import assert_whole, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario
from tests.support import Law, Recorder, hold, make_scheduler, noop, settle

LOGGER = "llm_traffic_scheduler"


def faults_logged(caplog: pytest.LogCaptureFixture) -> int:
    return len([record for record in caplog.records if record.name == LOGGER])


async def some_traffic(scheduler: Counted) -> None:
    """Calls that run at once, wait, fail and time out, of both kinds."""

    async def fails() -> None:
        raise ConnectionError

    jobs: list[tuple[Any, type[BaseException] | None]] = [(noop, None), (settle, None), (fails, ConnectionError)]
    tasks = [(start(scheduler.submit(kind, job)), end) for kind in ("interactive", "batch") for job, end in jobs * 2]
    await asyncio.wait([task for task, _ in tasks])
    assert [await outcome(task) for task, _ in tasks] == [end for _, end in tasks]


# B125, of which the adapters' series are for later


@scenario
async def test_b125_what_is_shown_does_not_grow_with_labels_and_kinds_of_error(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = stage.scheduler()
    shapes = {_shape(scheduler.snapshot())}
    count = stage.share(10_000)
    size = 0
    with caplog.at_level(logging.CRITICAL, logger=LOGGER):
        for number in range(count):
            error = type(f"Error{number}", (Exception,), {})
            scheduler.add_listener(listener := _raising(error()))
            with pytest.raises(error):
                await scheduler.submit("interactive", _raising(error()), label=f"user {number}")
            scheduler.remove_listener(listener)
            if number == 200:
                size = len(scheduler._listeners._logged)

    shapes.add(_shape(scheduler.snapshot()))
    assert len(shapes) == 1
    assert len(scheduler._listeners._logged) == size == 100
    assert scheduler.snapshot().listener_faults == 2 * count


def _shape(snapshot: SchedulerSnapshot) -> tuple[object, ...]:
    """Names of all figures."""
    totals = [(kind, [field.name for field in fields(each)]) for kind, each in sorted(snapshot.totals.items())]
    return repr([field.name for field in fields(snapshot)]), repr(totals)


def _raising(error: BaseException) -> Callable[..., Any]:
    def broken(*_: object) -> Any:
        raise error

    return broken


# B127


@scenario
@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError(), GeneratorExit()], ids=repr)
async def test_b127_a_listener_that_raises_is_counted_logged_once_and_disturbs_nobody(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    scheduler = stage.scheduler()
    before, after = Recorder(scheduler), Recorder()
    scheduler.add_listener(broken := _raising(error))
    scheduler.add_listener(after)

    await some_traffic(scheduler)
    scheduler.remove_listener(broken)

    assert before.names == after.names
    assert scheduler.snapshot().listener_faults == len(before.events) > 20
    assert faults_logged(caplog) == 1


@scenario
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_b127_what_is_meant_for_the_process_reaches_it_and_no_slot_is_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    scheduler = stage.scheduler()
    reached: list[BaseException] = []
    loop = asyncio.get_running_loop()
    passed_on = loop.call_soon

    def call_soon(callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        if args and isinstance(args[0], error):  # it would end the loop, and the test with it
            reached.append(args[0])
            return passed_on(lambda: None)
        return passed_on(callback, *args, **options)

    loop.call_soon = call_soon  # type: ignore[assignment]
    scheduler.add_listener(broken := _raising(error()))
    await some_traffic(scheduler)
    scheduler.remove_listener(broken)
    loop.call_soon = passed_on  # type: ignore[method-assign]

    assert len(reached) == scheduler.snapshot().listener_faults
    assert faults_logged(caplog) == 1


@scenario
@pytest.mark.parametrize("forgetful", [False, True])
async def test_b127_a_listener_that_would_have_to_be_awaited_is_refused(
    stage: Stage, caplog: pytest.LogCaptureFixture, forgetful: bool
) -> None:
    scheduler = stage.scheduler()

    async def forever(event: Event) -> None:
        await asyncio.Event().wait()

    if not forgetful:
        with pytest.raises(SchedulerMisuse, match="plain function"):
            scheduler.add_listener(forever)  # type: ignore[arg-type]
        return
    scheduler.add_listener(hidden := lambda event: forever(event))  # type: ignore[arg-type]
    await some_traffic(scheduler)
    scheduler.remove_listener(hidden)  # type: ignore[arg-type]

    assert scheduler.snapshot().listener_faults > 20
    assert faults_logged(caplog) == 1


@scenario
async def test_b127_a_listener_that_blocks_costs_time_and_nothing_else(stage: Stage) -> None:
    scheduler = stage.scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    clock = scheduler._home.clock
    behind = 0.0

    def blocks(event: Event) -> None:
        nonlocal behind
        behind += stage.seconds(1)

    scheduler._home.clock = lambda: clock() + behind  # time that passes inside the listener
    scheduler.add_listener(blocks)
    impatient = start(scheduler.submit("interactive", noop, queue_timeout=stage.seconds(0.5)))
    patient = start(scheduler.submit("interactive", noop))
    await settle()
    for call in held:
        call.release()

    assert [await outcome(task) for task in (impatient, patient)] == [QueueTimeout, None]
    scheduler.remove_listener(blocks)
    await asyncio.gather(*(call.task for call in held))


@scenario
@pytest.mark.parametrize("answer", ["submit", "close", "configure", "pause and resume", "snapshot"])
async def test_b127_a_listener_may_use_the_scheduler(stage: Stage, answer: str) -> None:
    scheduler = stage.scheduler(max_concurrency=4)
    tasks: list[asyncio.Task[Any]] = []

    def listener(event: Event) -> None:
        if not isinstance(event, CallFinished) or event.label != "the cause":
            return
        if answer == "submit":
            tasks.extend(start(scheduler.submit(kind, noop)) for kind in ("interactive", "batch"))
        elif answer == "close":
            tasks.append(start(scheduler.close()))
        elif answer == "configure":
            scheduler.configure(max_concurrency=scheduler.snapshot().max_concurrency + 1)
        elif answer == "pause and resume":
            scheduler.pause("batch")
            scheduler.resume("batch")
        else:
            assert "slots taken" in scheduler.explain()
            assert scheduler.calls() is not None

    scheduler.add_listener(listener)
    calls = [hold(scheduler, kind, label="the cause") for kind in ("interactive", "batch") for _ in range(4)]
    await settle()
    for held in calls:
        held.release()
    await asyncio.wait([held.task for held in calls])
    await settle()

    assert scheduler.snapshot().listener_faults == 0
    assert all([await outcome(task) is None for task in tasks])
    assert len(tasks) == {"submit": 16, "close": 1}.get(answer, 0) or answer == "close"
    scheduler.remove_listener(listener)


@scenario
async def test_b127_the_state_is_whole_before_a_listener_hears_of_it(stage: Stage) -> None:
    scheduler = stage.scheduler()
    seen: list[tuple[str, int]] = []

    def listener(event: Event) -> None:
        scheduler.check()
        if isinstance(event, CallStarted | CallFinished):
            seen.append((type(event).__name__, scheduler.snapshot().running))

    scheduler.add_listener(listener)
    first = hold(scheduler)
    await settle()
    others = [hold(scheduler), hold(scheduler)]
    await settle()
    first.release()
    await settle()
    for held in others:
        held.release()
        await settle()
    scheduler.remove_listener(listener)

    assert seen == [
        ("CallStarted", 1),
        ("CallStarted", 2),
        ("CallFinished", 2),  # its slot has its next owner already
        ("CallStarted", 2),
        ("CallFinished", 1),
        ("CallFinished", 0),
    ]


class _BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk is full")


@scenario
async def test_b127_a_log_handler_that_raises_disturbs_nobody(stage: Stage) -> None:
    scheduler = stage.scheduler()
    handler = _BrokenHandler()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        scheduler.add_listener(broken := _raising(ValueError()))
        await some_traffic(scheduler)
        scheduler.remove_listener(broken)
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)

    assert scheduler.snapshot().listener_faults > 20


class Shy:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("no name")

    __str__ = __repr__


class ShyWork(Shy):
    """Work that returns nothing to await, and has no name for the message."""

    def __call__(self) -> Any:
        return None

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError("no name")


class ShyLaw(Shy):
    """A policy whose answer is none."""

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Any:
        return Decision("many")  # type: ignore[arg-type]


class ShyError(Shy, Exception):
    """Raised by a job."""


@scenario
async def test_b127_work_that_cannot_be_shown_costs_no_slot(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = stage.scheduler(max_concurrency=4, policy=Law(lambda now, signals: Decision(1)))

    works: list[tuple[Callable[[], Any], type[BaseException]]] = [
        (_raising(ShyError()), ShyError),
        (lambda: asyncio.sleep(3600, Shy()), RunTimeout),
    ]
    for work, error in works:
        for _ in range(3):
            assert await outcome(scheduler.submit("batch", work, run_timeout=stage.seconds(0.1))) is error

    plain = make_scheduler()  # the stage would wrap the work in a function that has a name
    for _ in range(3):
        assert await outcome(plain.submit("batch", ShyWork())) is ZeroDivisionError
    await assert_whole(plain)

    scheduler.configure(policy=ShyLaw())
    scheduler.add_listener(broken := _raising(ShyError()))
    await some_traffic(scheduler)
    scheduler.remove_listener(broken)
    assert scheduler.snapshot().policy_faults > 0
    assert scheduler.explain()
    assert repr(scheduler)
    scheduler.configure(policy=Law(lambda now, signals: Decision(1)))


@scenario
async def test_b127_a_listener_that_exhausts_the_stack_disturbs_nobody(stage: Stage) -> None:
    scheduler = stage.scheduler()

    def deep(event: Event) -> None:
        deep(event)

    scheduler.add_listener(deep)
    await some_traffic(scheduler)
    scheduler.remove_listener(deep)

    assert scheduler.snapshot().listener_faults > 20
