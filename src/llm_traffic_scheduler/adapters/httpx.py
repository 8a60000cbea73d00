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
import time
import warnings
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

from llm_traffic_scheduler import (
    ConfigError,
    Rejected,
    RunTimeout,
    SchedulerMisuse,
    Slot,
    TrafficScheduler,
    kind_in_force,
)

from .held_slot import HeldSlot, HeldStream, SyncHeldSlot, SyncHeldStream, Unsuccessful
from .http_library import library_of
from .http_words import body_length, is_event_stream, retry_after

__all__ = [
    "AsyncTransport",
    "Request",
    "Response",
    "SchedulingTransport",
    "SyncSchedulingTransport",
    "SyncTransport",
    "schedule_client",
]


class Request(Protocol):
    """What is needed of `httpx.Request` and `httpx2.Request`."""

    method: str
    extensions: MutableMapping[str, Any]

    @property
    def headers(self) -> Mapping[str, str]: ...


class Response(Protocol):
    """What is needed of `httpx.Response` and `httpx2.Response`."""

    status_code: int
    is_closed: bool
    stream: Any

    @property
    def headers(self) -> Mapping[str, str]: ...


@runtime_checkable
class AsyncTransport(Protocol):
    """`httpx.AsyncBaseTransport` and its like."""

    async def handle_async_request(self, request: Any) -> Any: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class SyncTransport(Protocol):
    """`httpx.BaseTransport` and its like."""

    def handle_request(self, request: Any) -> Any: ...
    def close(self) -> None: ...


Select = Callable[[Any], TrafficScheduler | None]
OnReject = Literal["response", "raise"]

_IDLE_TIMEOUT: Final = 60.0


def schedule_client(
    client: object,
    scheduler: TrafficScheduler | None = None,
    *,
    select: Select | None = None,
    methods: Collection[str] = ("POST",),
    on_reject: OnReject = "response",
    idle_timeout: float | None = _IDLE_TIMEOUT,
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
    elif _check_idle(idle_timeout) not in (_IDLE_TIMEOUT, math.inf):
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


class _Rules:
    """Which requests are scheduled, by whom, and what a refusal looks like."""

    def __init__(
        self,
        scheduler: TrafficScheduler | None,
        select: Select | None,
        methods: Collection[str],
        on_reject: OnReject,
    ) -> None:
        if scheduler is None and select is None:
            raise ConfigError("scheduler must be a TrafficScheduler where there is no select, got None")
        if isinstance(methods, str):
            raise ConfigError(f'methods must be a collection such as ("POST",), got {methods!r}')
        if on_reject not in ("response", "raise"):
            raise ConfigError(f'on_reject must be "response" or "raise", got {on_reject!r}')
        self._scheduler = scheduler
        self._select = select
        self._methods = frozenset(method.upper() for method in methods)
        self._warned = False
        self.raises = on_reject == "raise"

    def scheduler_for(self, request: Request) -> TrafficScheduler | None:
        """Whose slot the request takes; None lets it pass."""
        if request.method not in self._methods:
            return None
        scheduler = self._scheduler if self._select is None else self._select(request)
        if scheduler is None or kind_in_force() is not None:
            return scheduler
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a {request.method} request passed scheduler {scheduler.name!r} by, and so will others: no kind is in "
                'force here; write `with traffic("interactive"): ...` around the code that calls the client',
                RuntimeWarning,
                stacklevel=3,
            )
        return None


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
        idle_timeout: float | None = _IDLE_TIMEOUT,
    ) -> None:
        if not isinstance(transport, AsyncTransport):
            raise SchedulerMisuse(f"SchedulingTransport takes an async transport, got {type(transport).__name__}")
        self._transport: Any = transport
        self._rules = _Rules(scheduler, select, methods, on_reject)
        self._idle = _check_idle(idle_timeout)

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request, in a slot."""
        scheduler = self._rules.scheduler_for(request)
        if scheduler is None:
            return await self._transport.handle_async_request(request)
        library = library_of(request)
        try:
            held = await HeldSlot.take(scheduler, _pool_timeout(request))
        except Rejected as error:
            if self._rules.raises:
                raise
            return library.refusal(request, error)
        try:
            response: Response = await held.bounded(self._transport.handle_async_request(request))
            failure, sse = _look_at(response, held.slot)
            if not response.is_closed:
                length = body_length(response.headers)
                stream = HeldStream(response.stream, held, idle=self._idle, sse=sse, length=length, error=failure)
                response.stream = library.body(stream)
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


class SyncSchedulingTransport:
    """`SchedulingTransport` for synchronous clients, in threads other than the scheduler's loop's own.

    The loop must be running. No `run_timeout` ends a request, and no `idle_timeout`: a thread cannot be stopped.
    Raises, from a request: SchedulerMisuse, as `slot_from_thread`.
    """

    def __init__(
        self,
        transport: SyncTransport,
        scheduler: TrafficScheduler | None = None,
        *,
        select: Select | None = None,
        methods: Collection[str] = ("POST",),
        on_reject: OnReject = "response",
    ) -> None:
        if not isinstance(transport, SyncTransport):
            raise SchedulerMisuse(f"SyncSchedulingTransport takes a transport, got {type(transport).__name__}")
        self._transport: Any = transport
        self._rules = _Rules(scheduler, select, methods, on_reject)

    def handle_request(self, request: Any) -> Any:
        """Send one request, in a slot."""
        scheduler = self._rules.scheduler_for(request)
        if scheduler is None:
            return self._transport.handle_request(request)
        library = library_of(request)
        try:
            held = SyncHeldSlot(scheduler, _pool_timeout(request))
        except Rejected as error:
            if self._rules.raises:
                raise
            return library.refusal(request, error)
        try:
            response: Response = self._transport.handle_request(request)
            failure, sse = _look_at(response, held.slot)
            if not response.is_closed:
                length = body_length(response.headers)
                stream = SyncHeldStream(response.stream, held, sse=sse, length=length, error=failure)
                response.stream = library.sync_body(stream)
                return response
        except BaseException as error:
            held.give_back(error)
            raise
        held.give_back(failure)
        return response

    def close(self) -> None:
        """Close the transport inside."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, error, traceback)

    def __repr__(self) -> str:
        return f"<SyncSchedulingTransport around {self._transport!r}>"


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


def _check_idle(idle_timeout: object) -> float:
    """Seconds, infinity for None; ConfigError for what is no number of them that a clock could count."""
    if idle_timeout is None:
        return math.inf
    seconds = math.nan
    if isinstance(idle_timeout, int | float) and not isinstance(idle_timeout, bool):
        with suppress(OverflowError):
            seconds = float(idle_timeout)
    if not seconds > 0:
        raise ConfigError(f"idle_timeout must be a number of seconds above 0 or None, got {idle_timeout!r}")
    return seconds


def _pool_timeout(request: Request) -> float:
    pool = request.extensions.get("timeout", {}).get("pool")
    return math.inf if pool is None else float(pool)


def _look_at(response: Response, slot: Slot) -> tuple[Unsuccessful | None, bool]:
    """How the call ends if nothing else happens to it, and whether its body is to be searched for a first token."""
    if response.status_code < 400:
        return None, is_event_stream(response.headers)
    if response.status_code == 429:
        slot.throttled(retry_after(response.headers, time.time))
    return Unsuccessful(f"status {response.status_code}"), False
