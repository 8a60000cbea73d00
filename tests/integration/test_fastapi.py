"""FastAPI on uvicorn, on a real socket: clients that leave, and calls that are refused, behind the middleware.

The streaming application is the one of `examples/gateway.py`, which is what people copy.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import pytest

from llm_traffic_scheduler import CallFinished, CallQueued, Event, TrafficScheduler
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware
from tests.support import Held, account, hold, make_scheduler, settle

fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")

import gateway  # noqa: E402  # it needs what is looked for above

pytestmark = pytest.mark.asyncio(loop_factories=["real"])

T = TypeVar("T")

# Below the stream's idle timeout of a minute: what gives a slot back within it is not that.
PATIENCE = 4


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The application on a port of the loopback, on the test's own loop."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await soon(serving)


class Visitor:
    """A client that can hang up at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, port: int, path: str) -> Visitor:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: app\r\nContent-Length: 0\r\n\r\n".encode())
        return cls(reader, writer)

    def hang_up(self) -> None:
        self._writer.transport.abort()


class Source:
    """A model that says a word, unless it is silent, and the rest when the test tells it to."""

    def __init__(self, word: str = "because", tail: str = "", silent: bool = False) -> None:
        self._word = word
        self._tail = tail
        self._silent = silent
        self.told = asyncio.Event()
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()

    async def __call__(self, question: str) -> AsyncIterator[str]:
        self.asked.set()
        try:
            if not self._silent:
                yield self._word
            await self.told.wait()
            yield self._tail
        finally:
            self.closed.set()


def outcomes(scheduler: TrafficScheduler) -> list[str]:
    """What ends from here on, in order."""
    ended: list[str] = []
    scheduler.add_listener(lambda event: ended.append(event.outcome) if isinstance(event, CallFinished) else None)
    return ended


def heard(scheduler: TrafficScheduler, kind: type[Event]) -> asyncio.Event:
    """Set at the next event of that kind."""
    said = asyncio.Event()
    scheduler.add_listener(lambda event: said.set() if isinstance(event, kind) else None)
    return said


async def soon(awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def idle(scheduler: TrafficScheduler) -> None:
    await soon(scheduler.drain())
    scheduler.check()


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> TrafficScheduler:
    """The gateway's, of two slots."""
    scheduler = make_scheduler(max_queued_interactive=1)
    monkeypatch.setattr(gateway, "scheduler", scheduler)
    return scheduler


async def filled(scheduler: TrafficScheduler) -> list[Held]:
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    return held


async def test_who_leaves_while_the_model_thinks_gives_the_streams_slot_back_at_once(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = Source(), outcomes(scheduler)
    monkeypatch.setattr(gateway, "ask", model)
    async with served(gateway.app) as port:
        visitor = await Visitor.ask(port, "/chat?question=why")
        await soon(visitor.reader.readuntil(b"because"))
        assert scheduler.snapshot().interactive_running == 1

        visitor.hang_up()
        await idle(scheduler)

        assert model.closed.is_set()
        assert ended == ["cancelled"]


async def test_who_leaves_without_having_read_gives_the_streams_slot_back_at_once(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = Source("x" * 32_000_000), outcomes(scheduler)  # more than fits into the sockets: the server waits
    monkeypatch.setattr(gateway, "ask", model)
    async with served(gateway.app) as port:
        visitor = await Visitor.ask(port, "/chat?question=why")
        await soon(visitor.reader.readuntil(b"xxx"))
        assert scheduler.snapshot().interactive_running == 1

        visitor.hang_up()
        await idle(scheduler)

        assert model.closed.is_set()
        assert ended == ["cancelled"]


async def test_who_leaves_before_the_first_word_gives_the_streams_slot_back_at_once(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = Source(silent=True), outcomes(scheduler)
    monkeypatch.setattr(gateway, "ask", model)
    async with served(gateway.app) as port:
        visitor = await Visitor.ask(port, "/chat?question=why")
        await soon(model.asked.wait())
        assert scheduler.snapshot().interactive_running == 1

        visitor.hang_up()
        await idle(scheduler)

    assert model.closed.is_set()
    assert ended == ["cancelled"]


async def test_who_leaves_between_the_first_word_and_the_response_gives_the_slot_back_at_once(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended, started = Source(), outcomes(scheduler), asyncio.Event()
    monkeypatch.setattr(gateway, "ask", model)

    async def slow(pieces: Annotated[AsyncIterator[str], fastapi.Depends(gateway.answer)]) -> None:
        started.set()
        await asyncio.Event().wait()

    app = fastapi.FastAPI()
    app.add_middleware(TrafficMiddleware, kind="interactive")
    app.post("/slow")(slow)
    async with served(app) as port:
        visitor = await Visitor.ask(port, "/slow?question=why")
        await soon(started.wait())
        assert scheduler.snapshot().interactive_running == 1

        visitor.hang_up()
        await idle(scheduler)

    assert model.closed.is_set()
    assert ended == ["cancelled"]


async def test_who_leaves_while_a_stream_waits_for_its_slot_leaves_the_queue(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, waits, over = Source(), heard(scheduler, CallQueued), heard(scheduler, CallFinished)
    monkeypatch.setattr(gateway, "ask", model)
    held = await filled(scheduler)
    async with served(gateway.app) as port:
        visitor = await Visitor.ask(port, "/chat?question=why")
        await soon(waits.wait())

        visitor.hang_up()
        await soon(over.wait())
        for slot in held:
            slot.release()
        await idle(scheduler)

    assert not model.asked.is_set()
    assert account(scheduler, "interactive").cancelled == 1


async def test_a_stream_that_is_read_to_its_end_counts_as_completed(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = Source("because ", tail="of scattering"), outcomes(scheduler)
    monkeypatch.setattr(gateway, "ask", model)
    model.told.set()
    async with served(gateway.app) as port, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}/chat", params={"question": "why"})
        await idle(scheduler)

    assert (answer.status_code, answer.text) == (200, "because of scattering")
    assert ended == ["completed"]


async def test_a_refused_stream_is_a_503_that_says_when_to_come_back(
    scheduler: TrafficScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Source()
    monkeypatch.setattr(gateway, "ask", model)
    await scheduler.submit("interactive", asyncio.sleep, 0.001)  # how fast the queue moves is known from what has ended
    held = [*await filled(scheduler), hold(scheduler)]
    await settle()
    async with served(gateway.app) as port, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}/chat", params={"question": "why"})

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "QueueFull"
    assert not model.asked.is_set()
    assert account(scheduler, "interactive").rejected == 1
    for slot in held:
        slot.release()
    await idle(scheduler)


@pytest.fixture
async def no_model(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The gateway's model is at a port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as llm:
            monkeypatch.setattr(gateway, "llm", llm)
            yield


@pytest.mark.usefixtures("no_model")
async def test_a_model_that_is_down_is_a_502_and_not_an_empty_answer(scheduler: TrafficScheduler) -> None:
    ended = outcomes(scheduler)
    async with served(gateway.app) as port, httpx.AsyncClient() as client:
        reply = await client.post(f"http://127.0.0.1:{port}/chat", params={"question": "why"})
        await idle(scheduler)

    assert reply.status_code == 502
    assert reply.json() == {"detail": "the model: Connection error."}
    assert ended == ["failed"]


@pytest.mark.usefixtures("no_model")
async def test_an_evaluation_says_that_it_has_ended_with_the_model_down(
    scheduler: TrafficScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = heard(scheduler, CallFinished)
    async with gateway.lifespan(gateway.app):
        await soon(failed.wait())
        await idle(scheduler)
        await settle()

        assert capsys.readouterr().out == "evaluation: Connection error.\n"


class Handler:
    """An endpoint that answers in one piece, once it is told."""

    def __init__(self, scheduler: TrafficScheduler) -> None:
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.app = fastapi.FastAPI()
        self.app.add_middleware(TrafficMiddleware, kind="interactive")
        self.app.add_api_route("/answer", self.answer, methods=["POST"])
        self._scheduler = scheduler

    async def answer(self) -> dict[str, str]:
        return {"answer": await self._scheduler.submit(None, self._ask)}

    async def _ask(self) -> str:
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "because"


async def test_who_leaves_a_handler_that_does_not_stream_cancels_it() -> None:
    scheduler = make_scheduler()
    handler, ended = Handler(scheduler), outcomes(scheduler)
    async with served(handler.app) as port:
        visitor = await Visitor.ask(port, "/answer")
        await soon(handler.called.wait())

        visitor.hang_up()
        await idle(scheduler)

    assert handler.cancelled.is_set()
    assert ended == ["cancelled"]


async def test_who_leaves_a_handler_that_waits_for_its_slot_leaves_the_queue() -> None:
    scheduler = make_scheduler()
    handler, held = Handler(scheduler), await filled(scheduler)
    waits, over = heard(scheduler, CallQueued), heard(scheduler, CallFinished)
    async with served(handler.app) as port:
        visitor = await Visitor.ask(port, "/answer")
        await soon(waits.wait())

        visitor.hang_up()
        await soon(over.wait())
        for slot in held:
            slot.release()
        await idle(scheduler)

    assert not handler.called.is_set()
    assert account(scheduler, "interactive").cancelled == 1
