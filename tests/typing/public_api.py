"""What type checkers know of the public names: here of calls, in every form. Checked by `mypy --strict`, never run.

Keeps API.md's signatures. Each line with an ignored error is a use that must be refused: `warn_unused_ignores`, part of
strict, fails where it is not. The other names: looks.py, policies.py, doubles.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import assert_type

from llm_traffic_scheduler import Outcome, Slot, Stream, StreamClosed, TrafficKind, current_slot
from tests.typing.asked import ask, blocking, ping, scheduler


async def embed(texts: list[str], /, *, model: str) -> dict[str, float]:
    return {}


def later(seconds: int) -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


def awaitable(number: int) -> Awaitable[int]:
    return asyncio.sleep(0, number)


class Client:
    async def complete(self, prompt: str, tokens: int) -> tuple[str, int]:
        return prompt, tokens

    async def __call__(self, prompt: str) -> str:
        return prompt


async def results_have_the_type_that_the_function_returns() -> None:
    assert_type(await scheduler.submit("interactive", ask, "why?"), list[str])
    assert_type(await scheduler.submit("batch", ask, "why?", 0.7, priority=5), list[str])
    assert_type(await scheduler.submit(TrafficKind.BATCH, ping), None)
    assert_type(await scheduler.submit("batch", later, 3), bytes)
    assert_type(await scheduler.submit("batch", awaitable, 3), int)
    assert_type(await scheduler.submit("batch", lambda: embed(["a"], model="small")), dict[str, float])
    assert_type(await scheduler.submit("batch", partial(ask, "why?", temperature=0.7)), list[str])
    assert_type(await scheduler.submit("batch", partial(embed, model="small"), ["a"]), dict[str, float])
    assert_type(await scheduler.submit("batch", Client().complete, "why?", 100), tuple[str, int])
    assert_type(await scheduler.submit("batch", Client(), "why?"), str)
    assert_type(await scheduler.submit("batch", asyncio.to_thread, blocking, "why?"), str)


async def every_option_is_known() -> None:
    await scheduler.submit(
        "interactive", ping, priority=0.5, queue_timeout=1, run_timeout=None, label="ping", observe=False
    )
    assert_type(await scheduler.submit("batch", ask, "why?", preemptible=True), list[str])
    assert_type(scheduler.submit_from_thread("batch", ask, "why?", preemptible=True), Future[list[str]])
    async with scheduler.slot("batch", priority=-1, queue_timeout=None, run_timeout=2.5, label="a", observe=True):
        pass


async def wrong_uses_of_submit_are_refused(kind: str) -> None:
    await scheduler.submit("interactive", ask)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask, 3)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ping, "surplus")  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask("why?"))  # type: ignore[arg-type]
    await scheduler.submit("interactive", blocking, "why?")  # type: ignore[arg-type]
    await scheduler.submit("urgent", ping)  # type: ignore[arg-type]
    await scheduler.submit(kind, ping)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask, question="why?")  # type: ignore[arg-type, call-arg]
    await scheduler.submit("interactive", ping, priority="high")  # type: ignore[arg-type]
    await scheduler.submit("batch", ping, preemptible="yes")  # type: ignore[arg-type]
    await scheduler.submit("interactive", ping, weight=2)  # type: ignore[call-arg]
    await scheduler.submit(kind="interactive", coro_fn=ping)  # type: ignore[call-arg]


async def rows() -> AsyncIterator[str]:
    yield "why?"


async def bulk_work_knows_items_and_results() -> None:
    async for answer in scheduler.map("batch", ask, ["why?"]):
        assert_type(answer, list[str])
    async for answer in scheduler.map("interactive", ask, rows(), buffer=3, progress=True, run_timeout=3.0):
        assert_type(answer, list[str])
    async with scheduler.map(None, Client().__call__, ("why?",)) as answers:
        assert_type([answer async for answer in answers], list[str])
    async with scheduler.as_completed("batch", awaitable, range(3), progress=lambda done, total: None) as outcomes:
        async for outcome in outcomes:
            assert_type(outcome, Outcome[int, int])
            assert_type(outcome.index, int)
            assert_type(outcome.item, int)
            assert_type(outcome.result, int | None)
            assert_type(outcome.error, BaseException | None)
            assert_type(outcome.get(), int)
            outcome.result = 3  # type: ignore[misc]
    async for each in scheduler.as_completed("batch", ask, rows(), priority=len, tenant=str.lower, label="night"):
        assert_type(each, Outcome[str, list[str]])
    assert_type(await anext(scheduler.map("batch", lambda text: ask(text), ["why?"])), list[str])
    assert_type(await anext(scheduler.map("batch", partial(embed, model="small"), [["a"]])), dict[str, float])
    results: AsyncIterator[bytes] = scheduler.map("batch", later, [3])
    await anext(results)


def wrong_uses_of_bulk_work_are_refused() -> None:
    scheduler.map("batch", awaitable, ["why?"])  # type: ignore[arg-type]
    scheduler.map("batch", blocking, ["why?"])  # type: ignore[arg-type]
    scheduler.map("urgent", ask, ["why?"])  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], buffer="many")  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], label=len)  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], weight=2)  # type: ignore[call-arg]
    scheduler.as_completed("batch", ask, 3)  # type: ignore[arg-type]


async def a_slot_is_what_the_block_gets() -> None:
    assert_type(scheduler.slot("batch"), AbstractAsyncContextManager[Slot])
    async with scheduler.slot("interactive", label="chat") as slot:
        assert_type(slot, Slot)
        assert_type(slot.kind, str)
        assert_type(slot.label, str | None)
        assert_type(slot.waited, float)
        slot.first_token()
        slot.tokens(3)
        slot.tokens("three")  # type: ignore[arg-type]
        slot.throttled()
        slot.throttled(20)
        slot.throttled(retry_after=None)
        slot.throttled("20")  # type: ignore[arg-type]
        slot.label = "other"  # type: ignore[misc]
    assert_type(current_slot(), Slot | None)

    with scheduler.slot("batch"):  # type: ignore[attr-defined]
        pass
    async with scheduler.slot("batch", weight=2):  # type: ignore[call-arg]
        pass


def threads_get_a_future_of_what_the_function_returns() -> None:
    assert_type(scheduler.submit_from_thread("interactive", ask, "why?"), Future[list[str]])
    assert_type(scheduler.submit_from_thread("batch", ping, label="ping", run_timeout=3).result(5), None)
    assert_type(scheduler.submit_from_thread("batch", later, 3), Future[bytes])
    assert_type(scheduler.slot_from_thread("batch", priority=2), AbstractContextManager[None])
    assert_type(scheduler.timeouts_in_force("batch"), tuple[float, float])
    with scheduler.slot_from_thread("interactive", queue_timeout=3) as nothing:
        assert_type(nothing, None)

    scheduler.submit_from_thread("interactive", ask, 3)  # type: ignore[arg-type]
    scheduler.submit_from_thread("interactive", blocking, "why?")  # type: ignore[arg-type]
    scheduler.submit_from_thread("urgent", ping)  # type: ignore[arg-type]
    scheduler.submit_from_thread("interactive", ping, weight=2)  # type: ignore[call-arg]
    scheduler.slot_from_thread("batch", weight=2)  # type: ignore[call-arg]


@scheduler.wrap("batch", priority=3, label="wrapped")
async def wrapped(question: str, *, words: int = 3) -> list[str]:
    return [question] * words


class WrappedClient:
    @scheduler.wrap("interactive")
    async def complete(self, prompt: str, tokens: int = 3) -> tuple[str, int]:
        return prompt, tokens

    @staticmethod
    @scheduler.wrap()
    async def static(prompt: str) -> bytes:
        return prompt.encode()


async def words(question: str, *, times: int = 1) -> AsyncIterator[str]:
    for _ in range(times):
        yield question


async def create(question: str) -> AsyncIterator[bytes]:
    return numbers(3)


@asynccontextmanager
async def managed(count: int) -> AsyncIterator[AsyncIterator[bytes]]:
    yield numbers(count)


async def numbers(count: int) -> AsyncIterator[bytes]:
    yield b"x" * count


async def a_stream_has_the_type_of_its_items() -> None:
    assert_type(scheduler.stream("interactive", words, "why?"), Stream[str])
    assert_type(scheduler.stream("batch", create, "why?", idle_timeout=None, run_timeout=3), Stream[bytes])
    assert_type(scheduler.stream(None, managed, 3, label="x", tenant="t"), Stream[bytes])
    async with scheduler.stream("interactive", words, "why?") as stream:
        assert_type(await stream.start(), None)
        async for word in stream:
            assert_type(word, str)
    assert_type(await anext(stream), str)
    assert_type(await stream.aclose(), None)
    assert_type(StreamClosed("x", idle=1.0).idle, float | None)

    scheduler.stream("interactive", words, 3)  # type: ignore[call-overload]
    scheduler.stream("urgent", words, "why?")  # type: ignore[call-overload]
    scheduler.stream("interactive", ping)  # type: ignore[call-overload]
    scheduler.stream("interactive", words, "why?", weight=2)  # type: ignore[call-overload]


@scheduler.wrap("interactive", label="wrapped")
async def wrapped_words(question: str, *, times: int = 1) -> AsyncIterator[str]:
    yield question * times


async def a_wrapped_generator_function_is_a_stream() -> None:
    assert_type(wrapped_words("why?", times=2), Stream[str])

    wrapped_words(3)  # type: ignore[arg-type]


async def a_wrapped_function_has_the_types_of_the_function() -> None:
    assert_type(await wrapped("why?"), list[str])
    assert_type(await wrapped(question="why?", words=4), list[str])
    assert_type(await WrappedClient().complete("why?", tokens=4), tuple[str, int])
    assert_type(await WrappedClient.static("why?"), bytes)
    assert_type(await scheduler.submit("batch", wrapped, "why?"), list[str])

    await wrapped(3)  # type: ignore[arg-type]
    await wrapped("why?", 4)  # type: ignore[call-arg]
    await WrappedClient().complete()  # type: ignore[call-arg]
    scheduler.wrap("batch")(blocking)  # type: ignore[arg-type]
    scheduler.wrap("batch")(later)  # type: ignore[arg-type]
    scheduler.wrap("urgent")  # type: ignore[arg-type]
    scheduler.wrap("batch", weight=2)  # type: ignore[call-arg]
