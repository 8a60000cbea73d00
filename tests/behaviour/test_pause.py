"""Stopping a kind for a while: promise 9 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import CallStarted, ConfigError, QueueTimeout, SchedulerMisuse, TrafficKind
from tests.support import Recorder, hold, make_scheduler, settle


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_nothing_of_a_paused_kind_starts_until_it_is_resumed(kind: Any) -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_starvation_timeout=1)
    running = hold(scheduler, kind)
    await settle()
    scheduler.pause(kind)
    waiting = [hold(scheduler, kind) for _ in range(3)]
    await asyncio.sleep(100)
    running.release()  # what runs goes on, and its slot is not handed on within the kind
    await settle()
    assert running.task.result() == kind
    assert not any(held.started for held in waiting)
    assert scheduler.snapshot().running == 0

    scheduler.resume(kind)
    await settle()

    assert all(held.started for held in waiting)
    scheduler.check()


@pytest.mark.parametrize("kind, other", [("interactive", "batch"), ("batch", "interactive")])
async def test_the_other_kind_goes_on(kind: Any, other: Any) -> None:
    scheduler = make_scheduler(max_concurrency=2)
    scheduler.pause(kind)
    hold(scheduler, kind)
    first = hold(scheduler, other)
    hold(scheduler, other)
    await settle()
    assert first.started

    first.release()
    last = hold(scheduler, other)
    await settle()

    assert last.started or other == "batch"
    assert scheduler.snapshot().running == (1 if other == "batch" else 2)


async def test_what_may_run_has_started_when_resume_returns() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    scheduler.pause("batch")
    for _ in range(5):
        hold(scheduler, "batch")
    await settle()
    recorder = Recorder(scheduler)

    scheduler.resume("batch")

    assert scheduler.snapshot().batch_running == len(recorder.of(CallStarted)) == 3


async def test_pausing_twice_takes_one_resume_and_resuming_what_runs_does_nothing() -> None:
    scheduler = make_scheduler()
    scheduler.resume("batch")
    scheduler.pause("batch")
    scheduler.pause(TrafficKind.BATCH)
    assert scheduler.snapshot().paused == {"batch"}

    scheduler.resume("batch")

    assert scheduler.snapshot().paused == frozenset()
    held = hold(scheduler, "batch")
    await settle()
    assert held.started


async def test_both_kinds_may_be_paused() -> None:
    scheduler = make_scheduler()
    scheduler.pause("batch")
    scheduler.pause("interactive")
    held = [hold(scheduler, kind) for kind in ("interactive", "batch")]
    await settle()
    assert not any(one.started for one in held)
    assert scheduler.snapshot().paused == {"interactive", "batch"}

    scheduler.resume("interactive")
    await settle()

    assert [one.started for one in held] == [True, False]


async def test_a_pause_does_not_stop_the_clock_of_a_queue_timeout() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    waiting, fleeting = hold(scheduler, queue_timeout=5), hold(scheduler, queue_timeout=0)
    await asyncio.sleep(5)
    await settle()

    assert isinstance(waiting.task.exception(), QueueTimeout)
    assert isinstance(fleeting.task.exception(), QueueTimeout)


async def test_changed_limits_do_not_lift_a_pause() -> None:
    scheduler = make_scheduler(max_concurrency=8)
    scheduler.pause("batch")
    scheduler.pause("interactive")
    held = [hold(scheduler, kind) for kind in ("interactive", "batch")]
    await settle()

    scheduler.configure(max_concurrency=16, batch_max_concurrency=12, batch_min_concurrency=5)
    await settle()

    assert not any(one.started for one in held)
    assert scheduler.snapshot().batch_limit == 12  # of the policy; the pause shows beside it


async def test_explain_says_what_is_paused_and_how_it_goes_on() -> None:
    scheduler = make_scheduler()
    scheduler.pause("batch")

    assert "batch is paused: nothing of it starts until resume('batch')" in scheduler.explain()
    scheduler.resume("batch")
    assert "paused" not in scheduler.explain()


async def test_only_a_kind_can_be_paused() -> None:
    scheduler = make_scheduler()
    for act in (scheduler.pause, scheduler.resume):
        with pytest.raises(ConfigError, match='kind must be "interactive" or "batch", got \'everything\''):
            act("everything")  # type: ignore[arg-type]
        with pytest.raises(SchedulerMisuse, match="no kind is in force"):
            act(None)  # type: ignore[arg-type]
    assert scheduler.snapshot().paused == frozenset()


async def test_drain_waits_for_paused_work_and_close_does_not_start_it() -> None:
    scheduler = make_scheduler()
    scheduler.pause("batch")
    waiting = hold(scheduler, "batch")
    await settle()
    drained = asyncio.create_task(scheduler.drain())
    await asyncio.sleep(100)
    assert not drained.done()

    scheduler.resume("batch")
    waiting.release()
    await drained

    assert waiting.task.result() == "batch"
