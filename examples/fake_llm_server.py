"""A server that behaves like the real ones, for trying things out without a GPU or a key.

    python examples/fake_llm_server.py --port 8100 --max-num-seqs 4

It speaks OpenAI's chat completions and Anthropic's messages, streaming and not, and batches as vLLM does: so many
sequences at a time, the rest wait; a new one's prefill holds up everybody's next token. `GET /metrics` is vLLM's, and
`GET /seen` is what it has counted. With `--port 0` it takes a free port; its address is the first line it prints.

A request may ask for trouble, in the query or a header: `?fault=reset` or `x-fault: reset`.
    hang         no answer at all            throttle     429 with Retry-After: 1
    slow_tail    the last token takes 30 s   error        500
    reset        dies in mid-stream          no_usage     tokens are not counted
Any other is refused with 400.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from llm_traffic_scheduler.simulation.arguments import Parser, whole

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed: pip install starlette uvicorn")

__all__ = ["FAULTS", "FakeLLM", "StreamReset", "app_of"]

FAULTS: Final = frozenset({"error", "hang", "no_usage", "reset", "slow_tail", "throttle"})
_TAIL: Final = 30.0
_WORDS: Final = ("The", " sky", " is", " blue", " because", " of", " scattering", ".")


class StreamReset(ConnectionError):
    """Ends a connection in the middle of a response."""


@dataclass
class FakeLLM:
    """An engine, and what it has seen.

    Args:
        max_num_seqs: sequences in a batch. kv_tokens: room for their tokens, for the gauge only.
        prefill, token: seconds for a prompt, during which the whole batch stands still, and for one token.
        tokens: in an answer; less where the request says `max_tokens`.
        throttle_after: requests after which the rest get 429. retry_after: what they are told, as the header says it.
        throttle_first: this many get 429 before any is answered.
    """

    max_num_seqs: int = 8
    prefill: float = 0.02
    token: float = 0.01
    tokens: int = 8
    kv_tokens: int = 4096
    throttle_after: int | None = None
    throttle_first: int = 0
    retry_after: str = "1"
    seen: int = 0
    faulty: list[str] = field(default_factory=list)  # the next requests' faults, first come, first served
    running: int = 0
    waiting: int = 0
    most_running: int = 0
    most_present: int = 0  # running and waiting
    left: int = 0  # sequences whose client has gone before their end
    _held_up_until: float = 0.0

    def __post_init__(self) -> None:
        self._batch = asyncio.Semaphore(self.max_num_seqs)

    @asynccontextmanager
    async def sequence(self) -> AsyncIterator[None]:
        """A place in the batch, and the prompt read."""
        self.waiting += 1
        self.most_present = max(self.most_present, self.waiting + self.running)
        try:
            await self._batch.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            now = asyncio.get_running_loop().time()
            self._held_up_until = max(now, self._held_up_until) + self.prefill
            await asyncio.sleep(self._held_up_until - now)
            yield
        except BaseException:
            self.left += 1
            raise
        finally:
            self.running -= 1
            self._batch.release()

    async def decode(self, count: int, fault: str | None) -> AsyncIterator[str]:
        """The answer's tokens."""
        for index in range(count):
            await asyncio.sleep(self.token)
            # Others' prefills: those that begin while it waits are caught with the next token.
            await asyncio.sleep(self._held_up_until - asyncio.get_running_loop().time())
            if fault == "slow_tail" and index == count - 1:
                await asyncio.sleep(_TAIL)
            if fault == "reset" and index == count // 2:
                raise StreamReset("as was asked for")
            yield _WORDS[index % len(_WORDS)]

    def throttles(self, fault: str | None) -> bool:
        """Whether this request, the latest seen, gets 429."""
        late = self.throttle_after is not None and self.seen > self.throttle_after
        return fault == "throttle" or late or self.seen <= self.throttle_first

    def counted(self) -> dict[str, int]:
        """Requests seen, sequences there are, the most at a time since the last look, those whose client has left."""
        names = ("seen", "running", "waiting", "most_running", "most_present", "left")
        counts = {name: getattr(self, name) for name in names}
        self.most_running, self.most_present = self.running, self.running + self.waiting
        return counts

    def metrics(self) -> str:
        """vLLM's gauges."""
        used = min(1.0, self.running * (self.tokens + 9) / self.kv_tokens)
        values = {"num_requests_running": self.running, "num_requests_waiting": self.waiting}
        lines = []
        for name, value in {**values, "kv_cache_usage_perc": used}.items():
            lines += [f"# TYPE vllm:{name} gauge", f'vllm:{name}{{engine="0",model_name="fake"}} {float(value)}']
        return "\n".join([*lines, ""])


def app_of(engine: FakeLLM) -> Starlette:
    """The engine behind HTTP."""

    async def chat(request: Request) -> Response:
        return await _answer(engine, request, _Chat)

    async def messages(request: Request) -> Response:
        return await _answer(engine, request, _Messages)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(engine.metrics(), media_type="text/plain; version=0.0.4")

    async def seen(_: Request) -> Response:
        return JSONResponse(engine.counted())

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model", "created": 0}]})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/models", models),
            Route("/metrics", metrics),
            Route("/seen", seen),
        ]
    )


async def _answer(engine: FakeLLM, request: Request, form: type[_Chat] | type[_Messages]) -> Response:
    try:
        body = await request.json()
    except ClientDisconnect:
        return Response(status_code=499)
    engine.seen += 1
    fault = request.query_params.get("fault") or request.headers.get("x-fault")
    if fault and fault not in FAULTS:
        said = f"no such fault: {fault!r}; there are {', '.join(sorted(FAULTS))}"
        return JSONResponse(form.error("invalid_request_error", said), status_code=400)
    if fault is None and engine.faulty:
        fault = engine.faulty.pop(0)
    if engine.throttles(fault):
        headers = {"retry-after": engine.retry_after}
        return JSONResponse(form.error("rate_limit_error", "slow down"), status_code=429, headers=headers)
    if fault == "error":
        return JSONResponse(form.error("api_error", "as was asked for"), status_code=500)
    asked = body.get("max_tokens") or body.get("max_completion_tokens") or engine.tokens
    shape = form(str(body.get("model")), min(int(asked), engine.tokens), fault != "no_usage")
    if body.get("stream"):
        return StreamingResponse(_stream(engine, shape, fault), media_type="text/event-stream")
    if fault == "reset":
        return StreamingResponse(_cut_off(engine, shape.count), media_type="application/json")
    text = await _until_gone(request, _whole(engine, shape.count, fault))
    return Response(status_code=499) if text is None else JSONResponse(shape.whole(text))


async def _stream(engine: FakeLLM, shape: _Chat | _Messages, fault: str | None) -> AsyncIterator[str]:
    for event in shape.head():
        yield event
    async with engine.sequence():
        if fault == "hang":
            await asyncio.Event().wait()
        async for token in engine.decode(shape.count, fault):
            yield shape.piece(token)
    for event in shape.tail():
        yield event


async def _whole(engine: FakeLLM, count: int, fault: str | None) -> str:
    async with engine.sequence():
        if fault == "hang":
            await asyncio.Event().wait()
        return "".join([token async for token in engine.decode(count, fault)])


async def _cut_off(engine: FakeLLM, count: int) -> AsyncIterator[str]:
    yield "{"
    await _whole(engine, count, "reset")


async def _until_gone(request: Request, work: object) -> str | None:
    """What the coroutine returns; None, and no further work, when the client hangs up first."""
    task: asyncio.Task[str] = asyncio.ensure_future(work)  # type: ignore[call-overload]
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _event(data: object, name: str | None = None) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


class _Chat:
    """OpenAI's words."""

    def __init__(self, model: str, count: int, usage: bool) -> None:
        self.count = count
        self._head = {"id": "chatcmpl-1", "created": 0, "model": model}
        self._usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count} if usage else None

    @staticmethod
    def error(kind: str, message: str) -> object:
        return {"error": {"type": kind, "message": message, "code": None, "param": None}}

    def whole(self, text: str) -> object:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}

    def head(self) -> list[str]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def piece(self, token: str) -> str:
        return self._chunk({"content": token})

    def tail(self) -> list[str]:
        return [self._chunk({}, "stop"), _event("[DONE]")]

    def _chunk(self, delta: object, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        usage = {} if reason is None or self._usage is None else {"usage": self._usage}
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage})


class _Messages:
    """Anthropic's words."""

    def __init__(self, model: str, count: int, usage: bool) -> None:
        self.count = count
        self._usage = {"input_tokens": 9, "output_tokens": count} if usage else {"input_tokens": 0, "output_tokens": 0}
        self._head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}

    @staticmethod
    def error(kind: str, message: str) -> object:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def whole(self, text: str) -> object:
        content = [{"type": "text", "text": text}]
        return {**self._head, "content": content, "stop_reason": "end_turn", "usage": self._usage}

    def head(self) -> list[str]:
        message: dict[str, object] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 9, "output_tokens": 0},
        }
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [self._named({"type": "message_start", "message": message}), self._named(block)]

    def piece(self, token: str) -> str:
        return self._named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": token}})

    def tail(self) -> list[str]:
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        return [
            self._named({"type": "content_block_stop", "index": 0}),
            self._named({"type": "message_delta", "delta": delta, "usage": self._usage}),
            self._named({"type": "message_stop"}),
        ]

    def _named(self, data: dict[str, object]) -> str:
        return _event(data, str(data["type"]))


def _port(text: str) -> int:
    with suppress(ValueError):
        if 0 <= (number := int(text)) <= 65535:
            return number
    raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, got {text!r}")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"must be a finite number, at least 0, got {text!r}")


def _unexpected(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], StreamReset)


def main() -> None:
    """Serve on the loopback until interrupted."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--port", type=_port, default=8100, help="0: a free one (%(default)s)")
    add("--max-num-seqs", type=whole(1), default=8, metavar="N", help="sequences in a batch (%(default)s)")
    add("--prefill", type=_seconds, default=0.2, metavar="SECONDS", help="for each prompt (%(default)s)")
    add("--token", type=_seconds, default=0.03, metavar="SECONDS", help="for each token (%(default)s)")
    add("--tokens", type=whole(1), default=64, metavar="N", help="in an answer, at most (%(default)s)")
    add("--throttle-after", type=whole(0), metavar="N", help="requests, and 429 for all further ones (left out: never)")
    given = parser.parse_args()
    engine = FakeLLM(given.max_num_seqs, given.prefill, given.token, given.tokens, throttle_after=given.throttle_after)
    try:
        listening = socket.create_server(("127.0.0.1", given.port), backlog=1024)
    except OSError as fault:
        parser.error(f"cannot listen on port {given.port}: {fault.strerror}")
    config = uvicorn.Config(app_of(engine), log_level="warning", ws="none")
    logging.getLogger("uvicorn.error").addFilter(_unexpected)
    with listening, suppress(KeyboardInterrupt):
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        print(address, flush=True)
        print(f"It listens: base_url={address}/v1, any key, model fake. Ctrl+C ends it.", file=sys.stderr)
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
