"""Clients of both libraries on a server that is a function."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from llm_traffic_scheduler import traffic

__all__ = ["SSE", "TOKEN", "URL", "Handler", "answer_once", "client_of", "lose", "respond", "stream_of"]

URL = "http://llm/v1/chat"
TOKEN = b'data: {"choices": [{"delta": {"content": "The"}}]}\n\n'
SSE = {"content-type": "text/event-stream"}
Handler = Callable[[Any], Awaitable[Any]]


def client_of(library: Any, handler: Handler, **settings: Any) -> Any:
    return library.AsyncClient(transport=library.MockTransport(handler), **settings)


def stream_of(library: Any, *chunks: bytes | BaseException, log: list[str] | None = None) -> Any:
    """A response whose body comes in pieces, each a second later; an exception among them is raised."""

    class Stream(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in chunks:
                await asyncio.sleep(1)
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk

        async def aclose(self) -> None:
            if log is not None:
                log.append("closed")

    return library.Response(200, headers=SSE, stream=Stream())


def lose(holder: list[Any]) -> None:
    """Forget what is in it, and let the collector look."""
    holder.clear()
    gc.collect()


async def answer_once(client: Any) -> Any:
    with traffic("interactive"):
        return await client.post(URL, json={})


def respond(library: Any) -> Handler:
    async def handler(request: Any) -> Any:
        return library.Response(200, json={})

    return handler
