"""Threads take slots for blocks of synchronous code: `slot_from_thread`. Promise 26.

What is refused at the door, and where no loop runs: test_from_threads.py.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Final

import pytest

from llm_traffic_scheduler import (
    CallAborted,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficScheduler,
    current_slot,
)
from llm_traffic_scheduler.threads import LoopFuture
from tests.behaviour.doors import assert_whole
from tests.behaviour.threads import PATIENCE, background_loop, in_thread, until
from tests.support import Recorder, account, hold, make_scheduler, settle

# A thread that is started by hand is invisible to virtual time.
on_real_loops: Final = pytest.mark.asyncio(loop_factories=["real", "uvloop"])


async def bound_scheduler(**settings: Any) -> TrafficScheduler:
    """A scheduler that knows the running loop."""
    scheduler = make_scheduler(**settings)
    await scheduler.drain()
    return scheduler


class Block:
    """A thread that holds a slot until `leave()`, and how it ended."""

    def __init__(self, scheduler: TrafficScheduler, kind: Any = "batch", **options: Any) -> None:
        self.inside = threading.Event()
        self.error: BaseException | None = None
        self._go_on = threading.Event()
        self._scheduler, self._kind, self._options = scheduler, kind, options
        self.thread: Future[None] = in_thread(self._run)

    def _run(self) -> None:
        with self._scheduler.slot_from_thread(self._kind, **self._options):
            self.inside.set()
            assert self._go_on.wait(PATIENCE)
            if self.error is not None:
                raise self.error

    def leave(self, error: BaseException | None = None) -> None:
        """Let the block end, with `error` if there is one."""
        self.error = error
        self._go_on.set()

    async def ended(self) -> BaseException | None:
        """What the thread's `with` statement raised."""
        await asyncio.wait([asyncio.wrap_future(self.thread)])
        return self.thread.exception()


@on_real_loops
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


@on_real_loops
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


@on_real_loops
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


@on_real_loops
async def test_entering_on_the_loops_own_thread_is_misuse_and_takes_nothing() -> None:
    scheduler = await bound_scheduler()

    with (
        pytest.raises(SchedulerMisuse, match=r"write `async with scheduler\.slot"),
        scheduler.slot_from_thread("batch"),
    ):
        pass

    await settle()
    assert account(scheduler, "batch").submitted == 0


@on_real_loops
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
    assert str(error).startswith("batch call 'slow' ran longer than 0.01 s")
    assert account(scheduler, "batch").timed_out == 1
    await assert_whole(scheduler)


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


def test_the_end_of_asyncio_run_reaches_a_thread_that_waits_for_a_slot() -> None:
    blocks: list[Block] = []

    async def main() -> TrafficScheduler:
        scheduler = await bound_scheduler()
        scheduler.pause("batch")
        blocks.append(Block(scheduler))
        await until(scheduler.calls)
        return scheduler

    scheduler = asyncio.run(main())

    with pytest.raises(SchedulerMisuse, match=r"cancelled its tasks before the batch call of thread 'worker' was over"):
        blocks[0].thread.result(PATIENCE)
    assert account(scheduler, "batch").cancelled == 1


def test_asyncio_run_ends_although_its_executor_has_a_thread_that_waits_for_a_slot() -> None:
    async def main() -> None:
        scheduler = await bound_scheduler()
        scheduler.pause("batch")

        def work() -> None:
            with scheduler.slot_from_thread("batch"):
                pytest.fail("the block ran")

        job = asyncio.get_running_loop().run_in_executor(None, work)
        await until(scheduler.calls)
        assert not job.done()

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.to_thread(asyncio.run, main())

    asyncio.run(bounded())


@pytest.mark.parametrize("error", [None, ValueError("own")], ids=repr)
def test_a_thread_that_outlives_asyncio_run_in_its_block_is_told_unless_it_has_an_error_of_its_own(
    error: Exception | None,
) -> None:
    blocks: list[Block] = []

    async def main() -> None:
        scheduler = await bound_scheduler()
        blocks.append(Block(scheduler))
        await asyncio.to_thread(blocks[0].inside.wait, PATIENCE)

    asyncio.run(main())
    blocks[0].leave(error)

    with pytest.raises(
        SchedulerMisuse if error is None else ValueError, match="was closed" if error is None else "own"
    ):
        blocks[0].thread.result(PATIENCE)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "holding"])
@pytest.mark.parametrize("end", ["stop", "drop"])
def test_a_loop_that_ends_without_a_word_never_leaves_a_thread_hanging(end: str, waits: bool) -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        if waits:
            background.loop.call_soon_threadsafe(scheduler.pause, "batch")
        block = Block(scheduler)
        background.run(until(lambda: scheduler.calls() if waits else block.inside.is_set()))

        getattr(background, end)()
        block.leave()

        with pytest.raises(SchedulerMisuse, match=r"(stopped|was closed) before the batch call of thread 'worker'"):
            block.thread.result(PATIENCE)
        assert block.inside.is_set() is not waits


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "holding"])
def test_a_block_given_up_by_its_thread_gives_its_slot_back_if_the_loop_goes_on(waits: bool) -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        if waits:
            background.loop.call_soon_threadsafe(scheduler.pause, "batch")
        block = Block(scheduler)
        background.run(until(lambda: scheduler.calls() if waits else block.inside.is_set()))
        background.stop()
        block.leave()
        with pytest.raises(SchedulerMisuse):
            block.thread.result(PATIENCE)

        background.go_on()

        background.loop.call_soon_threadsafe(scheduler.resume, "batch")
        background.run(assert_whole(scheduler))


def test_a_slot_of_a_loop_that_is_gone_does_not_count_on_the_next_one() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        block = Block(scheduler)
        assert block.inside.wait(PATIENCE)
        background.drop()

        asyncio.run(scheduler.drain())
        asyncio.run(assert_whole(scheduler))
        block.leave()

        with pytest.raises(SchedulerMisuse, match="was closed"):
            block.thread.result(PATIENCE)
        asyncio.run(assert_whole(scheduler))


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
