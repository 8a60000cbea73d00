"""A server that answers chat completions as OpenAI's API does: so many at a time, each after so many seconds.

Real sockets and real time, in a thread with a loop of its own; the standard library only.
    with openai_server(slots=8, seconds=0.05) as server: ... server.url ... server.served
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["OpenAIServer", "openai_server"]

_PATH = "/v1/chat/completions"
_REASONS = {200: "OK", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass
class OpenAIServer:
    """What the server does, and what it has seen.

    `throttle_after`: calls that are answered before the rest get 429 with Retry-After `retry_after`.
    `key`: what the Authorization header has to carry, None for any. `body`: sent in place of a completion.
    """

    slots: int = 8
    seconds: float = 0.05
    throttle_after: int | None = None
    retry_after: int = 7
    key: str | None = None
    body: bytes | None = None
    url: str = ""
    seen: int = 0
    requests: list[dict[str, object]] = field(default_factory=list)

    async def serve(self) -> asyncio.Server:
        """Begin to listen on a free port of the loopback."""
        self._free = asyncio.Semaphore(self.slots)
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._one(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has hung up
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        request = await reader.readexactly(int(headers.get("content-length", 0)))
        status, body = await self._answer(head[0], headers, request)
        more = f"Retry-After: {self.retry_after}\r\n" if status == 429 else ""
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    async def _answer(self, line: str, headers: dict[str, str], request: bytes) -> tuple[int, bytes]:
        if line != f"POST {_PATH} HTTP/1.1":
            return 404, b'{"error": {"message": "no such path"}}'
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return 401, b'{"error": {"message": "wrong key"}}'
        self.seen += 1
        self.requests.append(json.loads(request))
        if self.throttle_after is not None and self.seen > self.throttle_after:
            return 429, b'{"error": {"message": "slow down"}}'
        async with self._free:
            await asyncio.sleep(self.seconds)
        return 200, self.body or json.dumps(_completion(self.requests[-1])).encode()


def _completion(request: dict[str, object]) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model"),
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "blue"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }


@contextlib.contextmanager
def openai_server(
    *,
    slots: int = 8,
    seconds: float = 0.05,
    throttle_after: int | None = None,
    key: str | None = None,
    body: bytes | None = None,
) -> Iterator[OpenAIServer]:
    """A server that listens while the block runs."""
    server = OpenAIServer(slots=slots, seconds=seconds, throttle_after=throttle_after, key=key, body=body)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(server.serve(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_stop(listening), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(listening: asyncio.Server) -> None:
    listening.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    # An aborted transport closes its socket in the next pass of the loop.
    for _ in range(3):
        await asyncio.sleep(0)
