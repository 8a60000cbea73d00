"""What a listener hears, in what order, and with what in it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, get_args

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    Event,
    FixedPolicy,
    LimitChanged,
    QueueFull,
    QueueTimeout,
    SchedulerMisuse,
    current_slot,
)
from tests.support import Recorder, hold, make_scheduler, noop, settle


async def test_a_call_that_finds_a_slot_starts_and_finishes() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    await asyncio.sleep(5)

    await scheduler.submit("interactive", asyncio.sleep, 2, label="chat")

    assert recorder.events == [
        CallStarted(at=5.0, kind="interactive", label="chat", waited=0.0),
        CallFinished(at=7.0, kind="interactive", label="chat", outcome="completed", waited=0.0, ran=2.0),
    ]


async def test_a_call_that_waits_is_queued_first() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler, "batch")
    await settle()
    recorder = Recorder(scheduler)
    second = hold(scheduler, "batch", label="a")
    hold(scheduler, "batch", label="b")
    await asyncio.sleep(3)
    first.release()
    await asyncio.sleep(4)
    second.release()
    await settle()

    assert recorder.events == [
        CallQueued(at=0.0, kind="batch", label="a", queued=1),
        CallQueued(at=0.0, kind="batch", label="b", queued=2),
        CallFinished(at=3.0, kind="batch", label=None, outcome="completed", waited=0.0, ran=3.0),
        CallStarted(at=3.0, kind="batch", label="a", waited=3.0),
        CallFinished(at=7.0, kind="batch", label="a", outcome="completed", waited=3.0, ran=4.0),
        CallStarted(at=7.0, kind="batch", label="b", waited=7.0),
    ]


async def fail() -> None:
    await asyncio.sleep(1)
    raise ConnectionError


async def be_cancelled() -> None:
    await asyncio.sleep(1)
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "function, options, outcome",
    [
        (lambda: asyncio.sleep(1), {}, "completed"),
        (fail, {}, "failed"),
        (be_cancelled, {}, "cancelled"),
        (lambda: asyncio.sleep(100), {"run_timeout": 1}, "timed_out"),
    ],
)
async def test_the_outcome_says_how_a_call_ended(function: Any, options: dict[str, Any], outcome: str) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    await asyncio.gather(scheduler.submit("batch", function, **options), return_exceptions=True)

    (finished,) = recorder.of(CallFinished)
    assert (finished.outcome, finished.ran, finished.at) == (outcome, 1.0, 1.0)
    assert getattr(scheduler.snapshot().totals["batch"], outcome) == 1


async def test_a_call_cancelled_by_its_caller_or_by_close_is_cancelled() -> None:
    scheduler = make_scheduler(max_concurrency=8)
    recorder = Recorder(scheduler)
    left = hold(scheduler, label="left")
    hold(scheduler, label="closed")
    await settle()

    left.cancel()
    await scheduler.close(timeout=1)

    assert [(event.label, event.outcome) for event in recorder.of(CallFinished)] == [
        ("left", "cancelled"),
        ("closed", "cancelled"),
    ]


async def test_a_call_cancelled_while_it_waits_finishes_without_having_started() -> None:
    scheduler = make_scheduler()
    hold(scheduler), hold(scheduler)
    await settle()
    waiting = hold(scheduler, label="impatient")
    await settle()
    recorder = Recorder(scheduler)
    await asyncio.sleep(3)

    waiting.cancel()
    await settle()

    assert recorder.events == [
        CallFinished(at=3.0, kind="interactive", label="impatient", outcome="cancelled", waited=3.0, ran=0.0)
    ]


async def test_a_call_that_is_dead_when_its_turn_comes_finishes_without_having_started() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    hold(scheduler)
    await settle()
    leaver = hold(scheduler, label="leaver")
    hold(scheduler, label="heir")
    await settle()
    recorder = Recorder(scheduler)

    first.release()
    leaver.cancel()
    await settle()

    assert recorder.names[0] == "CallFinished interactive None"
    assert sorted(recorder.names[1:]) == ["CallFinished interactive leaver", "CallStarted interactive heir"]
    assert scheduler.snapshot().totals["interactive"].started == 3


async def test_a_refusal_says_why_and_how_long_the_call_waited() -> None:
    scheduler = make_scheduler(max_queued_batch=1)
    hold(scheduler), hold(scheduler)
    await settle()
    recorder = Recorder(scheduler)
    with pytest.raises(QueueTimeout):
        await scheduler.submit("interactive", noop, queue_timeout=0, label="now")
    with pytest.raises(QueueTimeout):
        await scheduler.submit("interactive", noop, queue_timeout=4, label="late")
    hold(scheduler, "batch", label="stranded")
    await settle()
    with pytest.raises(QueueFull):
        await scheduler.submit("batch", noop, label="full")
    await asyncio.sleep(6)
    await scheduler.close(timeout=0)

    assert recorder.of(CallRejected) == [
        CallRejected(at=0.0, kind="interactive", label="now", reason="queue_timeout", waited=0.0),
        CallRejected(at=4.0, kind="interactive", label="late", reason="queue_timeout", waited=4.0),
        CallRejected(at=4.0, kind="batch", label="full", reason="queue_full", waited=0.0),
        CallRejected(at=10.0, kind="batch", label="stranded", reason="closed", waited=6.0),
    ]
    assert "CallQueued interactive now" not in recorder.names
    assert "CallQueued batch full" not in recorder.names


async def test_refused_arguments_and_a_closed_scheduler_are_no_events() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    await scheduler.close()
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        ("interactive", noop, {"priority": float("nan")}),
        ("interactive", None, {}),
        ("nothing", noop, {}),
        ("interactive", noop, {}),
    ]
    for kind, function, options in cases:
        await asyncio.gather(scheduler.submit(kind, function, **options), return_exceptions=True)

    assert recorder.events == []


async def test_what_a_stream_reports_is_in_its_end() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def stream() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(0.4)
        slot.first_token()
        await asyncio.sleep(1)
        slot.first_token()
        slot.tokens(5)
        slot.tokens(0)
        slot.tokens(7)

    await scheduler.submit("interactive", stream)

    (finished,) = recorder.of(CallFinished)
    assert (finished.first_token, finished.tokens) == (0.4, 12)


async def test_a_changed_limit_says_from_where_to_where_and_why() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=1.0)
    early = [hold(scheduler, "batch") for _ in range(2)]  # the second one is beyond the minimum: the law is asked
    await settle()
    for held in early:
        held.release()
    recorder = Recorder(scheduler)
    await scheduler.submit("interactive", asyncio.sleep, 2.0)
    for _ in range(6):
        hold(scheduler, "batch")
    await settle()

    (fell,) = recorder.of(LimitChanged)
    assert (fell.at, fell.before, fell.after, fell.reason) == (2.0, 6, 1, "latency")
    assert fell.pressure == pytest.approx(2.0, rel=0.01)

    await asyncio.sleep(10)
    fell, rose = recorder.of(LimitChanged)
    assert (rose.before, rose.after, rose.pressure, rose.reason) == (1, 6, 0.0, "calm")
    assert rose.at == pytest.approx(12.0, abs=0.101)
    position = recorder.events.index(rose)
    assert [type(event) for event in recorder.events[position:]] == [LimitChanged] + [CallStarted] * 5


async def test_a_limit_that_stays_is_no_event_whatever_the_pressure_does() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=100.0)
    recorder = Recorder(scheduler)
    for seconds in (0.5, 1.0, 2.0):
        await scheduler.submit("interactive", asyncio.sleep, seconds)
        await scheduler.submit("batch", noop)

    assert recorder.of(LimitChanged) == []


async def test_events_are_told_in_the_order_of_time_and_each_call_tells_one_story() -> None:
    scheduler = make_scheduler(max_concurrency=4, policy=FixedPolicy(2))
    recorder = Recorder(scheduler)
    calls = [
        hold(scheduler, kind, label=f"{kind} {n}", queue_timeout=3, run_timeout=2)
        for n in range(10)
        for kind in ("interactive", "batch")
    ]
    await asyncio.sleep(1)
    for held in calls[:8]:
        held.release()
    await asyncio.sleep(10)

    times = [event.at for event in recorder.events]
    assert times == sorted(times)
    stories: dict[str, list[str]] = {}
    for event in recorder.events:
        if not isinstance(event, LimitChanged):
            stories.setdefault(str(event.label), []).append(type(event).__name__)
    assert len(stories) == 20
    assert {tuple(story) for story in stories.values()} == {
        ("CallStarted", "CallFinished"),
        ("CallQueued", "CallStarted", "CallFinished"),
        ("CallQueued", "CallRejected"),
    }


def test_events_are_frozen_values_of_a_closed_union() -> None:
    assert set(get_args(Event)) == {CallQueued, CallStarted, CallFinished, CallRejected, LimitChanged}
    event = CallQueued(0.0, "batch", None, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.queued = 2  # type: ignore[misc]
    for kind in get_args(Event):
        assert "__slots__" in vars(kind)


def test_a_listener_must_be_callable() -> None:
    with pytest.raises(SchedulerMisuse, match=r"add_listener\(\) takes a function of one event, got str"):
        make_scheduler().add_listener("print")  # type: ignore[arg-type]
