from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, QueueFull, kind_in_force
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware
from tests.support import hold, make_scheduler, other_tasks, settle

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY: Message = {"type": "http.request", "body": b"{}", "more_body": False}
GONE: Message = {"type": "http.disconnect"}
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body", "body": b"ok"}


class Client:
    """A server's side of one request: what it says, and what it was answered."""

    def __init__(self, *messages: Message) -> None:
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.answers: list[Message] = []
        for message in messages or (BODY,):
            self.say(message)

    def say(self, message: Message) -> None:
        self.inbox.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.answers.append(message)

    async def ask(self, app: TrafficMiddleware, kind: str = "http") -> None:
        await app({"type": kind, "path": "/"}, self.inbox.get, self.send)


def refusal() -> QueueFull:
    return QueueFull("no room", kind="interactive", queued=1, limit=1, retry_after=2.5)


async def answer(scope: Message, receive: Receive, send: Send) -> None:
    await send(START)
    await send({**END, "body": str(kind_in_force()).encode()})


@pytest.mark.parametrize("way", ["http", "websocket"])
async def test_a_request_has_the_kind_of_its_middleware_and_nothing_outside_has(way: str) -> None:
    client = Client()

    await client.ask(TrafficMiddleware(answer, "batch"), way)

    assert client.answers[-1]["body"] == b"batch"
    assert kind_in_force() is None


async def test_the_kind_may_depend_on_the_request_and_none_leaves_it_alone() -> None:
    app = TrafficMiddleware(answer, lambda scope: None if scope["type"] == "websocket" else "interactive")
    chat, socket = Client(), Client()

    await chat.ask(app)
    await socket.ask(app, "websocket")

    assert chat.answers[-1]["body"] == b"interactive"
    assert socket.answers[-1]["body"] == b"None"


async def test_the_life_of_the_application_has_no_kind() -> None:
    client = Client()

    await client.ask(TrafficMiddleware(answer, "batch"), "lifespan")

    assert client.answers[-1]["body"] == b"None"


async def test_tenant_and_timeout_are_those_of_the_calls_inside() -> None:
    scheduler = make_scheduler()

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        assert scheduler.timeouts_in_force()[0] == 3
        async with scheduler.slot() as slot:
            await send({**END, "body": slot.tenant})

    client = Client()
    await client.ask(TrafficMiddleware(work, "batch", tenant=lambda scope: "acme", queue_timeout=3))

    assert client.answers[-1]["body"] == "acme"


@pytest.mark.parametrize("wrap", ["bare", "cause", "group"])
async def test_a_refusal_is_answered_with_503_and_when_to_come_back(wrap: str) -> None:
    async def work(scope: Message, receive: Receive, send: Send) -> None:
        if wrap == "bare":
            raise refusal()
        if wrap == "group":
            raise ExceptionGroup("tasks", [ValueError("x"), refusal()])
        raise RuntimeError("connection error") from refusal()

    client = Client()
    await client.ask(TrafficMiddleware(work, "interactive"))

    start, body = client.answers
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"3"
    assert json.loads(body["body"])["error"] == {"type": "QueueFull", "message": "no room"}


async def test_a_refusal_after_the_response_has_started_is_the_servers_to_see() -> None:
    async def work(scope: Message, receive: Receive, send: Send) -> None:
        await send(START)
        raise refusal()

    client = Client()
    with pytest.raises(QueueFull):
        await client.ask(TrafficMiddleware(work, "interactive"))

    assert client.answers == [START]


async def test_other_errors_go_on_as_they_are() -> None:
    async def work(scope: Message, receive: Receive, send: Send) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await Client().ask(TrafficMiddleware(work, "interactive"))


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_hangs_up_takes_its_waiting_call_along(reads: bool) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        if reads:
            assert await receive() == BODY
        async with scheduler.slot():
            raise AssertionError("ran")

    client = Client()
    request = asyncio.create_task(client.ask(TrafficMiddleware(work, "interactive")))
    await settle()
    assert scheduler.snapshot().interactive_queued == 1
    client.say(GONE)
    await settle()

    assert request.done()
    assert request.exception() is None
    assert scheduler.snapshot().interactive_queued == 0
    assert client.answers == []
    for slot in held:
        slot.release()


async def test_a_stream_that_has_started_hears_of_the_hang_up_and_ends_itself() -> None:
    heard = []

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        heard.append(await receive())
        await asyncio.sleep(1)  # it has something to put away
        heard.append(await receive())
        await send(END)

    client = Client()
    request = asyncio.create_task(client.ask(TrafficMiddleware(work, "interactive")))
    await settle()
    client.say(GONE)
    await request

    assert heard == [GONE, GONE]
    assert client.answers == [START, END]


async def test_a_body_in_pieces_is_not_read_faster_than_the_application_takes_it() -> None:
    pieces: list[Message] = [{"type": "http.request", "body": b"x", "more_body": True} for _ in range(5)]
    go_on = asyncio.Event()
    got = []

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        await go_on.wait()
        got.extend([await receive() for _ in range(6)])

    client = Client(*pieces, BODY)
    request = asyncio.create_task(client.ask(TrafficMiddleware(work, "batch")))
    await settle()
    unread = client.inbox.qsize()
    go_on.set()
    await request

    assert unread == 5
    assert got == [*pieces, BODY]


async def test_a_cancelled_server_task_waits_for_the_application_to_end() -> None:
    ended = []

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    request = asyncio.create_task(Client().ask(TrafficMiddleware(work, "batch")))
    await settle()
    request.cancel()
    await asyncio.wait({request})

    assert request.cancelled()
    assert ended == [True]


async def test_a_second_cancel_leaves_nobody_behind_who_has_not_been_told_to_end() -> None:
    told = []

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(True)

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
        return GONE

    app = TrafficMiddleware(work, "batch")
    request = asyncio.create_task(app({"type": "http"}, receive, Client().send))
    for _ in range(2):
        await settle()
        request.cancel()
    await asyncio.wait({request})
    await asyncio.sleep(2)

    assert told == [True]
    assert other_tasks() == set()


async def test_what_goes_wrong_as_the_body_is_read_is_told_to_the_application_that_reads_it() -> None:
    said = []

    async def work(scope: Message, receive: Receive, send: Send) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="too long") as error:
                await receive()
            said.append(str(error.value))

    async def receive() -> Message:
        raise ValueError("the body is too long")

    await TrafficMiddleware(work, "batch")({"type": "http"}, receive, Client().send)

    assert said == ["the body is too long"] * 2


def test_a_kind_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        TrafficMiddleware(answer, "chat")  # type: ignore[arg-type]
