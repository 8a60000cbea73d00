"""Every attempt of an LLM's SDK waits for its turn: a transport for httpx and httpx2, which those of today stand on.

Floor: fourth. Loads neither: a client brings its own library along.

    client = AsyncOpenAI()
    schedule_client(client, scheduler)
    with traffic("interactive"):
        answer = await client.chat.completions.create(...)

Below the SDK's retries and not around them, so that each attempt has a slot and a back-off sleep has none, and code
that calls the SDK, or a framework that does, need not be touched.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from llm_traffic_scheduler import ConfigError, Rejected, RunTimeout, SchedulerMisuse, TrafficScheduler

from .held_slot import HeldSlot, HeldStream
from .http_library import library_of
from .http_rules import (
    IDLE_TIMEOUT,
    OnReject,
    Request,
    Response,
    Rules,
    Select,
    failure_of,
    idle_seconds,
    pool_timeout,
)
from .sync_httpx import SyncSchedulingTransport, SyncTransport

__all__ = [
    "AsyncTransport",
    "Request",
    "Response",
    "SchedulingTransport",
    "SyncSchedulingTransport",
    "SyncTransport",
    "schedule_client",
]


@runtime_checkable
class AsyncTransport(Protocol):
    """`httpx.AsyncBaseTransport` and its like."""

    async def handle_async_request(self, request: Any) -> Any: ...
    async def aclose(self) -> None: ...


def schedule_client(
    client: object,
    scheduler: TrafficScheduler | None = None,
    *,
    select: Select | None = None,
    methods: Collection[str] = ("POST",),
    on_reject: OnReject = "response",
    idle_timeout: float | None = IDLE_TIMEOUT,
) -> None:
    """Let every request of a client take a slot of the kind in force, in place; its pool and its limits stay.

    Args:
        client: an `AsyncClient` or `Client` of httpx or httpx2, or an SDK's client that is built on one.
        scheduler: whose slots; may be left out where `select` names one for each request.
        select: gets the request; its answer None lets the request pass. It goes before `scheduler`.
        methods: requests with others pass.
        on_reject: "response" answers a refused request with 503, `retry-after` and `x-should-retry: false`, from which
            the SDKs of OpenAI and Anthropic make their own typed error, without a further attempt; the `Rejected` is
            in its `response.extensions["rejected"]`, where `TrafficMiddleware` finds it. "raise" raises the
            `Rejected` itself: OpenAI's lets it out after that one attempt, Anthropic's tries again, `max_retries`
            times, and then raises an APIConnectionError from it.
        idle_timeout: seconds without a read after which a response is closed and gives its slot back, None for no
            bound. Left out, 60; synchronous clients have no bound, for nobody but their own threads may close it.

    See `SchedulingTransport` for what a request does.

    Raises:
        SchedulerMisuse: it is no such client, or is scheduled already; nothing was changed.
        ConfigError: an argument is impossible.
    """
    inner = _http_client(client)
    options: dict[str, Any] = {"select": select, "methods": methods, "on_reject": on_reject}
    way: type[SchedulingTransport | SyncSchedulingTransport] = SyncSchedulingTransport
    if hasattr(inner, "aclose"):
        way, options = SchedulingTransport, {**options, "idle_timeout": idle_timeout}
    elif idle_seconds(idle_timeout) not in (IDLE_TIMEOUT, math.inf):
        raise ConfigError(f"idle_timeout is for async clients, got {idle_timeout!r} for a {type(client).__name__}")
    mounts: dict[Any, Any] = inner._mounts
    wrapped: dict[int, Any] = {}
    for transport in (inner._transport, *mounts.values()):
        if isinstance(transport, SchedulingTransport | SyncSchedulingTransport):
            raise SchedulerMisuse(f"{type(client).__name__} is scheduled already: call schedule_client() once")
        if transport is None or id(transport) in wrapped:
            continue
        wrapped[id(transport)] = way(transport, scheduler, **options)
    inner._transport = wrapped[id(inner._transport)]
    inner._mounts = {pattern: wrapped.get(id(transport)) for pattern, transport in mounts.items()}


class SchedulingTransport:
    """An async transport whose every request takes a slot of the kind in force, see `traffic`, until its body is over.

    The slot is given back when the response has been read, closed, has failed, or its reader was cancelled, in
    whatever task; when nobody reads it for `idle_timeout` seconds, which closes it; and when it was lost unclosed and
    the garbage collector finds it. With none in force a request passes, with one warning.

    The wait for a slot ends after the shorter of `queue_timeout` and the request's pool timeout. The `run_timeout` in
    force ends a request, while it waits for the server, with a ReadTimeout of the client's own library, and counts it
    as timed out. A status of 400 or above counts the call as failed; one that is lost, left idle, or closed before its
    last event or byte as cancelled, whose time is a lower bound. `throttled` is said at a 429. Of server-sent events
    `first_token` is said at the first that carries one, and `tokens` at the end: those of the stream's `usage` if it
    has one, else one for each event, though servers put several tokens into one; for an exact pace ask for it, by
    `stream_options={"include_usage": True}`. The time that the reader takes between two reads is in no latency and no
    pace. Bytes are passed on as they come; compressed ones are not looked into.
    Cancellation: while it waits, the request leaves the queue; later the slot is given back at once.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        scheduler: TrafficScheduler | None = None,
        *,
        select: Select | None = None,
        methods: Collection[str] = ("POST",),
        on_reject: OnReject = "response",
        idle_timeout: float | None = IDLE_TIMEOUT,
    ) -> None:
        if not isinstance(transport, AsyncTransport):
            raise SchedulerMisuse(f"SchedulingTransport takes an async transport, got {type(transport).__name__}")
        self._transport: Any = transport
        self._rules = Rules(scheduler, select, methods, on_reject)
        self._idle = idle_seconds(idle_timeout)

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request, in a slot."""
        scheduler = self._rules.scheduler_for(request)
        if scheduler is None:
            return await self._transport.handle_async_request(request)
        library = library_of(request)
        try:
            held = await HeldSlot.take(scheduler, pool_timeout(request))
        except Rejected as error:
            if self._rules.raises:
                raise
            return library.refusal(request, error)
        try:
            response: Response = await held.bounded(self._transport.handle_async_request(request))
            failure = failure_of(response, held.slot)
            if not response.is_closed:
                response.stream = library.body(HeldStream(response, held, self._idle, failure))
                return response
        except RunTimeout as error:
            held.give_back(error)
            raise library.ran_too_long(error) from error
        except BaseException as error:  # also of a transport whose response is none
            held.give_back(error)
            raise
        held.give_back(failure)  # from a cache or a mock: it came with its body, which nobody will read again
        return response

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, error, traceback)

    def __repr__(self) -> str:
        return f"<SchedulingTransport around {self._transport!r}>"


def _http_client(client: object) -> Any:
    """The client of httpx or httpx2 that `client` is, or that it is built on."""
    inner: Any = client
    while not (hasattr(inner, "_transport") and isinstance(getattr(inner, "_mounts", None), dict)):
        inner = getattr(inner, "_client", None)
        if inner is None:
            raise SchedulerMisuse(
                f"schedule_client() takes an AsyncClient or Client of httpx or httpx2, or an SDK's client built on "
                f"one, got {type(client).__name__}: put a SchedulingTransport around its transport yourself"
            )
    return inner
