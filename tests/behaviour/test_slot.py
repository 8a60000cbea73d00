"""What a call's code can ask and tell its slot, and when there is one.

`slot()`, `Slot` and `current_slot()` of API.md; promises 12 and 17 where a slot's end is concerned.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import Any

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    CallRejected,
    ConfigError,
    QueueTimeout,
    SchedulerMisuse,
    Slot,
    TrafficKind,
    TrafficScheduler,
    current_slot,
)
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import Recorder, account, hold, make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


async def here() -> Slot:
    """The slot that this code runs in."""
    slot = current_slot()
    assert slot is not None
    return slot


@each_door
@each_kind
async def test_a_slot_tells_the_calls_kind_label_and_time_in_the_queue(run: Door, kind: str) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    task = start(run(scheduler, kind, here, label="summary"))
    await asyncio.sleep(3)
    for held in blockers:
        held.release()

    slot = await task
    assert (slot.kind, slot.label, slot.waited) == (kind, "summary", 3.0)


@each_door
async def test_a_slot_that_was_free_was_not_waited_for_and_needs_no_label(run: Door) -> None:
    slot = await run(make_scheduler(), "batch", here)

    assert (slot.kind, slot.label, slot.waited) == ("batch", None, 0.0)


@each_door
@pytest.mark.parametrize("kind", list(TrafficKind))
async def test_a_traffic_kind_does_as_well_as_its_name(run: Door, kind: TrafficKind) -> None:
    scheduler = make_scheduler()

    slot = await run(scheduler, kind, here)

    assert slot.kind == kind.value
    assert account(scheduler, kind.value).completed == 1


async def test_the_block_gets_the_slot_that_current_slot_finds() -> None:
    async with make_scheduler().slot("batch") as slot:
        assert current_slot() is slot
        assert current_slot() is slot


async def test_there_is_no_current_slot_outside_of_a_call() -> None:
    scheduler = make_scheduler()

    assert current_slot() is None
    async with scheduler.slot("batch"):
        pass
    assert current_slot() is None
    await scheduler.submit("interactive", here)
    assert current_slot() is None


@each_door
async def test_child_tasks_and_threads_see_the_slot_of_the_call_that_started_them(run: Door) -> None:
    async def job() -> tuple[Slot | None, Slot | None, Slot | None]:
        return current_slot(), await asyncio.create_task(here()), await asyncio.to_thread(current_slot)

    mine, childs, threads = await run(make_scheduler(), "batch", job)

    assert mine is not None
    assert childs is mine
    assert threads is mine


@each_door
async def test_a_child_task_that_outlives_its_call_has_no_slot_any_more(run: Door) -> None:
    seen: list[Slot | None] = []
    children: list[asyncio.Task[None]] = []
    gate = asyncio.Event()

    async def child() -> None:
        await gate.wait()
        seen.append(current_slot())

    async def job() -> None:
        children.append(asyncio.create_task(child()))

    await run(make_scheduler(), "batch", job)
    gate.set()
    await children[0]

    assert seen == [None]


@each_door
async def test_inside_the_slot_of_another_scheduler_the_inner_one_is_current_and_then_the_outer_again(
    run: Door,
) -> None:
    outer, inner = make_scheduler(name="outer"), make_scheduler(name="inner")

    async def job() -> list[Slot | None]:
        return [current_slot(), await run(inner, "batch", here), current_slot()]

    before, within, after = await run(outer, "interactive", job)

    assert before is not None
    assert before is after
    assert within is not before
    assert (before.kind, within.kind) == ("interactive", "batch")


@each_door
async def test_first_token_and_tokens_show_in_the_calls_end(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def streams() -> None:
        slot = await here()
        await asyncio.sleep(0.5)
        slot.first_token()
        slot.tokens(3)
        await asyncio.sleep(1)
        slot.first_token()  # only the first counts
        slot.tokens(0)
        slot.tokens(4)

    await run(scheduler, "interactive", streams)

    (end,) = recorder.of(CallFinished)
    assert (end.first_token, end.tokens, end.ran) == (0.5, 7, 1.5)


@each_door
async def test_the_first_token_is_timed_from_submit_and_not_from_the_slot(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    async def streams() -> None:
        await asyncio.sleep(0.5)
        (await here()).first_token()

    task = start(run(scheduler, "interactive", streams))
    await asyncio.sleep(3)
    recorder = Recorder(scheduler)
    blockers[0].release()
    await task

    assert recorder.of(CallFinished)[-1].first_token == 3.5
    blockers[1].release()


@each_door
async def test_a_call_that_reports_nothing_has_no_first_token(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    await run(scheduler, "interactive", here)

    (end,) = recorder.of(CallFinished)
    assert (end.first_token, end.tokens) == (None, 0)


@each_door
@pytest.mark.parametrize("n", [-1, 1.5, True, "3", None, float("nan")], ids=repr)
async def test_an_impossible_number_of_tokens_is_refused_and_counts_nothing(run: Door, n: Any) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def job() -> None:
        slot = await here()
        with pytest.raises(ConfigError, match="n must be"):
            slot.tokens(n)

    await run(scheduler, "batch", job)

    assert recorder.of(CallFinished)[0].tokens == 0


@each_door
async def test_the_time_that_a_reader_takes_is_in_no_latency_no_wait_and_no_time_to_first_token(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def read() -> None:
        slot = await here()
        await asyncio.sleep(3)
        slot.reader_away(2)
        slot.first_token()
        await asyncio.sleep(10)
        slot.reader_away(9.5)

    await run(scheduler, "interactive", read)

    [end] = recorder.of(CallFinished)
    assert (end.waited, end.ran, end.first_token) == (0.0, 13.0, 1.0)
    assert scheduler.snapshot().interactive.p95 == pytest.approx(1.5, rel=0.01)


@each_door
async def test_nobody_thinks_for_longer_than_the_call_is_old(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    async def read() -> None:
        slot = await here()
        await asyncio.sleep(1)
        slot.first_token()
        slot.reader_away(60)

    await run(scheduler, "interactive", read)

    [end] = recorder.of(CallFinished)
    assert (end.waited, end.first_token) == (0.0, 0.0)
    assert scheduler.snapshot().interactive.p95 == 0.0


@each_door
async def test_batch_starts_as_soon_as_it_is_known_that_the_reader_took_the_time_and_not_the_backend(run: Door) -> None:
    scheduler = make_scheduler(max_concurrency=4, batch_max_concurrency=3, interactive_p95_threshold=2.0)
    thinks = asyncio.Event()

    async def read() -> None:
        slot = await here()
        await thinks.wait()
        slot.reader_away(9.5)
        await asyncio.sleep(1)

    reader = start(run(scheduler, "interactive", read))
    await asyncio.sleep(10)
    held = [hold(scheduler, "batch") for _ in range(2)]
    await settle()
    assert [each.started for each in held] == [True, False]

    thinks.set()
    await settle()

    assert [each.started for each in held] == [True, True]
    await reader
    for each in held:
        each.release()
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), None, "1", True])
async def test_an_impossible_time_to_think_is_refused_and_counts_nothing(run: Door, seconds: Any) -> None:
    scheduler = make_scheduler()

    async def read() -> None:
        await asyncio.sleep(1)
        with pytest.raises(ConfigError, match="seconds"):
            (await here()).reader_away(seconds)

    await run(scheduler, "interactive", read)

    assert scheduler.snapshot().interactive.p95 == pytest.approx(1, rel=0.01)


@each_door
async def test_a_slot_kept_after_the_calls_end_does_nothing(run: Door) -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)
    slot = await run(scheduler, "interactive", here, label="kept")

    slot.first_token()
    slot.tokens(5)
    slot.reader_away(5)

    assert (slot.kind, slot.label, slot.waited) == ("interactive", "kept", 0.0)
    assert [(end.first_token, end.tokens) for end in recorder.of(CallFinished)] == [(None, 0)]
    assert "kept" in repr(slot)


async def test_a_block_may_be_left_by_return_and_break_and_gives_its_slot_back() -> None:
    scheduler = make_scheduler()

    async def by_return() -> str:
        async with scheduler.slot("batch"):
            return "returned"

    assert await by_return() == "returned"
    for _ in range(3):
        async with scheduler.slot("batch"):
            break

    assert account(scheduler, "batch").completed == 2
    await assert_whole(scheduler)


async def test_a_block_does_not_swallow_what_is_raised_in_it() -> None:
    scheduler = make_scheduler()

    with pytest.raises(KeyError):
        async with scheduler.slot("batch"):
            raise KeyError("text")

    assert account(scheduler, "batch").failed == 1


async def test_a_slot_works_in_an_exit_stack() -> None:
    scheduler = make_scheduler()

    async with AsyncExitStack() as stack:
        slot = await stack.enter_async_context(scheduler.slot("interactive"))
        assert scheduler.snapshot().running == 1
        assert current_slot() is slot

    await assert_whole(scheduler)


async def test_a_slot_object_that_is_never_entered_takes_nothing_and_warns_of_nothing() -> None:
    scheduler = make_scheduler()

    scheduler.slot("batch")
    gc.collect()

    assert account(scheduler, "batch").submitted == 0
    await assert_whole(scheduler)


async def test_a_slot_object_is_entered_once() -> None:
    scheduler = make_scheduler()
    block = scheduler.slot("batch")
    async with block:
        with pytest.raises(SchedulerMisuse, match="entered once"):
            await block.__aenter__()

    with pytest.raises(SchedulerMisuse, match="each time"):
        async with block:
            pass

    assert account(scheduler, "batch").submitted == 1
    await assert_whole(scheduler)


async def test_an_option_that_does_not_exist_is_refused_where_it_is_written() -> None:
    scheduler = make_scheduler()

    with pytest.raises(TypeError, match="queue_timeou'"):
        scheduler.slot("batch", queue_timeou=3)  # type: ignore[call-arg]


@each_door
async def test_all_options_work_through_both_doors(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    late = start(run(scheduler, "interactive", note, 1, priority=5))
    early = start(run(scheduler, "interactive", note, 2, priority=-1.5))
    recorder = Recorder(scheduler)
    with pytest.raises(QueueTimeout) as caught:
        await run(scheduler, "interactive", note, 3, queue_timeout=2, label="third")
    for held in blockers:
        held.release()
    await asyncio.gather(late, early)

    assert order == [2, 1]
    assert (caught.value.kind, caught.value.waited) == ("interactive", 2.0)
    assert [(event.label, event.reason) for event in recorder.of(CallRejected)] == [("third", "queue_timeout")]
    await assert_whole(scheduler)


@each_door
async def test_an_unobserved_call_stays_out_of_the_window_of_interactive_traffic(run: Door) -> None:
    scheduler: TrafficScheduler = make_scheduler()

    await run(scheduler, "interactive", asyncio.sleep, 1, observe=False)
    assert scheduler.snapshot().interactive.sample_count == 0
    assert scheduler.snapshot().interactive.rps == 0

    await run(scheduler, "interactive", asyncio.sleep, 1)
    assert scheduler.snapshot().interactive.sample_count == 1
