"""`@scheduler.wrap(kind)`: each call of a coroutine function is one call of the scheduler."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, Self

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    QueueFull,
    RunTimeout,
    SchedulerMisuse,
    TrafficKind,
    TrafficScheduler,
    current_slot,
)
from tests.behaviour.doors import assert_whole, each_kind, start
from tests.support import Recorder, account, hold, make_scheduler, settle


@each_kind
async def test_each_call_is_one_call_of_the_scheduler_in_the_callers_own_task(kind: Any) -> None:
    scheduler = make_scheduler()

    @scheduler.wrap(kind, label="ask")
    async def ask(question: str) -> tuple[str, str | None, asyncio.Task[Any] | None]:
        slot = current_slot()
        return question, f"{slot.kind} {slot.label}" if slot else None, asyncio.current_task()

    assert await ask("a") == ("a", f"{kind} ask", asyncio.current_task())
    assert await ask("b") == ("b", f"{kind} ask", asyncio.current_task())
    assert account(scheduler, kind).completed == 2
    await assert_whole(scheduler)


async def test_nothing_happens_until_the_coroutine_is_awaited() -> None:
    scheduler = make_scheduler()

    @scheduler.wrap("batch")
    async def ask() -> str:
        return "answer"

    coroutine = ask()
    assert account(scheduler, "batch").submitted == 0
    assert await coroutine == "answer"


async def test_options_hold_for_each_call() -> None:
    scheduler = make_scheduler(max_queued_batch=0)
    recorder = Recorder(scheduler)

    @scheduler.wrap(TrafficKind.BATCH, run_timeout=5, label="night", priority=3)
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    for _ in range(2):
        with pytest.raises(RunTimeout):
            await sleep(10)
    held = hold(scheduler, "batch")
    await settle()
    with pytest.raises(QueueFull):
        await sleep(1)
    held.release()

    assert "CallStarted batch night" in recorder.names
    assert account(scheduler, "batch").timed_out == 2


async def test_keyword_arguments_defaults_and_names_of_our_own_options_reach_the_function() -> None:
    scheduler = make_scheduler()
    recorder = Recorder(scheduler)

    @scheduler.wrap("interactive", priority=1, label="ask")
    async def ask(*parts: int, priority: str = "none", kind: str = "none", **rest: object) -> tuple[object, ...]:
        return parts, priority, kind, rest

    assert await ask() == ((), "none", "none", {})
    assert await ask(1, 2) == ((1, 2), "none", "none", {})
    assert await ask(1, priority="mine", kind="own", label="l") == ((1,), "mine", "own", {"label": "l"})
    assert recorder.names.count("CallStarted interactive ask") == 3


class Client:
    """Methods of every sort; the scheduler is there before the class."""

    scheduler = TrafficScheduler(max_concurrency=2)

    def __init__(self, name: str) -> None:
        self.name = name

    @scheduler.wrap("batch")
    async def ask(self, question: str, *, loud: bool = False) -> str:
        return f"{self.name} {question}{'!' * loud}"

    @staticmethod
    @scheduler.wrap("batch")
    async def static(question: str) -> str:
        return question

    @classmethod
    @scheduler.wrap("batch")
    async def of_class(cls, question: str) -> tuple[type[Self], str]:
        return cls, question


async def test_methods_of_every_sort_may_be_wrapped() -> None:
    client = Client("anna")

    assert await client.ask("why?") == "anna why?"
    assert await client.ask(question="why?", loud=True) == "anna why?!"
    assert await Client.ask(client, "why?") == "anna why?"
    assert await client.static("why?") == "why?"
    assert await client.of_class("why?") == (Client, "why?")
    assert await Client.scheduler.wrap("interactive")(client.ask)("nested") == "anna nested"


async def test_what_a_wrapped_function_is_called_and_says_stays() -> None:
    scheduler = make_scheduler()

    async def ask(question: str, *, words: int = 3) -> str:
        """Ask."""
        return question * words

    wrapped = scheduler.wrap("batch")(ask)

    assert inspect.iscoroutinefunction(wrapped)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__module__) == ("ask", "Ask.", __name__)
    assert inspect.signature(wrapped) == inspect.signature(ask)
    assert inspect.unwrap(wrapped) is ask
    twice: Callable[[str], Awaitable[str]] = scheduler.wrap("batch")(functools.partial(ask, words=2))
    assert await twice("ab") == "abab"


async def test_a_cancelled_caller_leaves_the_queue_and_the_function_is_never_called() -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()

    @scheduler.wrap("interactive")
    async def never() -> None:
        pytest.fail("called")

    task = start(never())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    for call in held:
        call.release()
    await assert_whole(scheduler)


async def test_an_error_of_the_function_comes_out_as_it_is() -> None:
    scheduler = make_scheduler()
    own = ValueError()

    @scheduler.wrap("batch")
    async def fail() -> None:
        raise own

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its identity is what counts
        await fail()

    assert caught.value is own


@pytest.mark.parametrize(
    "error, kind, options",
    [
        (ConfigError, "urgent", {}),
        (ConfigError, "batch", {"priority": float("inf")}),
        (ConfigError, "batch", {"queue_timeout": True}),
        (ConfigError, None, {"run_timeout": -1}),
        (ConfigError, "interactive", {"label": b"x"}),
        (TypeError, "interactive", {"weight": 2}),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(
    error: type[Exception], kind: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(error):
        make_scheduler().wrap(kind, **options)


async def _coroutine() -> None: ...


def _sync() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


@types.coroutine
def _old_style() -> Generator[None, None, None]:
    yield


class _Callable:
    async def __call__(self) -> None: ...


_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "function": (lambda: _sync, r"not `async def`, _sync: make it so, or run it in a thread: .*to_thread, _sync"),
    "lambda": (lambda: lambda: _coroutine(), "not `async def`"),
    "class": (lambda: Client, "not `async def`, Client"),
    "callable object": (_Callable, "not `async def`, _Callable"),
    "generator function": (lambda: _generator, "got a generator function, _generator: make it `async def`"),
    "old-style coroutine function": (lambda: _old_style, "generator function"),
    "coroutine object": (
        _coroutine,
        r"coroutine object, _coroutine: give it the function, _coroutine, not _cor.*\(\.\.\.\)",
    ),
    "static method": (lambda: staticmethod(_coroutine), r"put @staticmethod above @scheduler\.wrap"),
    "class method": (lambda: classmethod(_coroutine), r"put @classmethod above @scheduler\.wrap"),  # type: ignore[arg-type]
    "text": (lambda: "ask", "got str, str"),
}


@pytest.mark.parametrize("name", list(_REFUSED))
def test_what_is_no_coroutine_function_is_refused_at_decoration(name: str) -> None:
    make, text = _REFUSED[name]

    with pytest.raises(SchedulerMisuse, match=text) as caught:
        make_scheduler().wrap("batch")(make())

    assert str(caught.value).startswith("wrap() takes a coroutine function, got ")
    gc.collect()  # a warning about a coroutine that was never awaited is an error by pytest's own settings


def test_forgotten_parentheses_are_told_from_a_wrong_kind() -> None:
    async def ask() -> None: ...

    with pytest.raises(SchedulerMisuse, match=r'write @scheduler\.wrap\("batch"\) above .*ask'):
        make_scheduler().wrap(ask)  # type: ignore[arg-type]


async def test_without_a_kind_in_force_a_call_says_so_and_decorating_does_not() -> None:
    scheduler = make_scheduler()

    @scheduler.wrap()
    async def ask() -> None:
        pytest.fail("called")

    with pytest.raises(SchedulerMisuse, match="no kind is in force"):
        await ask()


async def test_a_wrapped_function_may_be_submitted_in_other_ways() -> None:
    scheduler, other = make_scheduler(), make_scheduler()

    @scheduler.wrap("batch")
    async def ask(question: str) -> str:
        return question

    waiting: list[Awaitable[str]] = [other.submit("interactive", ask, "a"), asyncio.create_task(ask("b"))]
    assert await asyncio.gather(*waiting) == ["a", "b"]
    assert account(scheduler, "batch").completed == 2
