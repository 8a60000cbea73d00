"""`map` and `as_completed`: every item once, in order or as it ends, no more than `buffer` at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    Outcome,
    QueueTimeout,
    RunTimeout,
    SchedulerMisuse,
    TrafficScheduler,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.testing import unlimited
from tests.behaviour.doors import assert_whole
from tests.support import account, hold, make_scheduler, now, other_tasks, settle

WHERE: ContextVar[str] = ContextVar("where", default="nowhere")

each_way = pytest.mark.parametrize("way", ["map", "as_completed"])


def both(scheduler: TrafficScheduler, way: str, *args: Any, **options: Any) -> Any:
    return getattr(scheduler, way)(*args, **options)


async def doubled(number: int) -> int:
    return number * 2


async def sleepy(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def until_error(results: Any) -> tuple[list[Any], BaseException | None]:
    """What came before the error, and the error."""
    found = []
    try:
        async for each in results:
            found.append(each)  # noqa: PERF401  # a comprehension would lose them
    except Exception as error:
        return found, error
    return found, None


async def counted(limit: int | None = None) -> AsyncIterator[int]:
    for number in itertools.count() if limit is None else range(limit):
        await asyncio.sleep(0.01)
        yield number


def numbers(source: str, limit: int) -> Any:
    """The same numbers, from whatever may be iterated over."""
    sources: dict[str, Callable[[], Any]] = {
        "list": lambda: list(range(limit)),
        "generator": lambda: (number for number in range(limit)),
        "async generator": lambda: counted(limit),
    }
    return sources[source]()


each_source = pytest.mark.parametrize("source", ["list", "generator", "async generator"])


@each_source
@pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])
async def test_map_gives_the_results_in_the_order_of_the_items(source: str) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    async def later_is_quicker(number: int) -> int:
        await asyncio.sleep((20 - number) / 1000)
        return number * 2

    results = [result async for result in scheduler.map("batch", later_is_quicker, numbers(source, 20))]

    assert results == [number * 2 for number in range(20)]
    assert account(scheduler, "batch").completed == 20
    await assert_whole(scheduler)


async def test_as_completed_gives_each_outcome_as_its_call_ends() -> None:
    scheduler = make_scheduler(max_concurrency=4)

    outcomes = [outcome async for outcome in scheduler.as_completed("interactive", sleepy, [3.0, 1.0, 2.0])]

    assert outcomes == [Outcome(1, 1.0, 1.0, None), Outcome(2, 2.0, 2.0, None), Outcome(0, 3.0, 3.0, None)]
    assert [outcome.get() for outcome in outcomes] == [1.0, 2.0, 3.0]
    await assert_whole(scheduler)


@each_way
@each_source
async def test_no_items_are_no_results(way: str, source: str) -> None:
    scheduler = make_scheduler()

    assert [each async for each in both(scheduler, way, "batch", doubled, numbers(source, 0))] == []
    await assert_whole(scheduler)


@each_way
@pytest.mark.parametrize("buffer", [1, 2, 7])
async def test_no_more_than_buffer_are_submitted_and_not_consumed(way: str, buffer: int) -> None:
    scheduler = make_scheduler(max_concurrency=4)
    pulled = consumed = most = 0

    def source() -> Iterator[int]:
        nonlocal pulled, most
        for number in itertools.count():
            pulled += 1
            most = max(most, pulled - consumed)
            yield number

    async with both(scheduler, way, "batch", doubled, source(), buffer=buffer) as results:
        async for _ in results:
            consumed += 1
            await asyncio.sleep(1.0)
            if consumed == 30:
                break

    assert most <= buffer + 1  # the one that was returned is not consumed for this count before the body runs
    assert pulled <= 30 + buffer
    await assert_whole(scheduler)


@pytest.mark.parametrize("kind,expected", [("batch", 6), ("interactive", 16)])
async def test_by_itself_the_buffer_is_twice_what_may_run(kind: Any, expected: int) -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=3)
    pulled = itertools.count()

    async with scheduler.map(kind, lambda _: asyncio.sleep(5.0), pulled) as results:
        first = asyncio.ensure_future(anext(results))
        await settle()
        assert next(pulled) == expected
        await first


async def test_an_unlimited_scheduler_does_not_pull_without_end() -> None:
    scheduler = unlimited()

    async with scheduler.map("batch", doubled, itertools.count()) as results:
        assert [await anext(results) for _ in range(3)] == [0, 2, 4]
    assert {call.kind for call in scheduler.calls} == {"batch"}


async def test_nothing_is_pulled_or_submitted_before_the_first_result_is_asked_for() -> None:
    scheduler = make_scheduler()
    source = iter(range(3))

    results = scheduler.map("batch", doubled, source)
    await settle()

    assert next(source) == 0
    assert [result async for result in results] == [2, 4]


async def test_calls_go_on_while_the_consumer_is_busy() -> None:
    scheduler = make_scheduler(max_concurrency=3)

    async for _ in scheduler.map("batch", sleepy, [2.0] * 4, buffer=2):
        await asyncio.sleep(2.0)

    assert now() == 10.0  # the consumer alone needs 8 of them


async def test_a_slow_async_source_does_not_hold_back_results_that_are_there() -> None:
    scheduler = make_scheduler()

    async def slow() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(100.0)
        yield 2

    times = [(result, now()) async for result in scheduler.map("batch", doubled, slow())]

    assert times == [(2, 0.0), (4, 100.0)]


@each_source
async def test_map_raises_the_first_error_at_its_place_and_cancels_the_rest(source: str) -> None:
    scheduler = make_scheduler(max_concurrency=9)
    ended = []

    async def fails_at_three(number: int) -> int:
        try:
            await asyncio.sleep(1.0 if number == 3 else 2.0 if number < 3 else 50.0)
        finally:
            ended.append(number)
        if number == 3:
            raise ConnectionError(number)
        return number

    results, error = await until_error(scheduler.map("batch", fails_at_three, numbers(source, 100), buffer=6))

    assert results == [0, 1, 2]
    assert isinstance(error, ConnectionError)
    assert now() < 3.0
    assert sorted(ended) == list(range(len(ended)))
    assert not other_tasks()
    await assert_whole(scheduler)


async def test_once_an_item_has_failed_map_pulls_no_more() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    source = itertools.count()

    async def second_fails(number: int) -> None:
        await asyncio.sleep(0.0 if number == 1 else 10.0)
        if number == 1:
            raise ConnectionError

    results = scheduler.map("batch", second_fails, source, buffer=3)
    await anext(results)
    with pytest.raises(ConnectionError):
        await anext(results)

    assert next(source) == 3


@each_source
async def test_as_completed_goes_on_after_an_error(source: str) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    async def odd_fails(number: int) -> int:
        await asyncio.sleep(1.0)
        if number % 2:
            raise ConnectionError(number)
        return number

    outcomes = [outcome async for outcome in scheduler.as_completed("batch", odd_fails, numbers(source, 9))]

    assert sorted(outcome.index for outcome in outcomes) == list(range(9))
    assert all(isinstance(outcome.error, ConnectionError) == bool(outcome.item % 2) for outcome in outcomes)
    with pytest.raises(ConnectionError):
        next(outcome for outcome in outcomes if outcome.error is not None).get()
    await assert_whole(scheduler)


@pytest.mark.parametrize("error", [asyncio.CancelledError("of its own"), GeneratorExit(), BaseException("odd")])
async def test_whatever_an_item_raises_is_its_outcome(error: BaseException) -> None:
    scheduler = make_scheduler()

    async def middle_one_fails(number: int) -> int:
        if number == 1:
            raise error
        return number

    outcomes = [outcome async for outcome in scheduler.as_completed("batch", middle_one_fails, range(3))]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), type(error), type(None)]

    results = scheduler.map("batch", middle_one_fails, range(3))
    assert await anext(results) == 0
    with pytest.raises(type(error)):
        await anext(results)
    assert not other_tasks()
    await assert_whole(scheduler)


async def test_a_stop_async_iteration_of_an_item_is_no_end_of_the_results() -> None:
    scheduler = make_scheduler()

    async def stops(number: int) -> int:
        raise StopAsyncIteration(number)

    with pytest.raises(RuntimeError, match="StopAsyncIteration"):
        await anext(scheduler.map("batch", stops, range(3)))


@each_way
@pytest.mark.parametrize("stream", [False, True], ids=["iterable", "async"])
async def test_what_the_items_raise_comes_after_the_results_before_it(way: str, stream: bool) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    def plain() -> Iterator[float]:
        yield from (3.0, 1.0)
        raise LookupError("no more lines")

    async def streamed() -> AsyncIterator[float]:
        for each in plain():
            yield each

    results, error = await until_error(both(scheduler, way, "batch", sleepy, streamed() if stream else plain()))

    found = results if way == "map" else [each.result for each in results]
    assert found == ([3.0, 1.0] if way == "map" else [1.0, 3.0])
    assert isinstance(error, LookupError)
    await assert_whole(scheduler)


async def test_options_hold_for_each_call_and_may_depend_on_the_item() -> None:
    scheduler = make_scheduler()
    ran = []

    async def note(item: tuple[int, str]) -> None:
        slot = current_slot()
        assert slot is not None
        ran.append((item[0], slot.tenant, slot.label))

    blocker = hold(scheduler, "batch")
    items = [(3, "a"), (1, "b"), (2, "a")]
    results = scheduler.map(
        "batch", note, items, priority=lambda item: item[0], tenant=lambda item: item[1], label="x", buffer=3
    )
    everything = asyncio.ensure_future(anext(results))
    await settle()
    blocker.release()
    await everything

    assert ran == [(1, "b", "x"), (2, "a", "x"), (3, "a", "x")]
    await results.aclose()


async def test_an_option_that_raises_for_an_item_is_that_items_error() -> None:
    scheduler = make_scheduler()

    depends: Any = {"priority": lambda item: 1 / item, "tenant": lambda item: "a" if item < 2 else 3}
    outcomes = [each async for each in scheduler.as_completed("batch", doubled, [1, 0, 2], **depends)]

    assert [type(outcome.error) for outcome in sorted(outcomes, key=lambda each: each.index)] == [
        type(None),
        ZeroDivisionError,
        ConfigError,
    ]


async def test_timeouts_are_those_of_each_call() -> None:
    scheduler = make_scheduler(max_concurrency=2)

    outcomes = scheduler.as_completed("batch", sleepy, [1.0, 9.0, 1.0], run_timeout=5.0, queue_timeout=3.0)
    errors = {outcome.index: type(outcome.error) async for outcome in outcomes}

    assert errors == {0: type(None), 1: RunTimeout, 2: QueueTimeout}
    await assert_whole(scheduler)


@each_way
async def test_wrong_arguments_are_refused_at_once(way: str) -> None:
    scheduler = make_scheduler()

    for wrong, error, message in [
        (("batch", doubled(1), []), SchedulerMisuse, "takes a function, got a coroutine object"),
        (("batch", doubled, 3), SchedulerMisuse, f"{way}\\(\\) takes items to iterate over, got int"),
        (("batch", doubled, doubled(1)), SchedulerMisuse, "got coroutine"),
        ((doubled, "batch", []), SchedulerMisuse, "the kind comes first"),
        (("nightly", doubled, []), ConfigError, "kind must be"),
        ((None, doubled, []), SchedulerMisuse, "no kind is in force"),
    ]:
        with pytest.raises(error, match=message):
            both(scheduler, way, *wrong)
    wrong_options: list[tuple[Any, type[Exception]]] = [
        ({"buffer": 0}, ConfigError),
        ({"buffer": 1.5}, ConfigError),
        ({"progress": "yes"}, ConfigError),
        ({"priority": "high"}, ConfigError),
        ({"run_timeout": 0}, ConfigError),
        ({"queue_timeout": lambda item: 3}, ConfigError),
        ({"prioritty": 3}, TypeError),
    ]
    for options, refused in wrong_options:
        with pytest.raises(refused):
            both(scheduler, way, "batch", doubled, [], **options)


@each_way
async def test_calls_run_in_the_context_the_operation_was_made_in(way: str) -> None:
    scheduler = make_scheduler()

    async def where(_: int) -> tuple[str, str]:
        slot = current_slot()
        assert slot is not None
        return WHERE.get(), slot.kind

    async def source() -> AsyncIterator[int]:
        with traffic("interactive", tenant="source"):
            yield 1
            WHERE.set("in the source")
            yield 2

    WHERE.set("made")
    with traffic("batch"):
        results = both(scheduler, way, None, where, source())
    WHERE.set("consumed")

    found = [each if way == "map" else each.get() async for each in results]
    assert found == [("made", "batch")] * 2


async def test_inside_batch_work_everything_is_batch() -> None:
    scheduler = make_scheduler(max_concurrency=4)

    async def evaluation() -> list[int]:
        return [result async for result in scheduler.map("interactive", doubled, range(5))]

    assert await scheduler.submit("batch", evaluation) == [0, 2, 4, 6, 8]
    assert scheduler.snapshot().interactive.sample_count == 0
    await assert_whole(scheduler)


@pytest.mark.parametrize("bound", [None, 1])
async def test_nested_in_every_slot_of_the_scheduler_it_does_not_stand_still(bound: int | None) -> None:
    scheduler = make_scheduler(max_concurrency=2, max_queued_batch=bound, max_queued_interactive=bound)

    async def outer(number: int) -> float:
        return sum([each async for each in scheduler.map("batch", sleepy, [1.0] * number)])

    sums = [each async for each in scheduler.map("interactive", outer, [3, 4, 5])]

    assert sums == [3.0, 4.0, 5.0]
    await assert_whole(scheduler)
