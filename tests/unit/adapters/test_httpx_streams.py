"""Streams through the transport: how long they keep their slot, what they tell, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import Arrived, CallAborted, Ended, FirstToken, current_slot, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.heard import Heard
from tests.support import account, cancel_all_soon, make_scheduler, settle
from tests.unit.adapters.http_clients import TOKEN, URL, answer_once, client_of, lose, stream_of


async def test_a_stream_keeps_its_slot_until_its_last_byte_and_its_reader_is_not_inside_of_it(library: Any) -> None:
    scheduler = make_scheduler()
    seen = []

    async def handler(request: Any) -> Any:
        return stream_of(library, b": hello\n\n", TOKEN)

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        with traffic("interactive"):
            async with client.stream("POST", URL) as response:
                async for _ in response.aiter_bytes():
                    seen.append(scheduler.snapshot().interactive_running)
                    assert current_slot() is None
                seen.append(scheduler.snapshot().interactive_running)

    assert seen == [1, 1, 0]
    assert account(scheduler, "interactive").completed == 1


async def test_the_first_token_is_the_first_event_with_a_token_not_the_first_byte(library: Any) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))

    async def handler(request: Any) -> Any:
        return stream_of(library, b": hello\n\n", TOKEN, TOKEN)

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        began = asyncio.get_running_loop().time()
        await answer_once(client)

    assert [type(event) for _, event in law.told] == [Arrived, FirstToken, Ended]
    assert law.told[1][0] - began == pytest.approx(2)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3)


async def test_the_events_of_an_error_are_no_tokens(library: Any) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))

    async def handler(request: Any) -> Any:
        response = stream_of(library, TOKEN, TOKEN)
        response.status_code = 500
        return response

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        await answer_once(client)

    assert [type(event) for _, event in law.told] == [Arrived, Ended]
    assert law.of(Ended)[0].tokens == 0


async def test_tokens_are_told_with_the_end_so_that_streams_have_a_pace(library: Any) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 21}}\n\n'

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN, *[TOKEN] * 4, *[usage] * (request.content == b"usage"))

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        with traffic("interactive"):
            for content in (b"none", b"usage"):
                await client.post(URL, content=content)

    counted, exact = law.of(Ended)
    assert (counted.tokens, counted.pace) == (5, pytest.approx(4 / 4))
    assert (exact.tokens, exact.pace) == (21, pytest.approx(5 / 20))


async def test_the_time_a_reader_takes_is_in_no_latency_and_no_pace(library: Any) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))

    async def handler(request: Any) -> Any:
        await asyncio.sleep(1)
        return stream_of(library, b": hello\n\n", TOKEN, TOKEN, TOKEN)

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        with traffic("interactive"):
            async with client.stream("POST", URL) as response:
                await asyncio.sleep(10)
                async for _ in response.aiter_raw():
                    await asyncio.sleep(10)

    [end] = law.of(Ended)
    assert (end.first_token, end.latency, end.pace) == (pytest.approx(3), pytest.approx(5), pytest.approx(1))


async def test_the_time_after_the_last_byte_that_was_read_is_the_readers_too(library: Any) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN, TOKEN)

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        with traffic("interactive"):
            async with client.stream("POST", URL) as response:
                await anext(response.aiter_raw())
                await asyncio.sleep(30)

    [end] = law.of(Ended)
    assert end.latency == pytest.approx(1)


async def cut_short(library: Any, response: Any, end: str) -> None:
    """Read the first bytes, and then no more, for this reason."""
    chunks = response.aiter_raw()
    await anext(chunks)
    if end == "fails":
        with pytest.raises(library.ReadError):
            await anext(chunks)
    elif end == "closed":
        await response.aclose()
    elif end == "other task":
        await asyncio.create_task(response.aclose())
    else:
        reader = asyncio.create_task(anext(chunks))
        await settle()
        reader.cancel()
        await asyncio.wait({reader})


@pytest.mark.parametrize("end", ["fails", "closed", "cancelled", "other task"])
async def test_a_stream_that_ends_early_gives_its_slot_back_at_once(library: Any, end: str) -> None:
    scheduler = make_scheduler()
    log: list[str] = []

    async def handler(request: Any) -> Any:
        failure = library.ReadError("reset")
        return stream_of(library, TOKEN, failure if end == "fails" else TOKEN, *[TOKEN] * 99, log=log)

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        response = await client.send(client.build_request("POST", URL), stream=True)
    await cut_short(library, response, end)

    totals = account(scheduler, "interactive")
    assert scheduler.snapshot().running == 0
    assert (totals.failed, totals.completed, totals.cancelled) == {
        "fails": (1, 0, 0),
        "closed": (0, 0, 1),
        "other task": (0, 0, 1),
        "cancelled": (0, 0, 1),
    }[end]
    await response.aclose()
    scheduler.check()


LAST = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
EVENTS = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    "first,headers,outcome",
    [
        (LAST, EVENTS, "completed"),
        (b"data: [DONE]\n\n", EVENTS, "completed"),
        (b'data: {"type": "response.incomplete"}\n\n', EVENTS, "completed"),
        (TOKEN, EVENTS, "cancelled"),
        (b'data: {"delta": "message_stop, response.failed, [DONE]"}\n\n', EVENTS, "cancelled"),
        (b"1234", {"content-length": "4"}, "completed"),
        (b"123", {"content-length": "4"}, "cancelled"),
        (b"123", {"content-length": "many"}, "cancelled"),
        (b"1234", {}, "cancelled"),
        (b"1234", {**EVENTS, "content-encoding": "gzip"}, "completed"),  # nobody knows
    ],
)
async def test_what_is_closed_after_its_last_event_or_byte_has_completed_and_else_was_cancelled(
    library: Any, first: bytes, headers: dict[str, str], outcome: str
) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))

    async def handler(request: Any) -> Any:
        response = stream_of(library, first, b"")
        response.headers = library.Headers(headers)
        return response

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        response = await client.send(client.build_request("POST", URL), stream=True)
    await anext(response.aiter_raw())
    await response.aclose()

    totals = account(scheduler, "interactive")
    assert (totals.completed, totals.cancelled) == ((1, 0) if outcome == "completed" else (0, 1))
    assert [end.outcome for end in law.of(Ended)] == [outcome]


async def test_a_stream_that_is_lost_is_closed_when_it_is_collected(library: Any) -> None:
    scheduler = make_scheduler()
    log: list[str] = []

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN, log=log)

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        response = await client.send(client.build_request("POST", URL), stream=True)
    assert scheduler.snapshot().running == 1
    holder = [response]
    del response
    with pytest.warns(ResourceWarning, match="without being closed"):
        lose(holder)
    await settle()

    assert scheduler.snapshot().running == 0
    assert account(scheduler, "interactive").cancelled == 1
    assert log == ["closed"]


async def test_a_stream_that_is_lost_is_closed_though_somebody_cancels_all_tasks(library: Any) -> None:
    scheduler = make_scheduler()
    log: list[str] = []

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN, log=log)

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        holder = [await client.send(client.build_request("POST", URL), stream=True)]
    with pytest.warns(ResourceWarning, match="without being closed"):
        lose(holder)
    cancel_all_soon()
    await settle()

    assert log == ["closed"]


async def test_a_stream_that_nobody_reads_on_is_closed_and_says_so_to_whoever_comes_back(library: Any) -> None:
    scheduler = make_scheduler()
    log: list[str] = []

    async def handler(request: Any) -> Any:
        return stream_of(library, *[TOKEN] * 20, log=log)

    client = client_of(library, handler)
    schedule_client(client, scheduler, idle_timeout=5)
    with traffic("interactive"):
        response = await client.send(client.build_request("POST", URL), stream=True)
    chunks = response.aiter_raw()
    for _ in range(8):  # each takes a second, so reading is no idling
        await anext(chunks)
    assert scheduler.snapshot().running == 1
    await asyncio.sleep(4.9)
    assert scheduler.snapshot().running == 1
    await asyncio.sleep(0.2)

    assert scheduler.snapshot().running == 0
    assert log == ["closed"]
    with pytest.raises(library.ReadError, match="idle_timeout"):
        await anext(chunks)


async def test_a_server_that_thinks_for_long_is_not_taken_for_an_idle_reader(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN)

    client = client_of(library, handler)
    schedule_client(client, scheduler, idle_timeout=0.3)

    response = await answer_once(client)

    assert response.content == TOKEN


async def test_the_run_timeout_is_the_librarys_own_and_ends_streams_only_while_they_are_read(library: Any) -> None:
    scheduler = make_scheduler(interactive_run_timeout=2.5)

    async def slow(request: Any) -> Any:
        if request.content == b"headers":
            await asyncio.sleep(60)
        return stream_of(library, TOKEN, TOKEN, TOKEN)

    client = client_of(library, slow)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        with pytest.raises(library.ReadTimeout, match="run_timeout"):
            await client.post(URL, content=b"headers")
        response = await client.send(client.build_request("POST", URL), stream=True)
        chunks = response.aiter_raw()
        await anext(chunks)
        await asyncio.sleep(10)  # the loop body is not cancelled
        with pytest.raises(library.ReadTimeout, match="run_timeout"):
            await anext(chunks)

    assert scheduler.snapshot().running == 0
    assert account(scheduler, "interactive").timed_out == 2


async def test_a_close_that_runs_out_of_patience_aborts_who_waits_for_a_server_and_who_reads(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        if request.content == b"headers":
            await asyncio.sleep(60)
        return stream_of(library, *[TOKEN] * 60)

    async def ask(content: bytes) -> None:
        with traffic("interactive"):
            await client.post(URL, content=content)

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    both = [asyncio.create_task(ask(content)) for content in (b"headers", b"body")]
    await asyncio.sleep(3)
    report = await scheduler.close(timeout=0)
    errors = await asyncio.gather(*both, return_exceptions=True)

    assert [type(error) for error in errors] == [CallAborted, CallAborted]
    assert report.cancelled == 2
    assert account(scheduler, "interactive").cancelled == 2


@pytest.mark.parametrize("where", ["same task", "other task"])
async def test_a_close_that_runs_out_of_patience_closes_what_nobody_reads_and_cancels_nobody(
    library: Any, where: str
) -> None:
    scheduler = make_scheduler()
    log: list[str] = []

    async def handler(request: Any) -> Any:
        return stream_of(library, *[TOKEN] * 60, log=log)

    async def leave_unread() -> Any:
        with traffic("interactive"):
            response = await client.send(client.build_request("POST", URL), stream=True)
        chunks = response.aiter_raw()
        await anext(chunks)
        if where == "other task":
            await asyncio.sleep(30)  # unrelated work of the task that took the slot
        return chunks

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    opener = asyncio.create_task(leave_unread())
    chunks = await opener if where == "same task" else None
    await asyncio.sleep(3)
    report = await scheduler.close(timeout=1)
    await settle()

    assert (report.cancelled, report.abandoned, scheduler.snapshot().running) == (1, 0, 0)
    assert account(scheduler, "interactive").cancelled == 1
    assert log == ["closed"]
    chunks = chunks or await opener
    with pytest.raises(CallAborted, match="not being read"):
        await anext(chunks)


async def test_a_close_cancels_the_task_that_reads_and_not_the_one_that_took_the_slot(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        return stream_of(library, *[TOKEN] * 60)

    async def read(response: Any) -> None:
        with pytest.raises(CallAborted):
            await response.aread()

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        response = await client.send(client.build_request("POST", URL), stream=True)
    reader = asyncio.create_task(read(response))
    await asyncio.sleep(3)
    report = await scheduler.close(timeout=1)
    await reader

    assert report.cancelled == 1
    assert asyncio.current_task().cancelling() == reader.cancelling() == 0  # type: ignore[union-attr]


async def test_a_generator_left_in_its_midst_is_closed_with_the_response(library: Any) -> None:
    closed = []

    class Stream(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                yield TOKEN
                yield TOKEN
            finally:
                closed.append(True)

    async def handler(request: Any) -> Any:
        return library.Response(200, stream=Stream())

    client = client_of(library, handler)
    schedule_client(client, make_scheduler())
    with traffic("interactive"):
        async with client.stream("POST", URL) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
    assert closed == [True]
