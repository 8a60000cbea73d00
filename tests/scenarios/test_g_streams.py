"""G: streams whose readers leave, stop, stay away or come from elsewhere."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from llm_traffic_scheduler import RunTimeout, Stream, StreamClosed
from tests.behaviour.doors import assert_whole, outcome, start
from tests.behaviour.streams import Words, each_form, read
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.support import account, noop, settle

LEAVINGS = ("waiting for an item", "between items", "in its own code")


def _scheduler(stage: Stage, **settings: Any) -> Counted:
    """One whose streams the stage does not count: the scenario looks itself."""
    scheduler = stage.scheduler(**settings)
    stage.forget(scheduler)
    return scheduler


async def _gone(scheduler: Counted, words: Words) -> None:
    for _ in range(5):
        await asyncio.sleep(0.001)
        await settle()
    assert words.opened == words.closed
    await assert_whole(scheduler)


@each_form
@pytest.mark.parametrize("leaving", LEAVINGS)
@scenario
async def test_b84_readers_that_are_cancelled_give_their_slots_back(stage: Stage, form: str, leaving: str) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=0.001)
    reached = asyncio.Event()

    async def handler() -> None:
        async for number in scheduler.stream("interactive", getattr(words, form)):
            if number == 1:
                reached.set()
                await asyncio.sleep(0 if leaving == "between items" else 3600 if leaving == "in its own code" else 0)

    for _ in range(stage.share(20)):
        reached.clear()
        reading = start(handler())
        await reached.wait()
        await settle(2 if leaving == "waiting for an item" else 1)
        reading.cancel()
        with warnings.catch_warnings():
            # Without `async with`, a reader that leaves in its own code drops the stream.
            warnings.simplefilter("ignore", ResourceWarning)
            await asyncio.wait([reading])
            del reading
            gc.collect()
        await settle()

    await _gone(scheduler, words)


async def _take_one(stream: AsyncIterator[int]) -> None:
    async for _ in stream:
        break


@each_form
@pytest.mark.parametrize("how", ["block", "dropped", "never read", "read elsewhere"])
@scenario
async def test_b85_a_reader_that_breaks_frees_the_slot(stage: Stage, form: str, how: str) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=0.001)
    stream: Any = scheduler.stream("interactive", getattr(words, form))
    if how == "block":
        async with stream:
            await _take_one(stream)
    elif how == "read elsewhere":
        await start(_take_one(stream))
        await stream.aclose()
    elif how == "dropped":
        await _take_one(stream)
        assert scheduler.snapshot().running == 1
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del stream
        gc.collect()

    assert [warning.category for warning in warned] == ([ResourceWarning] if how == "dropped" else [])
    await _gone(scheduler, words)


@each_form
@pytest.mark.parametrize("how", ["closed", "cancelled", "dropped"])
@scenario
async def test_b87_a_stream_that_has_its_slot_and_no_item_yet_gives_it_back(stage: Stage, form: str, how: str) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=0.001)
    stream: Any = scheduler.stream("interactive", getattr(words, form))
    await stream.start()
    assert (scheduler.snapshot().running, words.opened) == (1, 0)

    if how == "closed":
        await stream.aclose()
    elif how == "cancelled":
        reading = start(anext(stream))
        await settle(1)
        reading.cancel()
        await asyncio.wait([reading])
        await stream.aclose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del stream

    await _gone(scheduler, words)


@scenario
async def test_b88_a_producer_behind_a_full_channel_goes_when_its_reader_does(stage: Stage) -> None:
    scheduler = _scheduler(stage)
    ended: list[str] = []

    async def source() -> AsyncIterator[int]:
        channel: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            try:
                for number in range(1000):
                    await channel.put(number)
            finally:
                ended.append("producer")

        producer = asyncio.create_task(produce())
        try:
            while True:
                yield await channel.get()
        finally:
            producer.cancel()
            await asyncio.wait([producer])

    async def handler() -> None:
        async with scheduler.stream("interactive", source) as stream:
            async for number in stream:
                if number == 2:
                    await asyncio.sleep(3600)

    reading = start(handler())
    for _ in range(3):
        await settle()
    reading.cancel()
    await asyncio.wait([reading])

    assert reading.cancelled()
    assert ended == ["producer"]
    await assert_whole(scheduler)


VARIABLE: ContextVar[str] = ContextVar("variable", default="nobody")


@pytest.mark.parametrize("end", ["block", "idle", "other task"])
@scenario
async def test_b89_a_half_read_generator_is_closed_in_the_context_it_began_in(stage: Stage, end: str) -> None:
    scheduler = _scheduler(stage)
    ended: list[str] = []

    async def source() -> AsyncIterator[int]:
        token = VARIABLE.set("source")
        try:
            yield 1
            yield 2
        finally:
            VARIABLE.reset(token)
            ended.append(VARIABLE.get())

    stream = scheduler.stream("interactive", source, idle_timeout=0.01)
    await start(anext(stream))
    if end == "block":
        async with stream:
            pass
    elif end == "other task":
        await start(stream.aclose())
    await asyncio.sleep(0.05)

    assert ended == ["nobody"]
    await assert_whole(scheduler)


@scenario_on("default", "eager")
async def test_b90_a_reader_that_sleeps_for_an_hour_loses_the_stream_and_is_no_slow_call(stage: Stage) -> None:
    scheduler = _scheduler(stage, interactive_p95_threshold=1.0)
    words = Words(3, each=0.1)
    stream = scheduler.stream("interactive", words.generator)
    await anext(stream)
    await asyncio.sleep(3600)

    assert scheduler.snapshot().running == 0
    assert scheduler.snapshot().interactive.p95 <= 1
    assert await outcome(anext(stream)) is StreamClosed
    await _gone(scheduler, words)


@scenario_on("default", "eager")
async def test_b90_a_backend_that_sends_nothing_for_an_hour_is_ended_by_the_run_timeout(stage: Stage) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=3600)

    assert await outcome(anext(scheduler.stream("interactive", words.generator, run_timeout=60))) is RunTimeout
    assert asyncio.get_running_loop().time() == pytest.approx(60)
    await _gone(scheduler, words)


@scenario
async def test_b19_a_stream_that_its_reader_and_another_task_close_at_once_ends_once(stage: Stage) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=0.001)
    for passes in range(stage.share(200)):
        stream = scheduler.stream("interactive", words.generator)

        async def handler(stream: Stream[int]) -> None:
            async with stream:
                async for _ in stream:
                    await asyncio.sleep(0)

        reading = start(handler(stream))
        await settle(passes % 10)
        await stream.aclose()
        await asyncio.wait([reading])

    await _gone(scheduler, words)


@scenario
async def test_b23_a_parent_in_a_stream_does_not_wait_for_itself(stage: Stage) -> None:
    scheduler = _scheduler(stage)

    async def source() -> AsyncIterator[int]:
        for number in range(3):
            yield await scheduler.submit("batch", asyncio.sleep, 0.001, number)

    streams = [start(read(scheduler.stream("batch", source))) for _ in range(4)]

    assert await asyncio.gather(*streams) == [[0, 1, 2]] * 4
    await assert_whole(scheduler)


@scenario
async def test_b66_a_stop_of_the_sources_own_is_an_error_and_no_end(stage: Stage) -> None:
    scheduler = _scheduler(stage)

    async def empty() -> AsyncIterator[int]:
        return
        yield

    async def generator() -> AsyncIterator[int]:
        yield await anext(empty())

    async def coroutine() -> AsyncIterator[int]:
        await anext(empty())
        return generator()

    assert await outcome(read(scheduler.stream("interactive", generator))) is RuntimeError
    assert await outcome(read(scheduler.stream("interactive", coroutine))) is RuntimeError
    await assert_whole(scheduler)


@scenario
async def test_b98_each_item_is_made_in_the_context_of_whoever_made_the_stream(stage: Stage) -> None:
    scheduler = _scheduler(stage)
    seen: list[str] = []
    words = Words(2, each=0.001)
    words.seen = lambda: seen.append(VARIABLE.get())

    async def make() -> list[Stream[int]]:
        VARIABLE.set("maker")
        return [scheduler.stream("interactive", words.generator)]

    [stream] = await start(make())
    VARIABLE.set("reader")
    await start(anext(stream))
    assert await read(stream) == [1]

    assert seen == ["maker", "maker"]
    await _gone(scheduler, words)


@scenario
async def test_b137_calls_in_the_loop_over_a_stream_are_calls_of_their_own(stage: Stage) -> None:
    scheduler = _scheduler(stage)
    words = Words(3, each=0.001)

    async for _ in scheduler.stream("interactive", words.generator):
        await scheduler.submit("interactive", noop)
        await asyncio.gather(*(start(scheduler.submit("interactive", noop)) for _ in range(10)))

    assert account(scheduler, "interactive").completed == 34
    await _gone(scheduler, words)
