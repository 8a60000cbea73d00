"""A stream that nobody reads on, idle or dropped, is closed, and gives its slot back once. Promises 18 and 25."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import StreamClosed
from tests.behaviour.doors import assert_whole, start
from tests.behaviour.streams import QUICK, Words, assert_over, each_form, read
from tests.support import account, armed_timers, make_scheduler, other_tasks, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager", "uvloop"])


async def a_while() -> None:
    """Time for a closer's task, also on a loop that is late."""
    for _ in range(5):
        await asyncio.sleep(QUICK)
        await settle()


@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
@each_form
async def test_an_idle_stream_is_closed_and_says_so_to_the_reader_that_comes_too_late(form: str) -> None:
    scheduler, words = make_scheduler(), Words()
    stream = scheduler.stream("interactive", getattr(words, form), idle_timeout=10)
    for _ in range(2):
        await anext(stream)
        await asyncio.sleep(9)
        assert scheduler.snapshot().running == 1
        assert len(armed_timers()) == 1

    await asyncio.sleep(1.001)

    assert (scheduler.snapshot().running, words.closed) == (0, 1)
    with pytest.raises(StreamClosed, match="for 10 s, so it was closed") as caught:
        await anext(stream)
    assert caught.value.idle == 10
    assert account(scheduler, "interactive").timed_out == 1
    await assert_over(scheduler, words)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_idle_time_is_counted_from_the_last_item() -> None:
    scheduler, words = make_scheduler(), Words()
    stream = scheduler.stream("interactive", words.generator, idle_timeout=15)
    await anext(stream)
    await asyncio.sleep(9)
    await anext(stream)

    await asyncio.sleep(14.9)
    assert scheduler.snapshot().running == 1
    await asyncio.sleep(0.2)
    await assert_over(scheduler, words)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_source_that_ignores_the_closing_of_its_stream_shows_as_overdue() -> None:
    scheduler = make_scheduler()

    async def stubborn() -> AsyncIterator[int]:
        for number in range(2):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                await asyncio.sleep(100)
            yield number

    stream = scheduler.stream("interactive", stubborn)
    reading = start(anext(stream))
    await asyncio.sleep(1)
    closing = start(stream.aclose())
    await asyncio.sleep(1)

    assert scheduler.snapshot().overdue == 1
    assert await reading == 0
    await closing
    await assert_whole(scheduler)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_stream_that_was_started_and_never_read_is_idle_and_a_slow_backend_is_not() -> None:
    scheduler, words = make_scheduler(), Words(1, each=3600)
    unread = scheduler.stream("interactive", words.generator)
    await unread.start()
    reading = start(read(scheduler.stream("interactive", words.generator)))
    await asyncio.sleep(61)

    assert scheduler.snapshot().running == 1
    assert await reading == [0]
    await assert_over(scheduler, words)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_source_that_hangs_as_it_is_closed_keeps_its_slot_and_shows_as_overdue() -> None:
    scheduler, words = make_scheduler(), Words(hangs=3600)
    stream = scheduler.stream("interactive", words.generator, idle_timeout=10)
    await anext(stream)
    await asyncio.sleep(20)

    assert (scheduler.snapshot().running, scheduler.snapshot().overdue) == (1, 1)
    with pytest.raises(StreamClosed):
        await anext(stream)
    report = await scheduler.close(timeout=5)
    assert report.cancelled == 1
    assert other_tasks() == set()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_an_error_in_the_clean_up_of_an_idle_stream_is_told_to_the_loop_and_gives_the_slot_back() -> None:
    scheduler, told = make_scheduler(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise OSError("reset")

    stream = scheduler.stream("interactive", source, idle_timeout=1)
    await anext(stream)
    await asyncio.sleep(2)

    assert [type(error) for error in told] == [OSError]
    with pytest.raises(StreamClosed) as caught:
        await anext(stream)
    assert caught.value.__cause__ is told[0]
    await assert_whole(scheduler)


@each_form
@pytest.mark.parametrize("read_first", [True, False])
async def test_a_stream_that_is_dropped_gives_its_slot_back_with_a_warning(form: str, read_first: bool) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    stream: Any = scheduler.stream("interactive", getattr(words, form))
    await (anext(stream) if read_first else stream.start())

    with pytest.warns(ResourceWarning, match="dropped before its end: write `async with"):
        del stream

    await a_while()
    assert account(scheduler, "interactive").cancelled == 1
    await assert_over(scheduler, words)


async def test_a_stream_that_never_started_or_has_ended_is_dropped_without_a_warning() -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.stream("interactive", words.generator)
        await read(scheduler.stream("interactive", words.generator))
        gc.collect()

    await assert_over(scheduler, words)


@pytest.mark.asyncio(loop_factories=["virtual", "eager"])
async def test_a_stream_that_is_being_closed_is_dropped_without_a_warning() -> None:
    scheduler, words = make_scheduler(), Words(hangs=5)
    box = [scheduler.stream("interactive", words.generator, idle_timeout=10)]
    await anext(box[0])
    await asyncio.sleep(11)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lost = weakref.ref(box.pop())
        gc.collect()

    assert lost() is None
    assert words.closed == 0
    await asyncio.sleep(5)
    await assert_over(scheduler, words)


async def test_a_stream_dropped_in_another_thread_touches_nothing_there() -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    box: list[Any] = [scheduler.stream("interactive", words.generator)]
    await anext(box[0])

    with pytest.warns(ResourceWarning):
        await asyncio.to_thread(box.clear)

    await a_while()
    await assert_over(scheduler, words)


@pytest.mark.filterwarnings("ignore:a stream was dropped:ResourceWarning")
@each_form
async def test_a_reader_whose_coroutine_is_closed_gives_the_slot_back(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    coroutine = scheduler.stream("interactive", getattr(words, form)).__anext__()
    coroutine.send(None)
    assert scheduler.snapshot().running == 1

    coroutine.close()

    await a_while()
    await assert_over(scheduler, words)


@each_form
async def test_a_reader_whose_coroutine_is_closed_ends_the_stream_that_somebody_else_still_holds(form: str) -> None:
    scheduler, words = make_scheduler(), Words(each=QUICK)
    stream = scheduler.stream("interactive", getattr(words, form))
    coroutine = stream.__anext__()
    coroutine.send(None)

    coroutine.close()

    await a_while()
    await assert_over(scheduler, words)
    with pytest.raises(StreamClosed, match="dropped"):
        await anext(stream)
