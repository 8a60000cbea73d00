"""Which requests are scheduled, by whom, and what a response's first lines say of its call.

Floor: fourth. Loads neither httpx nor httpx2: what is needed of theirs is written down here.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

from llm_traffic_scheduler import ConfigError, Slot, TrafficScheduler, kind_in_force

from .http_words import retry_after

__all__ = [
    "IDLE_TIMEOUT",
    "OnReject",
    "Request",
    "Response",
    "Rules",
    "Select",
    "Unsuccessful",
    "failure_of",
    "idle_seconds",
    "pool_timeout",
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


Select = Callable[[Any], TrafficScheduler | None]
OnReject = Literal["response", "raise"]

IDLE_TIMEOUT: Final = 60.0
"""Seconds without a read after which a response is closed, where nobody says."""


class Unsuccessful(Exception):
    """How a call ended whose response has an error status; nobody is shown it."""


class Rules:
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


def idle_seconds(idle_timeout: object) -> float:
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


def pool_timeout(request: Request) -> float:
    """Seconds that the client waits for a connection, and so for a slot; infinity: as long as it takes."""
    pool = request.extensions.get("timeout", {}).get("pool")
    return math.inf if pool is None else float(pool)


def failure_of(response: Response, slot: Slot) -> Unsuccessful | None:
    """How the call ends if nothing else happens to it; a 429 is said to the slot."""
    if response.status_code < 400:
        return None
    if response.status_code == 429:
        slot.throttled(retry_after(response.headers, time.time))
    return Unsuccessful(f"status {response.status_code}")
