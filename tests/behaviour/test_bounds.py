"""How many may wait, and what a refusal says: promises 21 and 22 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    QueueFull,
    QueueTimeout,
    Rejected,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficScheduler,
)
from tests.support import Held, account, hold, make_scheduler, noop, now, settle


async def full(max_concurrency: int = 2, **settings: Any) -> tuple[TrafficScheduler, list[Held]]:
    """A scheduler whose slots are all taken by interactive calls, and those calls."""
    scheduler = make_scheduler(max_concurrency=max_concurrency, **settings)
    holders = [hold(scheduler) for _ in range(max_concurrency)]
    await settle()
    return scheduler, holders


@pytest.mark.parametrize("kind, other", [("interactive", "batch"), ("batch", "interactive")])
async def test_each_queue_has_a_bound_of_its_own(kind: Any, other: Any) -> None:
    scheduler, _ = await full(**{f"max_queued_{kind}": 2})
    for _ in range(2):
        hold(scheduler, kind)
    for _ in range(5):
        hold(scheduler, other)
    await settle()

    begin = now()
    with pytest.raises(QueueFull) as refusal:
        await scheduler.submit(kind, noop)

    assert now() == begin
    assert (refusal.value.kind, refusal.value.queued, refusal.value.limit) == (kind, 2, 2)
    assert account(scheduler, kind).rejected == 1
    assert account(scheduler, other).rejected == 0
    scheduler.check()


async def test_a_bound_of_zero_lets_nothing_wait_but_everything_run_that_may() -> None:
    scheduler = make_scheduler(max_queued_interactive=0, max_queued_batch=0)
    held = [hold(scheduler), hold(scheduler, "batch")]
    await settle()
    assert all(one.started for one in held)

    for kind in ("interactive", "batch"):
        late = hold(scheduler, kind)
        await settle()
        assert isinstance(late.task.exception(), QueueFull)


async def test_without_a_bound_any_number_waits() -> None:
    scheduler, _ = await full()
    for _ in range(1_000):
        hold(scheduler, "batch")
    await settle()

    assert scheduler.snapshot().batch_queued == 1_000


async def test_a_place_that_comes_free_can_be_taken_at_once() -> None:
    scheduler, holders = await full(max_queued_interactive=1)
    waiting = hold(scheduler)
    await settle()

    holders[0].release()
    await settle()
    assert waiting.started
    successor = hold(scheduler)
    await settle()

    assert not successor.task.done()
    assert scheduler.snapshot().interactive_queued == 1


async def test_a_lowered_bound_turns_nobody_out_who_waits() -> None:
    scheduler, _ = await full(max_queued_interactive=5)
    waiting = [hold(scheduler) for _ in range(5)]
    await settle()

    scheduler.configure(max_queued_interactive=1)
    late = hold(scheduler)
    await settle()

    assert not any(held.task.done() for held in waiting)
    error = late.task.exception()
    assert isinstance(error, QueueFull)
    assert (error.queued, error.limit) == (5, 1)


async def drain_one_per_second(quiet: float) -> TrafficScheduler:
    """After `quiet` idle seconds, a full queue of ten batch calls, of which one has started each second."""
    scheduler = make_scheduler()
    await asyncio.sleep(quiet)
    for _ in range(31):
        hold(scheduler, "batch", run_timeout=1)
    await asyncio.sleep(20.5)
    scheduler.configure(max_queued_batch=10)
    assert scheduler.snapshot().batch_queued == 10
    return scheduler


@pytest.mark.parametrize("quiet", [0.0, 1.0, 3600.0])
async def test_retry_after_is_how_long_the_queue_takes_at_its_present_pace(quiet: float) -> None:
    scheduler = await drain_one_per_second(quiet)

    with pytest.raises(QueueFull) as refusal:
        await scheduler.submit("batch", noop)

    assert refusal.value.retry_after == pytest.approx(10, rel=0.25)


async def test_retry_after_follows_the_pace_of_the_queue_and_not_of_the_quiet_before_it() -> None:
    # Seven quiet minutes, then a burst: two seconds into it, one call a second starts and five wait.
    scheduler = make_scheduler(max_queued_batch=5)
    await asyncio.sleep(420)
    burst = [asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1)) for _ in range(6)]
    await asyncio.sleep(2.5)
    burst += [asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1)) for _ in range(2)]
    await settle()
    assert scheduler.snapshot().batch_queued == 5

    with pytest.raises(QueueFull) as refusal:
        await scheduler.submit("batch", noop)

    assert refusal.value.retry_after == pytest.approx(5, rel=0.5)


async def test_retry_after_is_none_where_nothing_has_moved() -> None:
    scheduler, _ = await full(max_queued_interactive=1)
    hold(scheduler)
    await settle()

    with pytest.raises(QueueFull) as refusal:
        await scheduler.submit("interactive", noop)

    assert refusal.value.retry_after is None


async def test_a_queue_timeout_estimates_retry_after_too() -> None:
    scheduler = await drain_one_per_second(0.0)
    scheduler.configure(max_queued_batch=None)

    with pytest.raises(QueueTimeout) as refusal:
        await scheduler.submit("batch", noop, queue_timeout=0)

    assert refusal.value.retry_after == pytest.approx(10, rel=0.25)


async def test_every_refused_call_gets_an_exception_of_its_own() -> None:
    scheduler, _ = await full(max_queued_interactive=0)
    late = [hold(scheduler) for _ in range(3)]
    expired = [hold(scheduler, "batch", queue_timeout=1) for _ in range(3)]
    await asyncio.sleep(1)
    stranded = [hold(scheduler, "batch") for _ in range(3)]
    await settle()
    closing = asyncio.create_task(scheduler.close(timeout=0))
    await settle()

    errors = [held.task.exception() for held in (*late, *expired, *stranded)]

    assert [type(error) for error in errors] == [QueueFull] * 3 + [QueueTimeout] * 3 + [SchedulerClosed] * 3
    assert len({id(error) for error in errors}) == 9
    assert all(isinstance(error, Rejected) and error.kind in ("interactive", "batch") for error in errors)
    assert (await closing).rejected == 3


async def test_the_function_of_a_refused_call_is_never_called() -> None:
    scheduler, _ = await full(max_queued_interactive=0)
    calls = 0

    def count() -> Any:
        nonlocal calls
        calls += 1
        return noop()

    with pytest.raises(QueueFull):
        await scheduler.submit("interactive", count)
    with pytest.raises(QueueTimeout):
        await scheduler.submit("batch", count, queue_timeout=0)
    with pytest.raises(QueueTimeout):
        await scheduler.submit("batch", count, queue_timeout=1)
    with pytest.raises(ConfigError):
        await scheduler.submit("batch", count, priority=float("nan"))
    left = asyncio.create_task(scheduler.submit("batch", count))
    await settle()
    left.cancel()
    await scheduler.close(timeout=0)
    with pytest.raises(SchedulerClosed):
        await scheduler.submit("interactive", count)

    assert calls == 0


@pytest.mark.parametrize("state", ["open", "full", "closed"])
async def test_a_coroutine_object_is_refused_and_nothing_warns_that_it_was_never_awaited(state: str) -> None:
    # Warnings are errors here, those of the garbage collector too.
    scheduler, _ = await full(max_queued_interactive=0) if state == "full" else (make_scheduler(), [])
    if state == "closed":
        await scheduler.close()

    with pytest.raises(
        SchedulerMisuse, match=r'write submit\("batch", noop, \.\.\.\), not submit\("batch", noop\(\.\.\.\)\)'
    ):
        await scheduler.submit("interactive", noop())  # type: ignore[arg-type]

    gc.collect()
    assert account(scheduler, "interactive").submitted == (2 if state == "full" else 0)


async def test_a_call_refused_while_another_coroutine_waits_for_it_leaves_no_unawaited_coroutine() -> None:
    scheduler, _ = await full(max_queued_interactive=0)

    async def handler() -> str:
        try:
            return await scheduler.submit("interactive", asyncio.sleep, 0, "answer")
        except Rejected as refusal:
            return f"503 {refusal.kind}"

    assert await handler() == "503 interactive"
    gc.collect()
