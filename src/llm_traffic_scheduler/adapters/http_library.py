"""What has to be of a client's own library, httpx or httpx2: bodies, answers and errors.

Floor: fourth. Loads neither: whoever hands over a request has loaded its library.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any, Final, Self

from llm_traffic_scheduler import Rejected, RunTimeout, SchedulerMisuse

from .held_slot import HeldStream
from .http_words import refusal_body, refusal_headers
from .sync_held_slot import SyncHeldStream

__all__ = ["Library", "library_of"]

_NAMES: Final = ("httpx", "httpx2")


class Library:
    """Makes what the library insists on having made itself."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module
        own = {"library": self}
        self.body: Any = type("ScheduledBody", (_Body, self._module.AsyncByteStream), own)
        self.sync_body: Any = type("SyncScheduledBody", (_SyncBody, self._module.SyncByteStream), own)

    def refusal(self, request: object, error: Rejected) -> object:
        """A response that says no; SDKs keep it in the error that they make of it, for `TrafficMiddleware` to find."""
        headers, content, more = refusal_headers(error), refusal_body(error), {"rejected": error}
        return self._module.Response(503, headers=headers, content=content, request=request, extensions=more)

    def ran_too_long(self, error: RunTimeout) -> Exception:
        """The error by which SDKs know that a server took too long."""
        timeout: Exception = self._module.ReadTimeout(str(error))
        return timeout

    def left_idle(self) -> Exception:
        """For a reader that comes back too late."""
        lost: Exception = self._module.ReadError("the response was closed: nobody had read it for idle_timeout seconds")
        return lost


def library_of(request: object) -> Library:
    """The library that a request comes from, be it of a class derived from the library's.

    Raises:
        SchedulerMisuse: from none that is known.
    """
    return _library_of(type(request))  # type: ignore[arg-type]  # mypy holds that `type` has no hash


@cache
def _library_of(request: type[object]) -> Library:
    for base in request.__mro__:
        if (name := base.__module__.partition(".")[0]) in _NAMES:
            return _library(name)
    raise SchedulerMisuse(f"a request of httpx or httpx2 is needed, got {request.__module__}.{request.__qualname__}")


@cache
def _library(name: str) -> Library:
    return Library(sys.modules[name])


class _Body:
    """What the client has of a response's body. Nothing of ours refers to it, so that it can be lost."""

    library: Library

    def __init__(self, stream: HeldStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._stream.idled:
            raise self.library.left_idle()
        try:
            return await self._stream.read()
        except RunTimeout as error:
            raise self.library.ran_too_long(error) from error

    async def aclose(self) -> None:
        await self._stream.close()

    def __del__(self) -> None:
        _lost(self, self._stream)


class _SyncBody:
    library: Library

    def __init__(self, stream: SyncHeldStream) -> None:
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return self._stream.read()

    def close(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        _lost(self, self._stream)


def _lost(body: object, stream: HeldStream | SyncHeldStream) -> None:
    if not stream.over:
        stream.drop()
        message = "a response was lost without being closed, and kept its slot: close it, or use `async with`"
        warnings.warn(message, ResourceWarning, stacklevel=3, source=body)
