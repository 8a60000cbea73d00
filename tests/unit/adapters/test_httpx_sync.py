"""Synchronous clients through the transport: they wait in their threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, Ended, QueueTimeout, current_slot, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.heard import Heard
from tests.support import account, hold, make_scheduler, settle
from tests.unit.adapters.http_clients import SSE, TOKEN, URL, lose, respond


def test_an_idle_timeout_that_a_synchronous_client_would_not_keep_is_refused(library: Any) -> None:
    client = library.Client(transport=library.MockTransport(respond(library)))
    before = client._transport

    with pytest.raises(ConfigError, match="idle_timeout is for async clients, got 5 for a Client"):
        schedule_client(client, make_scheduler(), idle_timeout=5)
    with pytest.raises(ConfigError, match="above 0"):
        schedule_client(client, make_scheduler(), idle_timeout=0)
    assert client._transport is before

    schedule_client(client, make_scheduler(), idle_timeout=None)


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
    monkeypatch.setattr("llm_traffic_scheduler.adapters.sync_held_slot.monotonic", lambda: next(looks) // 2 * 90)

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
@pytest.mark.parametrize("first", [TOKEN, b"data: [DONE]\n\n"])
async def test_a_synchronous_stream_closed_before_its_last_event_was_cancelled(library: Any, first: bytes) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()

    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield first
            yield b""

    def work() -> None:
        transport = library.MockTransport(lambda request: library.Response(200, headers=SSE, stream=Stream()))
        client = library.Client(transport=transport)
        schedule_client(client, scheduler)
        with traffic("interactive"), client.stream("POST", URL) as response:
            next(response.iter_raw())

    await asyncio.to_thread(work)

    totals = account(scheduler, "interactive")
    assert (totals.completed, totals.cancelled) == ((0, 1) if first is TOKEN else (1, 0))


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
async def test_a_synchronous_transport_whose_response_is_none_costs_no_slot(library: Any) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()

    class Transport(library.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            return None

    client = library.Client(transport=Transport())
    schedule_client(client, scheduler)

    def work() -> None:
        with traffic("interactive"), pytest.raises(AttributeError):
            client.post(URL)

    await asyncio.to_thread(work)

    assert scheduler.snapshot().running == 0


def _run_while_the_loop_stands_still(thread: threading.Thread) -> None:
    """As it would for a lock that the thread holds."""
    thread.start()
    thread.join(2)


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_collector_that_finds_a_synchronous_response_waits_for_no_loop(library: Any) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()
    holder: list[Any] = []

    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b""

    def work() -> None:
        client = library.Client(transport=library.MockTransport(lambda request: library.Response(200, stream=Stream())))
        schedule_client(client, scheduler)
        with traffic("interactive"):
            holder.append(client.send(client.build_request("POST", URL), stream=True))

    await asyncio.to_thread(work)
    thread = threading.Thread(target=lose, args=(holder,))
    with pytest.warns(ResourceWarning, match="without being closed"):
        _run_while_the_loop_stands_still(thread)
    waited = thread.is_alive()
    await scheduler.drain()

    assert not waited
    assert account(scheduler, "interactive").cancelled == 1


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


@pytest.mark.asyncio(loop_factories=["real"])
@pytest.mark.parametrize("pool,remedy", [(0.01, "the client's pool timeout of 0.01 s"), (9, "raise queue_timeout")])
async def test_a_synchronous_refusal_names_the_timeout_that_ended_the_wait(
    library: Any, pool: float, remedy: str
) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    transport = library.MockTransport(lambda request: library.Response(200))
    client = library.Client(transport=transport, timeout=library.Timeout(9, pool=pool))
    schedule_client(client, scheduler, on_reject="raise")

    def work() -> None:
        with traffic("interactive", queue_timeout=0.02):
            client.post(URL)

    with pytest.raises(QueueTimeout, match=remedy):
        await asyncio.to_thread(work)
    for slot in held:
        slot.release()
