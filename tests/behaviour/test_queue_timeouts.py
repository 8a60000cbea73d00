"""Timeouts of the wait and of the run: promise 13 of SEMANTICS.md, and what 11 and 22 say about them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, QueueTimeout, RunTimeout, TrafficScheduler
from tests.support import Held, account, armed_timers, hold, make_scheduler, noop, now, settle


async def full(**settings: Any) -> tuple[TrafficScheduler, Held, Held]:
    """Both slots taken by interactive calls."""
    scheduler = make_scheduler(**settings)
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    return scheduler, first, second


async def test_a_call_that_gets_no_slot_in_time_is_refused_at_its_deadline() -> None:
    scheduler, *_ = await full()
    begin = now()

    with pytest.raises(QueueTimeout) as refusal:
        await scheduler.submit("batch", noop, queue_timeout=2.5, label="nightly")

    assert now() - begin == refusal.value.waited == 2.5
    assert refusal.value.kind == "batch"
    assert isinstance(refusal.value, TimeoutError)
    assert account(scheduler, "batch").rejected == 1
    assert account(scheduler, "batch").timed_out == 0
    scheduler.check()


async def test_a_call_that_gets_its_slot_in_time_may_run_as_long_as_it_likes() -> None:
    scheduler, first, _ = await full()
    waiting = hold(scheduler, queue_timeout=5)
    await asyncio.sleep(4.9)
    first.release()
    await settle()
    assert waiting.started

    await asyncio.sleep(1000)
    waiting.release()

    assert await waiting.task == "interactive"


@pytest.mark.parametrize("deadline_first", [True, False])
async def test_a_slot_that_comes_free_at_the_deadline_comes_too_late(deadline_first: bool) -> None:
    scheduler, first, _ = await full()
    loop = asyncio.get_running_loop()
    if not deadline_first:  # timers of one instant run in the order in which they were set
        loop.call_later(5, first.release)
    waiting = hold(scheduler, queue_timeout=5)
    behind = hold(scheduler)
    await settle()
    if deadline_first:
        loop.call_later(5, first.release)

    await asyncio.sleep(5)
    await settle()

    assert not waiting.started
    assert isinstance(waiting.task.exception(), QueueTimeout)
    assert behind.started
    scheduler.check()


async def test_a_deadline_that_a_blocked_loop_slept_through_still_counts() -> None:
    class Clock:
        """What the loop's clock would say after blocking code."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.time, self.skipped = loop.time, 0.0

        def __call__(self) -> float:
            return self.time() + self.skipped

    loop = asyncio.get_running_loop()
    clock = Clock(loop)
    loop.time = clock  # type: ignore[method-assign]
    scheduler, first, _ = await full()
    waiting = hold(scheduler, queue_timeout=5)
    await settle()

    clock.skipped = 7.0  # the release comes before the timer had a chance to run
    first.release()
    await settle()

    assert not waiting.started
    error = waiting.task.exception()
    assert isinstance(error, QueueTimeout)
    assert error.waited == 7.0


@pytest.mark.parametrize("queue_timeout", [0, -1, -0.0, -math.inf, -(2**70)])
@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_zero_or_less_means_now_or_not_at_all(kind: Any, queue_timeout: float) -> None:
    scheduler = make_scheduler()
    assert await scheduler.submit(kind, asyncio.sleep, 0, "done", queue_timeout=queue_timeout) == "done"

    hold(scheduler), hold(scheduler)
    await settle()
    with pytest.raises(QueueTimeout) as refusal:
        await scheduler.submit(kind, noop, queue_timeout=queue_timeout)

    assert refusal.value.waited == 0.0
    assert scheduler.snapshot().interactive_queued == scheduler.snapshot().batch_queued == 0
    assert armed_timers() == []


@pytest.mark.parametrize("queue_timeout", [None, math.inf, 2**70])
async def test_no_timeout_and_an_infinite_one_wait_for_ever(queue_timeout: float | None) -> None:
    scheduler, first, _ = await full()
    waiting = hold(scheduler, queue_timeout=queue_timeout)

    await asyncio.sleep(1e9)
    assert not waiting.task.done()

    first.release()
    await settle()
    assert waiting.started


async def test_deadlines_strike_in_their_own_order_not_in_the_order_of_the_queue() -> None:
    scheduler, *_ = await full()
    gone: list[str] = []
    for name, timeout, priority in [("a", 3, -5), ("b", 1, 0), ("c", 2, 5), ("d", 1, -1)]:
        held = hold(scheduler, "batch", name=name, queue_timeout=timeout, priority=priority)
        held.task.add_done_callback(lambda task: gone.append(task.get_name()))

    await asyncio.sleep(2.5)
    assert gone == ["b", "d", "c"]
    await asyncio.sleep(1)
    assert gone == ["b", "d", "c", "a"]


async def test_a_timed_out_call_gives_its_place_to_those_behind_it() -> None:
    scheduler, first, _ = await full(max_queued_interactive=1)
    hold(scheduler, queue_timeout=1)
    await asyncio.sleep(1)
    successor = hold(scheduler)
    await settle()
    first.release()
    await settle()

    assert successor.started


async def test_the_kinds_have_defaults_of_their_own_which_a_call_may_override() -> None:
    scheduler, *_ = await full(interactive_queue_timeout=1, batch_queue_timeout=2)
    ends: dict[str, float] = {}

    async def until_refused(name: str, kind: Any, **options: Any) -> None:
        with contextlib.suppress(QueueTimeout):
            await scheduler.submit(kind, noop, **options)
        ends[name] = now()

    begin = now()
    await asyncio.gather(
        until_refused("interactive", "interactive"),
        until_refused("batch", "batch"),
        until_refused("patient", "interactive", queue_timeout=7),
        until_refused("hasty", "batch", queue_timeout=0),
    )

    assert {name: end - begin for name, end in ends.items()} == {
        "interactive": 1,
        "batch": 2,
        "patient": 7,
        "hasty": 0,
    }


async def test_slot_waits_no_longer_than_its_queue_timeout() -> None:
    scheduler, *_ = await full()

    with pytest.raises(QueueTimeout):
        async with scheduler.slot("interactive", queue_timeout=3):
            raise AssertionError("unreachable")

    assert now() == 3


async def test_the_run_timeout_ends_the_run_and_the_queue_does_not_count_in_it() -> None:
    scheduler, first, _ = await full()
    waiting = hold(scheduler, "interactive", run_timeout=2, label="slow")
    await asyncio.sleep(50)
    first.release()
    await asyncio.sleep(1.9)
    assert not waiting.task.done()

    await asyncio.sleep(0.1)
    await settle()

    error = waiting.task.exception()
    assert isinstance(error, RunTimeout)
    assert isinstance(error, TimeoutError)
    assert account(scheduler, "interactive").timed_out == 1


async def test_a_timeout_of_the_calls_own_passes_as_it_is() -> None:
    scheduler = make_scheduler(interactive_run_timeout=10)
    own = TimeoutError("the client's read timeout")

    async def fail() -> None:
        raise own

    with pytest.raises(TimeoutError) as caught:
        await scheduler.submit("interactive", fail)

    assert caught.value is own
    assert account(scheduler, "interactive").failed == 1


async def test_the_slot_stays_taken_until_the_timed_out_call_has_really_ended() -> None:
    scheduler = make_scheduler()

    async def cleans_up_slowly() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)

    stubborn = asyncio.create_task(scheduler.submit("interactive", cleans_up_slowly, run_timeout=1, label="stubborn"))
    hold(scheduler)
    await settle()
    waiting = hold(scheduler)

    await asyncio.sleep(1)
    assert scheduler.snapshot().overdue == 0  # it has this instant to end
    await asyncio.sleep(3)
    assert not waiting.started
    assert scheduler.snapshot().overdue == 1
    assert [call.state for call in scheduler.calls()] == ["overdue", "running", "queued"]
    assert "1 past its run timeout runs on" in scheduler.explain()

    await asyncio.sleep(2.1)
    assert waiting.started
    assert isinstance(stubborn.exception(), RunTimeout)
    assert scheduler.snapshot().overdue == 0


async def test_the_run_timeout_bounds_a_block_as_it_bounds_a_call() -> None:
    scheduler = make_scheduler()
    hold(scheduler)

    with pytest.raises(RunTimeout, match="ran longer than 2 s"):
        async with scheduler.slot("interactive", run_timeout=2):
            await asyncio.sleep(100)

    assert now() == 2
    assert scheduler.snapshot().running == 1


async def test_the_kinds_have_run_timeouts_of_their_own_which_a_call_may_override() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_run_timeout=1, batch_run_timeout=2)
    calls = [
        hold(scheduler),
        hold(scheduler, "batch"),
        hold(scheduler, run_timeout=3),
        hold(scheduler, "batch", run_timeout=math.inf),
    ]
    ended = []
    for _ in range(4):
        await asyncio.sleep(1)
        await settle()
        ended.append([held.task.done() for held in calls])

    assert ended == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, False],
    ]


@pytest.mark.parametrize(
    "name, value",
    [
        *[("queue_timeout", value) for value in [math.nan, True, False, "3", [], 1j]],
        *[("run_timeout", value) for value in [0, 0.0, -1, -math.inf, math.nan, True, False, "3", [], 1j]],
    ],
)
async def test_an_impossible_timeout_is_refused_and_nothing_is_queued(name: str, value: Any) -> None:
    scheduler = make_scheduler(interactive_rps_threshold=1)

    with pytest.raises(ConfigError, match=f"^{name} must be .*, got "):
        await scheduler.submit("interactive", noop, **{name: value})
    with pytest.raises(ConfigError, match=f"^{name} must be .*, got "):
        async with scheduler.slot("interactive", **{name: value}):
            raise AssertionError("unreachable")

    assert account(scheduler, "interactive").submitted == 0
    assert scheduler.snapshot().interactive.rps == 0
