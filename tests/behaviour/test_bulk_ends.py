"""How a bulk operation ends before its items do: nothing of it is left behind, whatever ended it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from llm_traffic_scheduler import SchedulerClosed, SchedulerMisuse
from llm_traffic_scheduler.testing import run_virtual
from tests.behaviour.doors import assert_whole, outcome, start
from tests.behaviour.test_bulk import both, doubled, each_way, sleepy
from tests.support import account, make_scheduler, now, other_tasks, settle

everywhere = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])


class Source:
    """An async generator that tells whether it was closed, and in which task."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.tasks: set[asyncio.Task[Any] | None] = set()
        self.closed = 0

    async def items(self) -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                self.tasks.add(asyncio.current_task())
                await asyncio.sleep(self.pause)
                yield number
        finally:
            self.tasks.add(asyncio.current_task())
            await asyncio.sleep(0)
            self.closed += 1


@each_way
@pytest.mark.parametrize("leave", ["block", "aclosing", "aclose"])
@everywhere
async def test_leaving_cancels_the_rest_and_waits_for_their_ends(way: str, leave: str) -> None:
    scheduler = make_scheduler(max_concurrency=4, max_queued_batch=2)
    began, ended = [], []

    async def slow_to_stop(number: int) -> None:
        began.append(number)
        try:
            await asyncio.sleep(0.0 if number == 0 else 3600.0)
        finally:
            await asyncio.sleep(0.01)
            ended.append(number)

    source = Source()
    results = both(scheduler, way, "batch", slow_to_stop, source.items(), buffer=8)
    if leave == "aclose":
        await anext(results)
        await results.aclose()
    else:
        async with results if leave == "block" else aclosing(results):
            await anext(results)

    assert sorted(ended) == sorted(began)
    assert (source.closed, len(source.tasks)) == (1, 1)
    assert not other_tasks()
    with pytest.raises(StopAsyncIteration):
        await anext(results)
    assert account(scheduler, "batch").rejected == 0
    scheduler.configure(max_queued_batch=None)
    await assert_whole(scheduler)


@each_way
async def test_an_operation_that_ended_by_itself_has_closed_its_source(way: str) -> None:
    scheduler = make_scheduler()
    closed = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append(now())

    assert len([each async for each in both(scheduler, way, "batch", doubled, source())]) == 1
    assert closed == [0.0]
    assert not other_tasks()


async def test_a_plain_generator_is_left_where_it_is() -> None:
    scheduler = make_scheduler()
    source = (number for number in range(10))

    async with scheduler.map("batch", doubled, source, buffer=1) as results:
        await anext(results)

    assert next(source) == 2


@pytest.mark.parametrize("passes", range(8))
@everywhere
async def test_a_cancelled_consumer_leaves_nothing_behind(passes: int) -> None:
    scheduler = make_scheduler(max_concurrency=3, max_queued_batch=1)
    source = Source()

    async def consume() -> None:
        async for _ in scheduler.map("batch", sleepy, source.items(), buffer=6):
            pass

    consumer = start(consume())
    await settle(passes)
    consumer.cancel()

    assert await outcome(consumer) is asyncio.CancelledError
    assert source.closed == (not source.tasks <= {None} and bool(source.tasks))
    assert not other_tasks()
    scheduler.configure(max_queued_batch=None)
    await assert_whole(scheduler)


async def test_a_second_cancel_does_not_cut_the_wait_for_the_ends_short() -> None:
    scheduler = make_scheduler()
    ended = []

    async def stubborn(_: int) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await asyncio.sleep(5.0)
            ended.append(now())

    consumer = start(anext(scheduler.map("batch", stubborn, range(3))))
    await settle()
    consumer.cancel()
    await asyncio.sleep(1.0)
    consumer.cancel()

    assert await outcome(consumer) is asyncio.CancelledError
    assert ended == [5.0]
    await assert_whole(scheduler)


async def test_a_timeout_around_the_loop_ends_it() -> None:
    scheduler = make_scheduler()
    results = []

    async def consume() -> None:
        async with asyncio.timeout(3.5):
            async for result in scheduler.map("batch", sleepy, itertools.repeat(1.0)):
                results.append(result)  # noqa: PERF401

    assert await outcome(consume()) is TimeoutError
    assert results == [1.0] * 3
    assert not other_tasks()


async def test_an_error_in_the_closing_source_is_raised_by_who_closes() -> None:
    scheduler = make_scheduler()

    async def source() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise ConnectionError("cursor lost")

    results = scheduler.map("batch", doubled, source())
    await anext(results)
    with pytest.raises(ConnectionError, match="cursor lost"):
        await results.aclose()
    assert not other_tasks()


async def test_a_source_that_swallows_its_cancellation_submits_nothing_more() -> None:
    scheduler = make_scheduler()

    async def source() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            yield 2

    results = scheduler.map("batch", doubled, source())
    assert await anext(results) == 2
    await settle()
    await results.aclose()

    assert account(scheduler, "batch").submitted == 1
    assert not other_tasks()


@each_way
@everywhere
async def test_a_dropped_iterator_warns_and_leaves_nothing_behind(way: str) -> None:
    scheduler = make_scheduler()
    source = Source()

    async def drop() -> None:
        async for _ in both(scheduler, way, "batch", lambda number: asyncio.sleep(number * 3600.0), source.items()):
            break
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped before its end"):
        await drop()
    await settle()

    assert source.closed == 1
    assert not other_tasks()
    await assert_whole(scheduler)


async def test_a_dropped_iterator_is_cleaned_up_by_the_loop_whatever_thread_collects_it() -> None:
    scheduler = make_scheduler()
    results = [scheduler.map("batch", lambda number: asyncio.sleep(number * 3600.0), itertools.count())]
    await anext(results[0])

    def drop() -> None:
        thread = threading.Thread(target=results.clear)
        thread.start()
        thread.join()

    with pytest.warns(ResourceWarning):
        drop()
    assert other_tasks()
    await settle()

    assert not other_tasks()
    await assert_whole(scheduler)


async def test_one_that_was_never_begun_or_has_ended_is_dropped_without_a_word() -> None:
    scheduler = make_scheduler()

    scheduler.map("batch", doubled, range(3))
    async for _ in scheduler.map("batch", doubled, range(3)):
        pass
    gc.collect()

    assert account(scheduler, "batch").submitted == 3


def test_one_whose_loop_has_gone_is_dropped_with_no_more_than_a_warning() -> None:
    scheduler = make_scheduler()

    async def begin() -> Any:
        results = scheduler.map("batch", sleepy, [0.0, 1.0])
        await anext(results)
        return results

    results = [run_virtual(begin())]
    with pytest.warns(ResourceWarning):
        results.clear()


async def test_close_ends_map_with_scheduler_closed() -> None:
    scheduler = make_scheduler(max_concurrency=3)
    results = scheduler.map("batch", sleepy, itertools.repeat(10.0))
    first = start(anext(results))
    await settle()
    report = await scheduler.close()

    assert await first == 10.0
    assert await anext(results) == 10.0
    assert await outcome(anext(results)) is SchedulerClosed
    assert (report.finished, report.rejected) == (2, 2)
    assert not other_tasks()


@pytest.mark.parametrize("items,last", [(range(4), None), (range(9), SchedulerClosed), (None, SchedulerClosed)])
async def test_close_leaves_as_completed_an_outcome_for_each_submitted_item(items: Any, last: Any) -> None:
    scheduler = make_scheduler(max_concurrency=3)
    outcomes = scheduler.as_completed("batch", lambda _: asyncio.sleep(10.0), items or itertools.count())
    found = []

    async def consume() -> None:
        async for each in outcomes:
            found.append(type(each.error))  # noqa: PERF401

    consumer = start(consume())
    await settle()
    await scheduler.close()

    assert await outcome(consumer) is last
    assert sorted(found, key=str) == sorted([type(None)] * 2 + [SchedulerClosed] * 2, key=str)
    assert not other_tasks()


async def test_a_call_of_its_own_cannot_close_it() -> None:
    scheduler = make_scheduler()
    results: Any = None

    async def close(_: int) -> None:
        await results.aclose()

    results = scheduler.as_completed("batch", close, range(1))
    assert type((await anext(results)).error) is SchedulerMisuse
    await results.aclose()


@everywhere
async def test_a_call_of_its_own_that_has_just_begun_cannot_close_it_either() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    results: Any = None

    async def close(number: int) -> None:
        if number == 1:
            await results.aclose()
        await asyncio.sleep(0.01)

    results = scheduler.as_completed("batch", close, range(3))
    errors = {each.index: type(each.error) async for each in results}

    assert errors == {0: type(None), 1: SchedulerMisuse, 2: type(None)}


@each_way
@pytest.mark.parametrize("begun", [False, True], ids=["never begun", "cancelled in its first pass"])
async def test_a_source_that_nobody_has_pulled_from_is_closed(way: str, begun: bool) -> None:
    class Open:
        closed = 0

        def __aiter__(self) -> Open:
            return self

        async def __anext__(self) -> int:
            return 1

        async def aclose(self) -> None:
            self.closed += 1

    source = Open()
    async with getattr(make_scheduler(), way)("batch", doubled, source) as results:
        if begun:
            reader = asyncio.ensure_future(anext(results))
            asyncio.get_running_loop().call_soon(reader.cancel)
            await asyncio.wait({reader})

    assert source.closed == 1


async def test_a_name_that_is_none_takes_no_place_in_line_away() -> None:
    scheduler = make_scheduler(max_queued_batch=1)

    async def work(item: int) -> int:
        await asyncio.sleep(1)
        return item

    async with scheduler.map("batch", Nameless(work), range(5)) as results:
        assert [result async for result in results] == [0, 1, 2, 3, 4]


class Nameless:
    """A function with a name that is none."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.__dict__["__qualname__"] = 5

    def __call__(self, item: int) -> Any:
        return self.work(item)


@pytest.mark.parametrize(
    "way,stream,number",
    [
        ("map", False, 10_000),
        ("map", True, 10_000),
        ("as_completed", True, 10_000),
        pytest.param("as_completed", False, 100_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_items(way: str, stream: bool, number: int) -> None:
    scheduler = make_scheduler(max_concurrency=8)

    async def numbers(limit: int) -> AsyncIterator[int]:
        for number in range(limit):
            yield number

    async def at_peak(limit: int) -> int:
        items = numbers(limit) if stream else iter(range(limit))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        async for _ in both(scheduler, way, "batch", doubled, items):
            pass
        return tracemalloc.get_traced_memory()[1] - before

    async def main() -> tuple[int, int]:
        await at_peak(1_000)
        return await at_peak(1_000), await at_peak(number)

    tracemalloc.start()
    try:
        few, many = run_virtual(main())
    finally:
        tracemalloc.stop()

    assert many < 2 * few + 50_000  # an item that is kept is 28 bytes, and ten times that as a task
