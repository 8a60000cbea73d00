"""In what order listeners hear, what they may do, and what comes of one that raises: promise 32 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    Event,
    LimitChanged,
    QueueFull,
    SchedulerMisuse,
    TrafficScheduler,
)
from tests.support import Recorder, account, armed_timers, hold, make_scheduler, noop, settle

LOGGER = "llm_traffic_scheduler"


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER]


def fault(error: BaseException) -> Callable[[Event], Any]:
    """A listener that raises `error` whatever it hears."""

    def broken(event: Event) -> Any:
        raise error

    return broken


async def test_listeners_hear_of_everything_in_the_order_in_which_they_were_added() -> None:
    scheduler = make_scheduler()
    heard: list[tuple[str, type[Event]]] = []

    def add(name: str) -> None:
        scheduler.add_listener(lambda event: heard.append((name, type(event))))

    for name in "abc":
        add(name)

    await scheduler.submit("interactive", noop)

    assert heard == [(name, kind) for kind in (CallStarted, CallFinished) for name in "abc"]


async def test_a_listener_hears_of_a_start_when_the_call_starts() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    hold(scheduler)
    await settle()

    assert [type(event) for event in recorder.events] == [CallStarted]


async def test_a_listener_added_later_hears_nothing_of_before_and_a_removed_one_nothing_more() -> None:
    scheduler = make_scheduler()
    first = Recorder(scheduler)
    one = hold(scheduler)
    await settle()
    second = Recorder(scheduler)
    hold(scheduler)
    await settle()
    scheduler.remove_listener(first)
    one.release()
    await settle()

    assert [type(event) for event in first.events] == [CallStarted, CallStarted]
    assert [type(event) for event in second.events] == [CallStarted, CallFinished]
    with pytest.raises(ValueError, match="not in list"):
        scheduler.remove_listener(first)


async def test_where_the_last_listener_has_gone_no_call_looks_for_any() -> None:
    scheduler = make_scheduler()
    await scheduler.drain()
    recorder = Recorder(scheduler)
    assert scheduler._home.attentive

    scheduler.remove_listener(recorder)

    assert not scheduler._home.attentive


@pytest.mark.parametrize("error", [ValueError("bug"), asyncio.CancelledError(), GeneratorExit(), StopIteration()])
async def test_a_raising_listener_disturbs_neither_the_call_nor_the_listeners_behind_it(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = TrafficScheduler(max_concurrency=2, max_queued_interactive=1, name="gateway")
    scheduler.add_listener(fault(error))
    behind = Recorder(scheduler)
    first, second = hold(scheduler), hold(scheduler)
    waiting = hold(scheduler)
    await settle()
    with pytest.raises(QueueFull):
        await scheduler.submit("interactive", noop)
    for held in (first, second, waiting):
        held.release()
    await settle()

    assert [held.task.result() for held in (first, second, waiting)] == ["interactive"] * 3
    assert len(behind.events) == 8
    assert scheduler.snapshot().listener_faults == 8
    assert "8 of listeners" in scheduler.explain()
    (record,) = logged(caplog)
    assert "listener" in record.getMessage()
    assert "'gateway'" in record.getMessage()
    assert record.exc_info
    assert record.exc_info[1] is error
    assert account(scheduler, "interactive").completed == 3
    scheduler.check()


async def test_listener_faults_are_logged_once_per_kind_of_error(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler()
    errors = iter([ValueError("a"), KeyError("b"), ValueError("c"), KeyError("d")])
    scheduler.add_listener(lambda event: fault(next(errors))(event))

    await scheduler.submit("interactive", noop)
    await scheduler.submit("interactive", noop)

    assert [repr(record.exc_info[1]) for record in logged(caplog) if record.exc_info] == [
        "ValueError('a')",
        "KeyError('b')",
    ]
    assert scheduler.snapshot().listener_faults == 4


async def test_errors_whose_classes_are_made_anew_each_time_fill_neither_the_log_nor_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler()
    same_name, own_name = count(), count()
    scheduler.add_listener(lambda event: fault(type("ApiError", (Exception,), {})(next(same_name)))(event))
    scheduler.add_listener(lambda event: fault(type(f"ApiError{next(own_name)}", (Exception,), {})())(event))

    for _ in range(150):
        await scheduler.submit("interactive", noop)

    assert scheduler.snapshot().listener_faults == 600
    assert len(logged(caplog)) == 100


async def test_a_coroutine_function_is_refused_as_a_listener() -> None:
    async def listener(event: Event) -> None: ...

    for callback in (listener, partial(listener)):
        with pytest.raises(SchedulerMisuse, match="start a task in it"):
            make_scheduler().add_listener(callback)  # type: ignore[arg-type]


async def test_a_coroutine_that_a_listener_returns_is_closed_and_counts_as_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler()
    made: list[Coroutine[Any, Any, None]] = []
    scheduler.add_listener(lambda event: made.append(noop()) or made[-1])  # type: ignore[func-returns-value, arg-type]

    await scheduler.submit("interactive", noop)

    assert [inspect.getcoroutinestate(coroutine) for coroutine in made] == [inspect.CORO_CLOSED] * 2
    assert scheduler.snapshot().listener_faults == 2
    assert len(logged(caplog)) == 1


async def test_a_log_handler_that_raises_costs_no_slot() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    handler = Broken()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        scheduler = make_scheduler()
        scheduler.add_listener(fault(ValueError()))
        for _ in range(3):
            await scheduler.submit("interactive", noop)
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)

    assert scheduler.snapshot().running == 0
    assert account(scheduler, "interactive").completed == 3


# What listeners do to the scheduler


async def test_the_state_is_whole_whenever_a_listener_looks() -> None:
    scheduler = make_scheduler(max_concurrency=4, interactive_p95_threshold=1.0, max_queued_interactive=2)
    seen: list[Event] = []

    def look(event: Event) -> None:
        seen.append(event)
        scheduler.check()
        for kind in ("interactive", "batch"):
            account(scheduler, kind)
        assert len(scheduler.calls()) == sum(
            getattr(scheduler.snapshot(), f"{kind}_{state}")
            for kind in ("interactive", "batch")
            for state in ("running", "queued")
        )

    scheduler.add_listener(look)
    calls = [hold(scheduler, kind, queue_timeout=2) for kind in ["interactive", "batch"] * 6]
    await asyncio.sleep(1)
    for held in calls[:4]:
        held.release()
    await asyncio.sleep(5)
    for held in calls:
        held.release()
    await settle()

    assert {type(event) for event in seen} == {CallQueued, CallStarted, CallFinished, CallRejected, LimitChanged}
    assert scheduler.snapshot().listener_faults == 0


async def test_what_a_listener_changes_takes_effect_after_the_present_events_have_been_told() -> None:
    scheduler = make_scheduler()
    told: list[str] = []

    def widen(event: Event) -> None:
        if isinstance(event, CallQueued):
            scheduler.configure(max_concurrency=8)
            told.append(f"widened, {scheduler.snapshot().running} run")

    scheduler.add_listener(widen)
    scheduler.add_listener(lambda event: told.append(type(event).__name__))
    calls = [hold(scheduler) for _ in range(3)]
    await settle()

    assert told == ["CallStarted", "CallStarted", "widened, 3 run", "CallQueued", "CallStarted"]
    assert all(held.started for held in calls)


async def test_a_listener_may_pause_configure_and_submit() -> None:
    scheduler = make_scheduler(max_queued_batch=3)
    follow_ups: list[asyncio.Task[None]] = []

    def react(event: Event) -> None:
        scheduler.pause("batch")
        scheduler.configure(max_concurrency=4 + len(follow_ups) % 2)
        if isinstance(event, CallFinished) and event.label == "first":
            follow_ups.append(asyncio.create_task(scheduler.submit("interactive", noop, label="follow-up")))
        scheduler.resume("batch")

    scheduler.add_listener(react)
    recorder = Recorder(scheduler)
    calls = [hold(scheduler, kind, label="first") for kind in ["interactive", "batch"] * 4]
    await settle()
    for held in calls:
        held.release()
        await settle()

    assert [task.done() for task in follow_ups] == [True] * 8
    assert sum(event.label == "follow-up" for event in recorder.of(CallFinished)) == 8
    assert scheduler.snapshot().running == 0
    assert scheduler.snapshot().listener_faults == 0
    assert armed_timers() == []
    scheduler.check()


@pytest.mark.parametrize("bound", [None, 5])
async def test_a_listener_that_moves_the_bound_does_not_change_why_a_call_was_refused(bound: int | None) -> None:
    scheduler = make_scheduler(max_queued_interactive=1)

    def enlarge(event: Event) -> None:
        if isinstance(event, CallRejected):
            scheduler.configure(max_queued_interactive=bound)

    scheduler.add_listener(enlarge)
    hold(scheduler), hold(scheduler), hold(scheduler)
    await settle()

    with pytest.raises(QueueFull, match="holds 1 of 1 calls") as refusal:
        await scheduler.submit("interactive", noop)

    assert (refusal.value.queued, refusal.value.limit) == (1, 1)


async def test_a_chain_of_reactions_does_not_recurse() -> None:
    scheduler = make_scheduler()
    depth = [0, 0]

    def react(event: Event) -> None:
        depth[0] += 1
        depth[1] = max(depth)
        if isinstance(event, CallQueued) and scheduler.snapshot().max_concurrency < 300:
            scheduler.configure(max_concurrency=scheduler.snapshot().max_concurrency + 1)
        depth[0] -= 1

    scheduler.add_listener(react)
    calls = [hold(scheduler) for _ in range(200)]
    await settle()

    assert all(held.started for held in calls)
    assert depth == [0, 1]
