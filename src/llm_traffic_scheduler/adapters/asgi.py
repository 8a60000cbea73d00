"""A web application's requests have a kind, and are told 503 when there is no room; no framework is loaded.

Floor: fourth.

    app.add_middleware(TrafficMiddleware, kind="interactive")
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from llm_traffic_scheduler import Kind, Rejected, traffic

__all__ = ["TrafficMiddleware"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class TrafficMiddleware:
    """Runs an ASGI application inside `traffic(kind)`: its calls to every scheduler need not name one.

    A call that was refused, by a `Rejected` that the application lets out or that caused what it lets out, also inside
    of an SDK under `schedule_client`, is answered with 503 and Retry-After, unless a response has started: then the
    exception goes on. A handler whose client hangs up before it has begun to answer is cancelled, so its calls leave
    the queue and their slots; one that has begun to answer, with a stream, finds out by itself, as `receive` says
    http.disconnect. Websockets have a kind, and no more.

    Args:
        app: the application.
        kind: of all requests, or a function of the scope that names it; its answer None leaves the request alone.
        tenant: whose request it is: a function of the scope, None for nobody's.
        queue_timeout: seconds that a call may wait for a slot, for calls that give none.

    Raises, on a request: ConfigError, SchedulerMisuse, as `traffic`.
    Cancellation: the application is cancelled, and waited for.
    """

    def __init__(
        self,
        app: App,
        kind: Kind | Callable[[MutableMapping[str, Any]], Kind | None],
        *,
        tenant: Callable[[MutableMapping[str, Any]], str | None] | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        if not callable(kind):
            traffic(kind, queue_timeout=queue_timeout)  # refuses here what it would refuse at each request
        self._app = app
        self._kind = kind
        self._tenant = tenant
        self._queue_timeout = queue_timeout

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        kind = None
        if scope["type"] in ("http", "websocket"):
            kind = self._kind(scope) if callable(self._kind) else self._kind
        if kind is None:
            await self._app(scope, receive, send)
            return
        tenant = None if self._tenant is None else self._tenant(scope)
        with traffic(kind, tenant=tenant, queue_timeout=self._queue_timeout):
            if scope["type"] == "http":
                await _Exchange(receive, send).run(self._app, scope)
            else:
                await self._app(scope, receive, send)


class _Exchange:
    """One request and its response, between the server and the application."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._started = False
        self._mail: asyncio.Queue[Message | Exception] = asyncio.Queue()
        self._read_on = asyncio.Event()
        self._read_on.set()
        self._gone: Message | None = None
        self._fault: Exception | None = None

    async def run(self, app: App, scope: MutableMapping[str, Any]) -> None:
        answering = asyncio.ensure_future(app(scope, self._from_server, self._to_server))
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not self._started and listening.exception() is None:
                return  # nobody is there to be answered
            await answering
        except Exception as error:
            refused = _refusal_in(error)
            if refused is None or self._started:
                raise
            await self._refuse(refused)
        finally:
            await _stop(listening, answering)

    async def _listen(self) -> None:
        """Read ahead by one message, and to the end once the body is in: the client may hang up at any time."""
        while True:
            await self._read_on.wait()
            self._read_on.clear()
            try:
                message = await self._receive()
            except Exception as error:  # of a middleware around this one, say, to which the body is too long
                self._fault = error
                self._mail.put_nowait(error)
                raise
            if message["type"] == "http.disconnect":
                self._gone = message
            elif not message.get("more_body", False):
                self._read_on.set()  # what comes next is the end
            self._mail.put_nowait(message)
            if self._gone is not None:
                return

    async def _from_server(self) -> Message:
        if self._gone is not None and self._mail.empty():
            return self._gone  # as often as it asks
        if self._fault is not None and self._mail.empty():
            raise self._fault
        message = await self._mail.get()
        if isinstance(message, Exception):
            raise message
        self._read_on.set()
        return message

    async def _to_server(self, message: Message) -> None:
        self._started = True
        await self._send(message)

    async def _refuse(self, error: Rejected) -> None:
        headers = [(b"content-type", b"application/json")]
        if error.retry_after is not None and error.retry_after < math.inf:
            headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
        body = json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}).encode()
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


async def _stop(*tasks: asyncio.Future[None]) -> None:
    """Cancel them and wait for their ends, whatever these are; a further cancellation of ours does not wait."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen
    await asyncio.wait(tasks)


def _refusal_in(error: BaseException) -> Rejected | None:
    """The refusal that `error` is, was raised from, or has in it: SDKs and task groups wrap what they get.

    Of one that `schedule_client` answered with a response, SDKs raise an error of their own that has the response.
    """
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, Rejected):
            return each
        extensions = getattr(getattr(each, "response", None), "extensions", None)
        if isinstance(extensions, Mapping) and isinstance(refused := extensions.get("rejected"), Rejected):
            return refused
        if id(each) in seen:
            continue
        seen.add(id(each))
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        todo += () if each.__cause__ is None else (each.__cause__,)
    return None
