"""Threads take slots for blocks of synchronous code: `slot_from_thread`. Promise 26.

What is refused at the door, and where no loop runs: test_from_threads.py.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Final

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    Decision,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    current_slot,
)
from llm_traffic_scheduler.loop_future import LoopFuture
from tests.behaviour.doors import assert_whole
from tests.behaviour.threads import PATIENCE, Block, background_loop, bound_scheduler, until
from tests.support import Law, Recorder, account, hold, settle

on_each_loop: Final = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])
# A thread that is started by hand is invisible to virtual time.
on_real_loops: Final = pytest.mark.asyncio(loop_factories=["real", "uvloop"])


@on_each_loop
@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_a_block_has_its_slot_from_the_first_line_to_the_last(kind: Any) -> None:
    scheduler = await bound_scheduler()
    seen: list[Any] = []

    def work() -> None:
        with scheduler.slot_from_thread(kind, label="sync") as nothing:
            seen.append((nothing, scheduler.snapshot().running, scheduler.calls()[0].label))
        seen.append(scheduler.snapshot().running)

    await asyncio.to_thread(work)

    assert seen == [(None, 1, "sync"), 0]
    assert account(scheduler, kind).completed == 1
    assert scheduler.snapshot().interactive.sample_count == (kind == "interactive")
    await assert_whole(scheduler)


@on_each_loop
async def test_blocks_wait_for_each_other_and_never_exceed_the_limit() -> None:
    scheduler = await bound_scheduler(max_concurrency=4, batch_max_concurrency=2)
    running, most = 0, 0

    def work() -> None:
        nonlocal running, most
        for _ in range(20):
            with scheduler.slot_from_thread("batch"):
                running += 1
                most = max(most, running)
                running -= 1

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(6)))

    assert 1 <= most <= 2
    assert account(scheduler, "batch").completed == 120
    await assert_whole(scheduler)


@on_each_loop
async def test_current_slot_is_the_handle_inside_the_block_and_nothing_outside() -> None:
    scheduler = await bound_scheduler()
    recorder = Recorder(scheduler)

    def work() -> tuple[Any, ...]:
        before = current_slot()
        with scheduler.slot_from_thread("batch", label="sync"):
            slot = current_slot()
            assert slot is not None
            slot.first_token()
            slot.tokens(7)
            inside = (slot.kind, slot.label, slot is current_slot())
        return before, inside, current_slot()

    assert await asyncio.to_thread(work) == (None, ("batch", "sync", True), None)
    assert recorder.names[-1] == "CallFinished batch sync"
    assert recorder.events[-1].tokens == 7  # type: ignore[union-attr]


@on_each_loop
async def test_a_block_inside_another_has_a_handle_of_its_own() -> None:
    scheduler = await bound_scheduler()

    def work() -> None:
        with scheduler.slot_from_thread("batch", label="outer"):
            outer = current_slot()
            with scheduler.slot_from_thread("interactive", label="inner"):
                assert current_slot() is not outer
            assert current_slot() is outer

    await asyncio.to_thread(work)
    await assert_whole(scheduler)


@on_real_loops
@pytest.mark.parametrize("error", [ValueError("own"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
async def test_an_exception_in_the_block_comes_out_as_it_is_and_counts_as_failed(error: BaseException) -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler)

    block.leave(error)

    assert await block.ended() is error
    assert account(scheduler, "batch").failed == 1
    await assert_whole(scheduler)


@on_real_loops
async def test_a_cancelled_error_in_the_block_counts_as_cancelled() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler)

    block.leave(CancelledError())
    await block.ended()

    assert account(scheduler, "batch").cancelled == 1


@on_real_loops
async def test_refusals_are_raised_on_entering_and_the_block_never_runs() -> None:
    scheduler = await bound_scheduler(max_queued_interactive=0)
    held = [hold(scheduler, "batch"), hold(scheduler)]
    await settle()

    late, full = Block(scheduler, queue_timeout=0.01), Block(scheduler, "interactive")
    assert isinstance(await late.ended(), QueueTimeout)
    assert isinstance(await full.ended(), QueueFull)
    waiting = Block(scheduler)
    await until(lambda: scheduler.snapshot().batch_queued)
    closing = asyncio.ensure_future(scheduler.close())
    assert isinstance(await waiting.ended(), SchedulerClosed)
    for call in held:
        call.release()
    await closing
    after = Block(scheduler)
    assert isinstance(await after.ended(), SchedulerClosed)

    assert not any(block.inside.is_set() for block in (late, full, waiting, after))


@on_each_loop
async def test_entering_on_the_loops_own_thread_is_misuse_and_takes_nothing() -> None:
    scheduler = await bound_scheduler()

    with (
        pytest.raises(SchedulerMisuse, match=r"write `async with scheduler\.slot"),
        scheduler.slot_from_thread("batch"),
    ):
        pass

    await settle()
    assert account(scheduler, "batch").submitted == 0


@on_each_loop
async def test_a_block_is_entered_once_and_left_once() -> None:
    scheduler = await bound_scheduler()

    def work() -> None:
        block = scheduler.slot_from_thread("batch")
        with pytest.raises(SchedulerMisuse, match="left once, after it was entered"):
            block.__exit__(None, None, None)
        with block, pytest.raises(SchedulerMisuse, match="entered once"):
            block.__enter__()
        with pytest.raises(SchedulerMisuse, match="left once"):
            block.__exit__(None, None, None)

    await asyncio.to_thread(work)
    assert account(scheduler, "batch").completed == 1


def test_a_keyboard_interrupt_while_it_waits_takes_the_call_out_of_the_queue() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        scheduler_main = threading.get_ident()

        async def interrupt() -> None:
            scheduler.pause("batch")
            await until(lambda: scheduler.snapshot().batch_queued)
            signal.pthread_kill(scheduler_main, signal.SIGINT)

        interrupting = asyncio.run_coroutine_threadsafe(interrupt(), background.loop)
        with pytest.raises(KeyboardInterrupt), scheduler.slot_from_thread("batch"):
            pytest.fail("the block ran")

        interrupting.result(PATIENCE)
        background.run(settle())
        assert scheduler.calls() == ()
        assert account(scheduler, "batch").cancelled == 1
        background.run(assert_whole(scheduler))


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "on its way"])
def test_an_interrupt_that_meets_the_grant_gives_the_slot_back(heard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread leaves when the slot is its own already, or is about to be."""
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())

        def interrupted(future: LoopFuture[Any], _: float | None = None) -> None:
            monkeypatch.undo()
            if heard:
                future.exception(PATIENCE)
            raise KeyboardInterrupt

        monkeypatch.setattr(LoopFuture, "result", interrupted)
        with pytest.raises(KeyboardInterrupt), scheduler.slot_from_thread("batch"):
            pytest.fail("the block ran")

        background.run(assert_whole(scheduler))


@on_real_loops
async def test_past_its_run_timeout_a_block_keeps_its_slot_shows_as_overdue_and_then_raises_run_timeout() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler, run_timeout=0.01, label="slow")
    await until(lambda: scheduler.snapshot().overdue)

    assert scheduler.calls()[0].state == "overdue"
    assert scheduler.snapshot().running == 1
    block.leave()

    error = await block.ended()
    assert isinstance(error, RunTimeout)
    assert str(error).startswith("batch call 'slow' of scheduler 'default' ran longer than 0.01 s")
    assert account(scheduler, "batch").timed_out == 1
    await assert_whole(scheduler)


@on_real_loops
async def test_a_block_that_is_left_too_late_raises_run_timeout_although_the_loop_was_too_busy_to_notice() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler, run_timeout=0.05)
    await asyncio.to_thread(block.inside.wait, PATIENCE)

    block.leave()
    threading.Event().wait(0.1)  # the loop stands still, and finds the block's end before its own timer

    assert isinstance(await block.ended(), RunTimeout)
    assert account(scheduler, "batch").timed_out == 1


@on_real_loops
async def test_an_exception_of_the_blocks_own_stands_over_its_run_timeout() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler, run_timeout=0.01)
    await until(lambda: scheduler.snapshot().overdue)

    block.leave(own := ValueError())

    assert await block.ended() is own
    assert account(scheduler, "batch").failed == 1
    await assert_whole(scheduler)


@on_real_loops
async def test_close_waits_for_a_block_then_reports_it_and_leaving_it_raises_call_aborted() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler)
    await asyncio.to_thread(block.inside.wait, PATIENCE)

    report = await scheduler.close(timeout=0)
    assert (report.cancelled, report.abandoned) == (0, 1)
    assert scheduler.snapshot().running == 1
    block.leave()

    assert isinstance(await block.ended(), CallAborted)
    assert account(scheduler, "batch").cancelled == 1
    assert scheduler.snapshot().running == 0


@on_real_loops
async def test_close_lets_a_block_end() -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler)
    await asyncio.to_thread(block.inside.wait, PATIENCE)

    closing = asyncio.ensure_future(scheduler.close())
    await settle()
    block.leave()

    assert await block.ended() is None
    assert (await closing).finished == 1


@on_real_loops
@pytest.mark.parametrize("leave", [lambda block: block.leave(), lambda block: block.leave(ValueError())])
async def test_a_slot_left_by_a_thread_goes_to_the_next_in_the_queue(leave: Callable[[Block], None]) -> None:
    scheduler = await bound_scheduler()
    block = Block(scheduler)
    await asyncio.to_thread(block.inside.wait, PATIENCE)
    next_one = hold(scheduler, "batch")
    await settle()
    assert not next_one.started

    leave(block)
    await until(lambda: next_one.started)

    next_one.release()
    await next_one.task
    await block.ended()
    await assert_whole(scheduler)


@on_each_loop
async def test_should_yield_in_a_block_reads_the_limit_and_leaves_deciding_to_the_loop() -> None:
    """Read, the policy is asked what it would decide; it is advanced, and its answer kept, on the loop alone."""
    advanced: set[int] = set()
    limit = 2
    scheduler = await bound_scheduler(
        max_concurrency=4,
        batch_max_concurrency=3,
        policy=Law(
            lambda at, signals: Decision(limit, valid_until=at), lambda at, signals: advanced.add(threading.get_ident())
        ),
    )
    other = hold(scheduler, "batch")
    await settle()

    def work() -> list[bool]:
        nonlocal limit
        with scheduler.slot_from_thread("batch"):
            slot = current_slot()
            assert slot is not None
            seen = [slot.should_yield]
            limit = 1
            scheduler._home.governor.slice_end = -math.inf  # the window is in another slice by now
            return [*seen, slot.should_yield]

    assert await asyncio.to_thread(work) == [False, True]
    assert advanced <= {threading.get_ident()}
    assert scheduler._home.governor.kept == 2
    other.release()
    await other.task
