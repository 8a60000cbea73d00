from __future__ import annotations

import asyncio
import gc
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from llm_traffic_scheduler import (
    Arrived,
    CallAborted,
    ConfigError,
    Ended,
    FirstToken,
    QueueTimeout,
    SchedulerMisuse,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.adapters.httpx import SchedulingTransport, SyncSchedulingTransport, schedule_client
from tests.heard import Heard
from tests.support import account, hold, make_scheduler, settle

URL = "http://llm/v1/chat"
TOKEN = b'data: {"choices": [{"delta": {"content": "The"}}]}\n\n'
SSE = {"content-type": "text/event-stream"}

Handler = Callable[[Any], Awaitable[Any]]


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def client_of(library: Any, handler: Handler, **settings: Any) -> Any:
    return library.AsyncClient(transport=library.MockTransport(handler), **settings)


def stream_of(library: Any, *chunks: bytes | BaseException, log: list[str] | None = None) -> Any:
    """A response whose body comes in pieces, each a pass of the loop later; an exception among them is raised."""

    class Stream(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in chunks:
                await asyncio.sleep(1)
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk

        async def aclose(self) -> None:
            if log is not None:
                log.append("closed")

    return library.Response(200, headers=SSE, stream=Stream())


def lose(holder: list[Any]) -> None:
    """Forget what is in it, and let the collector look."""
    holder.clear()
    gc.collect()


async def answer_once(client: Any) -> Any:
    with traffic("interactive"):
        return await client.post(URL, json={})


async def test_a_request_has_a_slot_while_it_waits_for_its_server_and_none_after(library: Any) -> None:
    scheduler = make_scheduler()
    running = []

    async def handler(request: Any) -> Any:
        running.append(scheduler.snapshot().batch_running)
        await asyncio.sleep(1)
        return library.Response(200, json={})

    async with client_of(library, handler) as client:
        schedule_client(client, scheduler)
        with traffic("batch"):
            both = await asyncio.gather(client.post(URL), client.post(URL))

    assert [response.status_code for response in both] == [200, 200]
    assert running == [1, 1]
    assert account(scheduler, "batch").completed == 2
    scheduler.check()


async def test_a_method_that_is_not_named_and_a_request_that_is_not_selected_pass(library: Any) -> None:
    scheduler = make_scheduler()
    handler = respond(library)

    async with client_of(library, handler) as client:
        schedule_client(client, select=lambda request: scheduler if b"mine" in request.content else None)
        with traffic("interactive"):
            await client.get(URL)
            await client.post(URL, content=b"yours")
            assert account(scheduler, "interactive").submitted == 0
            await client.post(URL, content=b"mine")

    assert account(scheduler, "interactive").submitted == 1


async def test_without_a_kind_requests_pass_with_one_warning(library: Any) -> None:
    scheduler = make_scheduler()
    async with client_of(library, respond(library)) as client:
        schedule_client(client, scheduler)
        with pytest.warns(RuntimeWarning, match="no kind is in force") as seen:
            _ = [await client.post(URL) for _ in range(2)]

    assert len(seen) == 1
    assert account(scheduler, "interactive").submitted == 0


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

    totals = account(scheduler, "interactive")
    assert scheduler.snapshot().running == 0
    assert (totals.failed, totals.completed, totals.cancelled) == {
        "fails": (1, 0, 0),
        "closed": (0, 1, 0),
        "other task": (0, 1, 0),
        "cancelled": (0, 0, 1),
    }[end]
    await response.aclose()
    scheduler.check()


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


async def test_a_stream_that_nobody_reads_on_is_closed_and_says_so_to_who_comes_back(library: Any) -> None:
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


async def test_a_refusal_is_a_503_that_says_not_to_try_again_or_the_exception(library: Any) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    plain, raising = client_of(library, respond(library)), client_of(library, respond(library))
    schedule_client(plain, scheduler)
    schedule_client(raising, scheduler, on_reject="raise")

    with traffic("interactive", queue_timeout=0):
        response = await plain.post(URL)
        with pytest.raises(QueueTimeout):
            await raising.post(URL)

    assert response.status_code == 503
    assert response.headers["x-should-retry"] == "false"
    assert json.loads(response.content)["error"]["code"] == "QueueTimeout"
    assert account(scheduler, "interactive").rejected == 2
    for slot in held:
        slot.release()


@pytest.mark.parametrize("queue_timeout,pool,waits", [(None, 3.0, 3), (2.0, 3.0, 2), (4.0, 3.0, 3), (4.0, None, 4)])
async def test_the_wait_ends_with_the_shorter_of_the_two_timeouts(
    library: Any, queue_timeout: float | None, pool: float | None, waits: float
) -> None:
    scheduler = make_scheduler(interactive_queue_timeout=50)
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    client = client_of(library, respond(library), timeout=library.Timeout(100, pool=pool))
    schedule_client(client, scheduler)
    began = asyncio.get_running_loop().time()

    with traffic("interactive", queue_timeout=queue_timeout):
        response = await client.post(URL)

    assert response.status_code == 503
    assert asyncio.get_running_loop().time() - began == pytest.approx(waits)
    for slot in held:
        slot.release()


async def test_a_request_cancelled_while_it_waits_leaves_the_queue(library: Any) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    client = client_of(library, respond(library))
    schedule_client(client, scheduler)
    request = asyncio.create_task(answer_once(client))
    await settle()
    request.cancel()
    await asyncio.wait({request})

    assert request.cancelled()
    assert scheduler.snapshot().interactive_queued == 0
    assert account(scheduler, "interactive").cancelled == 1
    for slot in held:
        slot.release()


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
    assert account(scheduler, "interactive").failed == 2


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


async def test_a_request_inside_of_a_call_runs_in_its_slot(library: Any) -> None:
    scheduler = make_scheduler()
    seen = []

    async def handler(request: Any) -> Any:
        seen.append(scheduler.snapshot().running)
        return library.Response(200)

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    await scheduler.submit("batch", client.post, URL)

    assert seen == [1]
    assert account(scheduler, "batch").completed == 1


async def test_a_batch_call_around_a_request_is_preempted_with_it_and_sends_it_again(library: Any) -> None:
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)
    log = []

    async def handler(request: Any) -> Any:
        log.append(f"{request.content.decode()} begins")
        try:
            await asyncio.sleep(200)
        except asyncio.CancelledError:
            log.append(f"{request.content.decode()} is cancelled")
            raise
        return library.Response(200)

    client = client_of(library, handler, timeout=None)
    schedule_client(client, scheduler)
    batch = []
    for content, then in ((b"old", 100), (b"new", 1)):
        send = partial(client.post, URL, content=content)
        batch.append(asyncio.create_task(scheduler.submit("batch", send, preemptible=True)))
        await asyncio.sleep(then)
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    assert all(each.started for each in held)
    for each in held:
        each.release()

    assert [(await each).status_code for each in batch] == [200, 200]
    assert log == ["old begins", "new begins", "new is cancelled", "new begins"]
    assert account(scheduler, "batch").preempted == 1
    assert account(scheduler, "batch").completed == 2


async def test_a_429_is_told_to_the_scheduler_and_an_error_status_is_a_failure(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        return library.Response(429, headers={"retry-after": "30"})

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    await answer_once(client)

    assert account(scheduler, "interactive").failed == 1
    assert scheduler._home.governor.throttled_until == pytest.approx(asyncio.get_running_loop().time() + 30)


async def test_an_error_that_is_closed_unread_is_a_failure_too(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        response = stream_of(library, b"{}")
        response.status_code = 500
        return response

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    with traffic("interactive"):
        async with client.stream("POST", URL):
            pass

    assert account(scheduler, "interactive").failed == 1


async def test_mounts_are_wrapped_and_holes_in_them_stay(library: Any) -> None:
    scheduler = make_scheduler()
    shared = library.MockTransport(respond(library))
    client = library.AsyncClient(transport=shared, mounts={"http://a": shared, "http://b": None, "all://c": shared})
    schedule_client(client, scheduler)

    kinds = {type(transport).__name__ for transport in client._mounts.values()}
    with traffic("interactive"):
        for host in "abcd":
            await client.post(f"http://{host}/")

    assert kinds == {"SchedulingTransport", "NoneType"}
    assert {*client._mounts.values()} == {client._transport, None}
    assert account(scheduler, "interactive").completed == 4


async def test_a_client_is_scheduled_once(library: Any) -> None:
    client = client_of(library, respond(library))
    schedule_client(client, make_scheduler())

    with pytest.raises(SchedulerMisuse, match="already"):
        schedule_client(client, make_scheduler())


@pytest.mark.parametrize(
    "settings,word",
    [
        ({"on_reject": "shout"}, "on_reject"),
        ({"methods": "POST"}, "methods"),
        ({"idle_timeout": 0}, "idle_timeout"),
        ({"idle_timeout": float("nan")}, "idle_timeout"),
    ],
)
def test_an_impossible_argument_changes_nothing(library: Any, settings: Any, word: str) -> None:
    client = client_of(library, respond(library))
    before = client._transport

    with pytest.raises(ConfigError, match=word):
        schedule_client(client, make_scheduler(), **settings)
    with pytest.raises(ConfigError, match="scheduler"):
        schedule_client(client)

    assert client._transport is before


def test_an_idle_timeout_that_a_synchronous_client_would_not_keep_is_refused(library: Any) -> None:
    client = library.Client(transport=library.MockTransport(respond(library)))
    before = client._transport

    with pytest.raises(ConfigError, match="idle_timeout is for async clients, got 5 for a Client"):
        schedule_client(client, make_scheduler(), idle_timeout=5)
    with pytest.raises(ConfigError, match="above 0"):
        schedule_client(client, make_scheduler(), idle_timeout=0)
    assert client._transport is before

    schedule_client(client, make_scheduler(), idle_timeout=None)


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(SchedulerMisuse, match="got object"):
        schedule_client(object(), make_scheduler())
    with pytest.raises(SchedulerMisuse, match="async transport"):
        SchedulingTransport(object(), make_scheduler())  # type: ignore[arg-type]
    with pytest.raises(SchedulerMisuse, match="takes a transport"):
        SyncSchedulingTransport(object(), make_scheduler())  # type: ignore[arg-type]


async def test_a_request_of_another_library_is_refused() -> None:
    class Elsewhere:
        method = "POST"

    class Transport:
        async def handle_async_request(self, request: Any) -> Any: ...
        async def aclose(self) -> None: ...

    with pytest.raises(SchedulerMisuse, match="httpx"), traffic("batch"):
        await SchedulingTransport(Transport(), make_scheduler()).handle_async_request(Elsewhere())


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_synchronous_client_takes_a_slot_from_its_thread_until_the_body_is_read(library: Any) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()
    seen = []

    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield TOKEN

    def handler(request: Any) -> Any:
        seen.append((scheduler.snapshot().batch_running, threading.current_thread() is threading.main_thread()))
        return library.Response(200, headers=SSE, stream=Stream())

    def work() -> Any:
        with library.Client(transport=library.MockTransport(handler)) as client:
            schedule_client(client, scheduler)
            with traffic("batch"), client.stream("POST", URL) as response:
                seen.append((scheduler.snapshot().batch_running, current_slot() is None))
                return response.read()

    assert await asyncio.to_thread(work) == TOKEN
    assert seen == [(1, False), (1, True)]
    assert account(scheduler, "batch").completed == 1


@pytest.mark.asyncio(loop_factories=["real"])
@pytest.mark.parametrize("slow", ["reader", "server"])
async def test_a_synchronous_stream_tells_its_tokens_and_nothing_of_its_readers_time(
    library: Any, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make_scheduler(policy=(law := Heard()))
    await scheduler.drain()
    looks = itertools.count(1 if slow == "reader" else 0)  # a read begins with every second one
    monkeypatch.setattr("llm_traffic_scheduler.adapters.held_slot.monotonic", lambda: next(looks) // 2 * 90)

    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield TOKEN
            yield TOKEN

    def work() -> None:
        transport = library.MockTransport(lambda request: library.Response(200, headers=SSE, stream=Stream()))
        with library.Client(transport=transport) as client:
            schedule_client(client, scheduler)
            with traffic("interactive"):
                client.post(URL)

    await asyncio.to_thread(work)

    [end] = law.of(Ended)
    assert end.tokens == 2
    arrived, _, ended = (at for at, _ in law.told)
    lived = pytest.approx(ended - arrived, abs=1e-6)
    assert (end.latency == lived) is (slow == "server")
    assert end.latency >= 0  # no more is taken off than there was


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_synchronous_response_that_fails_or_is_lost_gives_its_slot_back(library: Any) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()

    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            raise library.ReadError("reset")
            yield b""

    def work() -> None:
        client = library.Client(transport=library.MockTransport(lambda request: library.Response(200, stream=Stream())))
        schedule_client(client, scheduler)
        with traffic("interactive"):
            with pytest.raises(library.ReadError):
                client.post(URL)
            response = client.send(client.build_request("POST", URL), stream=True)
            holder = [response]
            del response
            with pytest.warns(ResourceWarning, match="without being closed"):
                lose(holder)

    await asyncio.to_thread(work)
    await scheduler.drain()

    totals = account(scheduler, "interactive")
    assert (totals.failed, totals.cancelled) == (1, 1)


@pytest.mark.asyncio(loop_factories=["real"])
@pytest.mark.parametrize("way", ["response", "raise"])
async def test_a_synchronous_request_is_refused_as_an_async_one(library: Any, way: Any) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    client = library.Client(transport=library.MockTransport(lambda request: library.Response(200)))
    schedule_client(client, scheduler, on_reject=way)

    def work() -> Any:
        with traffic("interactive", queue_timeout=0):
            return client.post(URL).status_code

    if way == "raise":
        with pytest.raises(QueueTimeout):
            await asyncio.to_thread(work)
    else:
        assert await asyncio.to_thread(work) == 503
    assert account(scheduler, "interactive").rejected == 1
    for slot in held:
        slot.release()
    await settle()
    assert await asyncio.to_thread(work) == 200
    assert scheduler.snapshot().running == 0


def respond(library: Any) -> Handler:
    async def handler(request: Any) -> Any:
        return library.Response(200, json={})

    return handler
