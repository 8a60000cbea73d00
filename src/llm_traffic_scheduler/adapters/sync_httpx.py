"""`SchedulingTransport` for synchronous clients.

Floor: fourth.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from llm_traffic_scheduler import Rejected, SchedulerMisuse, TrafficScheduler

from .http_library import library_of
from .http_rules import OnReject, Response, Rules, Select, failure_of, pool_timeout
from .sync_held_slot import SyncHeldSlot, SyncHeldStream

__all__ = ["SyncSchedulingTransport", "SyncTransport"]


@runtime_checkable
class SyncTransport(Protocol):
    """`httpx.BaseTransport` and its like."""

    def handle_request(self, request: Any) -> Any: ...
    def close(self) -> None: ...


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
        self._rules = Rules(scheduler, select, methods, on_reject)

    def handle_request(self, request: Any) -> Any:
        """Send one request, in a slot."""
        scheduler = self._rules.scheduler_for(request)
        if scheduler is None:
            return self._transport.handle_request(request)
        library = library_of(request)
        try:
            held = SyncHeldSlot(scheduler, pool_timeout(request))
        except Rejected as error:
            if self._rules.raises:
                raise
            return library.refusal(request, error)
        try:
            response: Response = self._transport.handle_request(request)
            failure = failure_of(response, held.slot)
            if not response.is_closed:
                response.stream = library.sync_body(SyncHeldStream(response, held, failure))
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
