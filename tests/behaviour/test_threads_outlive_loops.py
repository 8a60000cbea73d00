"""A loop that ends under threads which wait for it: each is told, none hangs. Promise 26.

`submit_from_thread` first, then `slot_from_thread`.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from concurrent.futures import CancelledError, Future

import pytest

from llm_traffic_scheduler import SchedulerMisuse, TrafficScheduler, loop_future
from tests.behaviour.doors import assert_whole
from tests.behaviour.threads import PATIENCE, Block, background_loop, bound_scheduler, in_thread, until
from tests.support import account, settle


async def answer() -> str:
    return "answer"


@pytest.mark.parametrize("runs", [True, False], ids=["running", "waiting"])
def test_the_end_of_asyncio_run_reaches_a_thread_whose_call_is_not_over(runs: bool) -> None:
    answers: list[Future[BaseException | None]] = []

    async def main() -> TrafficScheduler:
        scheduler = await bound_scheduler()
        if not runs:
            scheduler.pause("batch")

        def work() -> BaseException | None:
            try:
                return scheduler.submit_from_thread("batch", asyncio.Event().wait).exception(PATIENCE)
            except CancelledError as error:
                return error

        answers.append(in_thread(work))
        await until(scheduler.calls)
        return scheduler

    scheduler = asyncio.run(main())

    error = answers[0].result(PATIENCE)
    assert isinstance(error, CancelledError)
    assert "cancels what is left when it ends" in str(error)
    assert account(scheduler, "batch").cancelled == 1


@pytest.mark.parametrize("end", ["stop", "drop"])
def test_a_loop_that_ends_without_a_word_is_noticed_by_a_waiting_thread(end: str) -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        future = scheduler.submit_from_thread("batch", asyncio.Event().wait, label="night")
        waiter = in_thread(lambda: future.result(PATIENCE))
        background.run(settle())

        getattr(background, end)()

        with pytest.raises(SchedulerMisuse, match=r"(stopped|was closed) before the batch call 'night' of thread"):
            waiter.result(PATIENCE)
        assert isinstance(future.exception(), SchedulerMisuse)


def test_a_closed_loop_needs_no_second_look(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loop_future, "_LOOKS_UNTIL_GONE", -1)
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        future = scheduler.submit_from_thread("batch", asyncio.Event().wait)
        background.run(settle())
        background.drop()

        assert isinstance(future.exception(PATIENCE), SchedulerMisuse)
        assert caplog.records == []


def test_a_call_given_up_by_its_thread_is_cancelled_if_the_loop_goes_on() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        future = scheduler.submit_from_thread("batch", asyncio.Event().wait)
        background.run(settle())
        background.stop()
        with pytest.raises(SchedulerMisuse, match="stopped"):
            future.result(PATIENCE)

        background.go_on()
        background.run(assert_whole(scheduler))

        assert account(scheduler, "batch").cancelled == 1


def test_a_loop_that_rests_for_a_moment_has_not_ended() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())
        gate = asyncio.Event()
        future = scheduler.submit_from_thread("batch", gate.wait)
        for _ in range(3):
            background.stop()
            with pytest.raises(TimeoutError):
                future.result(0.3)
            background.go_on()
        background.loop.call_soon_threadsafe(gate.set)

        assert future.result(PATIENCE) is True


def test_a_call_whose_loop_is_closed_before_it_got_there_never_warns() -> None:
    with warnings.catch_warnings(), background_loop() as background:
        warnings.simplefilter("error")
        scheduler = background.run(bound_scheduler())
        arrived, go_on = threading.Event(), threading.Event()

        def last_pass() -> None:
            background.loop.stop()
            arrived.set()
            go_on.wait(PATIENCE)

        background.loop.call_soon_threadsafe(last_pass)
        assert arrived.wait(PATIENCE)
        future = scheduler.submit_from_thread("batch", answer)  # the loop still runs, for this one pass
        go_on.set()
        background.drop()

        with pytest.raises(SchedulerMisuse, match="was closed"):
            future.result(PATIENCE)
        del future
        gc.collect()


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
