"""However a stream ends, its source is closed, then its slot goes back, once. Promises 12, 16, 18, 23 and 25."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from llm_traffic_scheduler import CallAborted, RunTimeout, SchedulerMisuse, Stream, StreamClosed
from tests.behaviour.doors import assert_whole, outcome, start
from tests.behaviour.streams import QUICK, Words, assert_over, cancelling, each_form, read
from tests.support import account, hold, make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager", "uvloop"])


@each_form
async def test_leaving_the_block_closes_the_stream(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)

    async with scheduler.stream("interactive", getattr(words, form)) as stream:
        async for _ in stream:
            break
        assert scheduler.snapshot().running == 1

    assert (words.closed, scheduler.snapshot().running) == (1, 0)
    with pytest.raises(StreamClosed, match="closed before its end"):
        await anext(stream)
    assert account(scheduler, "interactive").cancelled == 1
    await assert_over(scheduler, words)


async def test_a_generator_is_closed_before_the_manager_that_gave_it_and_did_not_close_it() -> None:
    scheduler, words, closed = make_scheduler(), Words(), []

    @asynccontextmanager
    async def manager() -> AsyncIterator[AsyncIterator[int]]:
        yield words.generator()
        closed.append(words.closed)

    async with scheduler.stream("interactive", manager) as stream:
        await anext(stream)

    assert closed == [1]
    await assert_whole(scheduler)


@each_form
async def test_what_the_source_raises_is_raised_unchanged_and_ends_the_stream(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK, fails_at=1)
    stream = scheduler.stream("interactive", getattr(words, form))

    assert await anext(stream) == 0
    with pytest.raises(ValueError, match="1"):
        await anext(stream)

    with pytest.raises(StreamClosed, match="ended with ValueError"):
        await anext(stream)
    assert account(scheduler, "interactive").failed == 1
    await assert_over(scheduler, words)


@each_form
@pytest.mark.parametrize("passes", range(14))
async def test_a_reader_cancelled_at_any_await_point_leaves_the_slots_whole(form: str, passes: int) -> None:
    scheduler, words = make_scheduler(), Words(2, each=0, hangs=QUICK)
    held = [hold(scheduler) for _ in range(2)]
    await settle()

    async def consume() -> None:
        async with scheduler.stream("interactive", getattr(words, form)) as stream:
            await stream.start()
            async for _ in stream:
                await asyncio.sleep(0)

    reading = start(consume())
    held[0].release()
    await settle(passes)
    cancelled = reading.cancel()
    await asyncio.wait([reading])

    assert reading.cancelled() is cancelled
    held[1].release()
    await assert_over(scheduler, words)


@pytest.mark.parametrize("passes", range(8))
async def test_a_reader_cancelled_without_a_block_ends_the_stream_if_it_waits_for_an_item(passes: int) -> None:
    scheduler, words = make_scheduler(), Words(2, each=QUICK)
    stream = scheduler.stream("interactive", words.generator)
    reading = start(anext(stream))
    await settle(passes)

    if reading.cancel():
        await asyncio.wait([reading])
        assert reading.cancelled()
        with pytest.raises(StreamClosed if words.opened else asyncio.CancelledError):
            await anext(stream) if words.opened else await reading
    await stream.aclose()
    await assert_over(scheduler, words)


@each_form
async def test_closing_from_another_task_between_items_closes_the_source(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    stream = scheduler.stream("interactive", getattr(words, form))
    await anext(stream)

    await start(stream.aclose())

    assert scheduler.snapshot().running == 0
    with pytest.raises(StreamClosed):
        await anext(stream)
    await assert_over(scheduler, words)


@each_form
@pytest.mark.parametrize("closers", [1, 3])
async def test_closing_while_a_reader_waits_for_an_item_wakes_it_with_an_error(form: str, closers: int) -> None:
    scheduler, words = make_scheduler(), Words(each=3600)
    stream = scheduler.stream("interactive", getattr(words, form))

    async def consume() -> int:
        with pytest.raises(StreamClosed, match="closed as it was read"):
            await anext(stream)
        return cancelling()

    reading = start(consume())
    await settle()

    await asyncio.gather(*(stream.aclose() for _ in range(closers)))

    assert scheduler.snapshot().running == 0
    assert await reading == 0
    await assert_over(scheduler, words)


async def test_closing_while_a_reader_waits_for_the_slot_takes_it_out_of_the_queue() -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    stream = scheduler.stream("interactive", words.generator)
    reading = start(outcome(anext(stream)))
    await settle()

    await stream.aclose()

    assert scheduler.snapshot().interactive_queued == 0
    assert await reading is StreamClosed
    for call in held:
        call.release()
    await assert_over(scheduler, words)


async def test_closing_in_the_pass_of_the_grant_gives_the_slot_on() -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    stream = scheduler.stream("interactive", words.generator)
    reading = start(outcome(stream.start()))
    await settle()

    held[0].release()
    await held[0].task
    await stream.aclose()

    assert await reading in (StreamClosed, None)
    held[1].release()
    await assert_over(scheduler, words)


async def test_the_outer_cancel_wins_over_a_close_from_another_task() -> None:
    scheduler, words = make_scheduler(), Words(each=3600)
    stream = scheduler.stream("interactive", words.generator)
    reading = start(anext(stream))
    await settle()

    closing = start(stream.aclose())
    await asyncio.sleep(0)
    reading.cancel()
    await closing
    await asyncio.wait([reading])

    assert reading.cancelled()
    await assert_over(scheduler, words)


async def test_an_item_that_comes_in_spite_of_the_cancel_stands_and_the_stream_is_closed() -> None:
    scheduler = make_scheduler()

    async def stubborn() -> AsyncIterator[str]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            yield "after all"
        yield "never"

    stream = scheduler.stream("interactive", stubborn)
    reading = start(anext(stream))
    await settle()

    await stream.aclose()

    assert await reading == "after all"
    with pytest.raises(StreamClosed):
        await anext(stream)
    await assert_whole(scheduler)


async def test_a_source_cannot_close_its_own_stream() -> None:
    scheduler, streams = make_scheduler(), list[Stream[int]]()

    async def source() -> AsyncIterator[int]:
        await streams[0].aclose()
        yield 1

    streams.append(scheduler.stream("interactive", source))
    with pytest.raises(SchedulerMisuse, match="cannot be closed by its own source"):
        await read(streams[0])
    await assert_whole(scheduler)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_clean_up_that_has_begun_is_not_disturbed_by_a_close() -> None:
    scheduler, cleaned = make_scheduler(), list[bool]()

    async def source() -> AsyncIterator[int]:
        yield 1
        raise ValueError

    class Response(AsyncIterator[int]):
        def __init__(self) -> None:
            self._items = source()

        async def __anext__(self) -> int:
            return await anext(self._items)

        async def close(self) -> None:
            await asyncio.sleep(10)
            cleaned.append(True)

    stream = scheduler.stream("interactive", Response)
    await anext(stream)
    reading = start(outcome(anext(stream)))
    await settle()

    await stream.aclose()

    assert cleaned == [True]
    assert await reading is ValueError
    await assert_whole(scheduler)


async def test_close_aborts_a_stream_whose_source_answers_its_cancel_with_an_item() -> None:
    scheduler = make_scheduler()

    async def stubborn() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            yield 1
        yield 2

    stream = scheduler.stream("interactive", stubborn)
    reading = start(anext(stream))
    await settle()

    report = await scheduler.close(timeout=QUICK)

    assert await reading == 1
    assert report.cancelled == 1
    with pytest.raises(CallAborted):
        await anext(stream)


@each_form
async def test_close_lets_a_stream_end_within_its_timeout(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    stream = scheduler.stream("interactive", getattr(words, form))
    await anext(stream)

    closing = start(scheduler.close(timeout=10))
    await settle()

    assert await read(stream) == [1, 2]
    assert (await closing).finished == 1


@each_form
async def test_close_aborts_a_stream_whose_reader_waits(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=3600)
    reading = start(outcome(anext(scheduler.stream("interactive", getattr(words, form)))))
    await settle()

    report = await scheduler.close(timeout=QUICK)

    assert await reading is CallAborted
    assert (report.cancelled, words.closed) == (1, 1)


@each_form
async def test_close_aborts_a_stream_that_nobody_reads_just_now(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    stream = scheduler.stream("interactive", getattr(words, form))
    await anext(stream)

    report = await scheduler.close(timeout=QUICK)

    assert (report.cancelled, words.closed) == (1, 1)
    with pytest.raises(CallAborted, match="had not ended when close"):
        await anext(stream)
    await stream.aclose()


VARIABLE: ContextVar[str] = ContextVar("variable", default="nobody")


@pytest.mark.parametrize("how", ["to its end", "closed elsewhere", "idle", "cancelled"])
async def test_a_source_has_one_context_from_its_first_step_to_its_clean_up(how: str) -> None:
    scheduler, seen = make_scheduler(), list[str]()

    async def source() -> AsyncIterator[int]:
        seen.append(VARIABLE.get())
        token = VARIABLE.set("source")
        try:
            for number in range(3):
                yield number
                await asyncio.sleep(QUICK)
        finally:
            seen.append(VARIABLE.get())
            VARIABLE.reset(token)

    VARIABLE.set("maker")
    stream = scheduler.stream("interactive", source, idle_timeout=0.01 if how == "idle" else 60)
    VARIABLE.set("reader")
    await start(anext(stream))
    if how == "to its end":
        await read(stream)
    elif how == "closed elsewhere":
        await start(stream.aclose())
    elif how == "idle":
        await asyncio.sleep(0.05)
    else:
        reading = start(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])

    assert seen == ["maker", "source"]
    assert VARIABLE.get() == "reader"
    await assert_whole(scheduler)


async def test_a_run_timeout_in_the_pass_of_the_item_owes_no_cancel() -> None:
    scheduler = make_scheduler()

    async def source() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            yield 1
        await asyncio.sleep(3600)

    stream = scheduler.stream("interactive", source, run_timeout=QUICK)
    assert await anext(stream) == 1
    assert cancelling() == 0
    with pytest.raises(RunTimeout):
        await anext(stream)
    assert cancelling() == 0
    with pytest.raises(StreamClosed, match="has ended with RunTimeout"):
        await anext(stream)
    await assert_whole(scheduler)
