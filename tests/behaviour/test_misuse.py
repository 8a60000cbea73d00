"""What is handed to `submit` by mistake is refused with the line to write instead, and nothing warns.

Promises 12 and 22, and the `SchedulerMisuse` of API.md. Whatever can be awaited runs.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import types
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from llm_traffic_scheduler import ConfigError, Rejected, SchedulerMisuse, TrafficScheduler
from tests.behaviour.doors import Door, assert_whole, each_door, start
from tests.support import account, hold, make_scheduler, settle


@contextmanager
def no_warnings() -> Iterator[None]:
    """Fails if anything warns; what the garbage collector finds later is an error by pytest's own settings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(warning.message) for warning in caught] == []


async def fetch(url: str = "x") -> str:
    return url


class Client:
    async def ask(self, question: str) -> str:
        return question

    async def __call__(self, question: str) -> str:
        return question

    @staticmethod
    async def static(question: str) -> str:
        return question

    @classmethod
    async def of_class(cls, question: str) -> str:
        return question

    def blocking(self, question: str) -> str:
        return question


@types.coroutine
def old_style(question: str) -> Generator[None, None, str]:
    yield
    return question


_RUNNABLE: dict[str, Callable[[str], Awaitable[str]]] = {
    "coroutine function": fetch,
    "partial": functools.partial(fetch),
    "partial of a partial": functools.partial(functools.partial(fetch)),
    "lambda": lambda question: fetch(question),
    "method": Client().ask,
    "callable object": Client(),
    "static method": Client.static,
    "class method": Client.of_class,
    "AsyncMock": AsyncMock(side_effect=fetch),
    "generator-based coroutine function": old_style,
    "function that returns a task": lambda question: asyncio.ensure_future(fetch(question)),
    "function that returns a gathering": lambda question: asyncio.gather(fetch(question)),  # type: ignore[dict-item, return-value]
    "functools.wraps around one": functools.wraps(fetch)(lambda question: fetch(question)),
    "to_thread": lambda question: asyncio.to_thread(str, question),
}


@pytest.mark.parametrize("name", list(_RUNNABLE))
async def test_whatever_returns_an_awaitable_runs(name: str) -> None:
    scheduler = make_scheduler()

    with no_warnings():
        answer: Any = await scheduler.submit("batch", _RUNNABLE[name], "why")

    assert answer in ("why", ["why"])
    assert account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


async def test_a_coroutine_object_is_closed_and_the_message_shows_the_line_to_write() -> None:
    scheduler = make_scheduler()
    coroutine = fetch("x")

    with no_warnings(), pytest.raises(SchedulerMisuse) as caught:
        await scheduler.submit("batch", coroutine)  # type: ignore[arg-type]

    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert str(caught.value) == (
        "submit() takes a function, got a coroutine object: "
        'write submit("batch", fetch, ...), not submit("batch", fetch(...))'
    )
    assert account(scheduler, "batch").submitted == 0
    await assert_whole(scheduler)


async def _full() -> TrafficScheduler:
    scheduler = make_scheduler(max_queued_batch=0)
    hold(scheduler)
    hold(scheduler)
    await settle()
    return scheduler


async def _closed() -> TrafficScheduler:
    scheduler = make_scheduler()
    await scheduler.close()
    return scheduler


@pytest.mark.parametrize("prepare", [_full, _closed], ids=["full", "closed"])
@pytest.mark.parametrize("options", [{}, {"priority": "high"}, {"run_timeout": -1}], ids=repr)
@pytest.mark.parametrize("kind", ["batch", "nonsense", None])
async def test_a_coroutine_object_is_closed_whatever_else_is_wrong(
    prepare: Callable[[], Awaitable[TrafficScheduler]], options: dict[str, Any], kind: Any
) -> None:
    scheduler = await prepare()
    coroutine: Any = fetch("x")

    with no_warnings(), pytest.raises(SchedulerMisuse, match="coroutine object"):
        await scheduler.submit(kind, coroutine, **options)

    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@pytest.mark.parametrize("prepare", [_full, _closed], ids=["full", "closed"])
async def test_a_refused_function_is_not_called_and_nothing_warns(
    prepare: Callable[[], Awaitable[TrafficScheduler]],
) -> None:
    scheduler = await prepare()
    mock = AsyncMock()

    with no_warnings(), pytest.raises(Rejected):
        await scheduler.submit("batch", mock)

    mock.assert_not_called()


async def stream() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


def blocking() -> str:
    return "text"


_SYNC: dict[str, tuple[Callable[[], Any], str]] = {
    "async generator function": (
        stream,
        r"returned async_generator.*: write `async for item in scheduler\.stream\(kind, stream, ",
    ),
    "generator function": (generator, "generator returned generator"),
    "plain function": (blocking, r"blocking returned str.*submit\(kind, asyncio.to_thread, blocking, ...\)"),
    "plain method": (functools.partial(Client().blocking, "x"), "partial returned str"),
    "class": (Client, "Client returned Client"),
    "builtin": (dict, "dict returned dict"),
    "lambda": (lambda: None, "<lambda> returned NoneType"),
    "MagicMock": (MagicMock(), "MagicMock returned MagicMock"),
}


@pytest.mark.parametrize("name", list(_SYNC))
async def test_a_function_that_returns_nothing_awaitable_gives_its_slot_back_and_a_hint(name: str) -> None:
    scheduler = make_scheduler()
    function, message = _SYNC[name]

    for _ in range(5):
        with no_warnings(), pytest.raises(SchedulerMisuse, match=message):
            await scheduler.submit("batch", function)

    assert account(scheduler, "batch").failed == 5
    await assert_whole(scheduler)


@pytest.mark.parametrize("value", [None, 3, "fetch", [], object()], ids=repr)
async def test_what_cannot_be_called_is_refused_before_it_is_queued(value: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(SchedulerMisuse, match=f"takes a function .* got {type(value).__name__}"):
        await scheduler.submit("batch", value)

    assert account(scheduler, "batch").submitted == 0


async def test_an_awaitable_that_is_no_coroutine_is_refused_and_left_to_its_owner() -> None:
    scheduler = make_scheduler()
    task = asyncio.ensure_future(fetch("x"))
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    for awaitable in (task, future):
        with pytest.raises(SchedulerMisuse, match=f"got {type(awaitable).__name__}"):
            await scheduler.submit("batch", awaitable)  # type: ignore[arg-type]

    assert await task == "x"
    assert not future.done()
    future.cancel()


async def test_a_wrong_number_of_arguments_is_the_functions_own_type_error() -> None:
    scheduler = make_scheduler()

    with no_warnings(), pytest.raises(TypeError, match="takes from 0 to 1 positional arguments but 2 were given"):
        await scheduler.submit("batch", fetch, "a", "b")  # type: ignore[arg-type]

    await assert_whole(scheduler)


async def test_a_coroutine_that_was_awaited_before_is_pythons_own_error() -> None:
    scheduler = make_scheduler()
    used = fetch()
    await used

    with pytest.raises(RuntimeError, match="already awaited"):
        await scheduler.submit("batch", lambda: used)

    await assert_whole(scheduler)


async def test_a_future_of_another_loop_is_asyncios_own_error_and_costs_no_slot() -> None:
    scheduler = make_scheduler()
    other = asyncio.new_event_loop()
    foreign = other.create_future()

    with pytest.raises(RuntimeError, match="attached to a different loop"):
        await scheduler.submit("batch", lambda: foreign)

    foreign.cancel()
    other.close()
    await assert_whole(scheduler)


async def test_a_submit_that_is_never_awaited_takes_nothing() -> None:
    scheduler = make_scheduler()

    scheduler.submit("batch", fetch).close()

    assert account(scheduler, "batch").submitted == 0


@each_door
async def test_a_task_that_is_cancelled_before_it_began_submits_nothing(run: Door) -> None:
    scheduler = make_scheduler()
    called = AsyncMock()

    async def caller() -> Coroutine[Any, Any, Any]:
        await asyncio.sleep(0)  # an eager task would begin at once
        return await run(scheduler, "batch", called)  # type: ignore[no-any-return]

    with no_warnings():
        task = start(caller())
        task.cancel()
        await asyncio.wait([task])

    called.assert_not_called()
    assert account(scheduler, "batch").submitted == 0


_IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    ("priority", {"priority": float("nan")}),
    ("priority", {"priority": True}),
    ("priority", {"priority": "high"}),
    ("queue_timeout", {"queue_timeout": float("nan")}),
    ("queue_timeout", {"queue_timeout": "5"}),
    ("run_timeout", {"run_timeout": 0}),
    ("label", {"label": 7}),
]


@each_door
@pytest.mark.parametrize("name, options", _IMPOSSIBLE, ids=[repr(options) for _, options in _IMPOSSIBLE])
async def test_an_impossible_option_is_refused_at_the_door_and_nothing_is_queued(
    run: Door, name: str, options: dict[str, Any]
) -> None:
    scheduler = make_scheduler()

    with pytest.raises(ConfigError, match=f"{name} must be"):
        await run(scheduler, "batch", fetch, **options)

    assert account(scheduler, "batch").submitted == 0
    await assert_whole(scheduler)


@each_door
@pytest.mark.parametrize("kind", ["", "Batch", "interactive ", 3, b"batch", object()], ids=repr)
async def test_a_kind_that_does_not_exist_is_refused_at_the_door(run: Door, kind: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(ConfigError, match="kind must be"):
        await run(scheduler, kind, fetch)

    assert account(scheduler, "interactive").submitted == account(scheduler, "batch").submitted == 0


@each_door
async def test_without_a_kind_the_message_says_what_to_write(run: Door) -> None:
    with pytest.raises(SchedulerMisuse, match='give "interactive" or "batch" as the first argument'):
        await run(make_scheduler(), None, fetch)


async def test_a_forgotten_kind_is_said_to_come_first() -> None:
    submit: Any = make_scheduler().submit
    with pytest.raises(SchedulerMisuse, match=r'the kind comes first: write submit\("interactive", fetch, ...\)'):
        await submit(fetch, "x")


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_scheduler_cannot_be_pickled_or_copied(duplicate: Callable[[object], object]) -> None:
    scheduler = make_scheduler(name="gateway")

    with pytest.raises(SchedulerMisuse, match="'gateway' belongs to this process"):
        duplicate(scheduler)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_a_stream_or_a_map_cannot_be_pickled_or_copied_and_goes_on(
    duplicate: Callable[[object], object],
) -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        yield 2

    scheduler = make_scheduler()
    both: list[Any] = [
        scheduler.stream("batch", items),
        scheduler.map("batch", functools.partial(asyncio.sleep, 1), [1, 2]),
    ]
    for readable in both:
        assert await anext(readable) == 1
        with pytest.raises(SchedulerMisuse, match="cannot be copied or pickled"):
            duplicate(readable)
        await settle()
        assert await anext(readable) == 2
        await readable.aclose()
