"""Requests through the transport, of asynchronous clients: whose slot they take, and how they are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, QueueTimeout, SchedulerMisuse, traffic
from llm_traffic_scheduler.adapters.httpx import SchedulingTransport, SyncSchedulingTransport, schedule_client
from tests.support import account, hold, make_scheduler, settle
from tests.unit.adapters.http_clients import TOKEN, URL, answer_once, client_of, respond, stream_of


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


@pytest.mark.parametrize("answer", ["nothing", "a body of the wrong kind"])
async def test_a_transport_whose_response_is_none_costs_no_slot(library: Any, answer: str) -> None:
    scheduler = make_scheduler()

    class Body(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b""

    class Transport(library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            return None if answer == "nothing" else library.Response(200, stream=Body())

    client = library.AsyncClient(transport=Transport())
    schedule_client(client, scheduler)
    with pytest.raises((AttributeError, TypeError)):
        await answer_once(client)

    assert scheduler.snapshot().running == 0
    assert account(scheduler, "interactive").failed == 1


async def test_a_server_that_tells_of_more_tokens_than_there_are_numbers_costs_no_slot(library: Any) -> None:
    scheduler = make_scheduler()

    async def handler(request: Any) -> Any:
        return stream_of(library, TOKEN, b'data: {"usage": {"completion_tokens": ' + b"9" * 4000 + b"}}\n\n")

    client = client_of(library, handler)
    schedule_client(client, scheduler)
    await answer_once(client)

    assert scheduler.snapshot().running == 0
    assert account(scheduler, "interactive").completed == 1


@pytest.mark.parametrize("timeout", [10**400, "5", True, float("nan")])
async def test_an_idle_timeout_that_is_no_number_of_seconds_is_refused_at_once(library: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="idle_timeout must be a number of seconds above 0 or None"):
        schedule_client(library.AsyncClient(), make_scheduler(), idle_timeout=timeout)


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
