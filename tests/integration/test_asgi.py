"""The middleware in front of a real framework, asked by a real client."""

from __future__ import annotations

from typing import Any

import pytest

from llm_traffic_scheduler import kind_in_force
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware
from tests.support import account, hold, make_scheduler, settle

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from starlette.applications import Starlette  # noqa: E402  # it is looked for above
from starlette.middleware import Middleware  # noqa: E402
from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402


async def test_a_starlette_application_has_kinds_streams_and_503s() -> None:
    scheduler = make_scheduler()

    async def chat(request: Request) -> Any:
        async with scheduler.slot():
            return JSONResponse({"kind": kind_in_force(), "body": (await request.body()).decode()})

    async def stream(request: Request) -> Any:
        async def chunks() -> Any:
            async with scheduler.slot():
                yield "a"
                yield "b"

        return StreamingResponse(chunks())

    app = Starlette(
        routes=[Route("/chat", chat, methods=["POST"]), Route("/stream", stream)],
        middleware=[Middleware(TrafficMiddleware, kind="interactive", queue_timeout=0)],
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        answer = await client.post("/chat", content=b"why?")
        streamed = await client.get("/stream")
        held = [hold(scheduler), hold(scheduler)]
        await settle()
        refused = await client.post("/chat")

    assert answer.json() == {"kind": "interactive", "body": "why?"}
    assert streamed.text == "ab"
    assert refused.status_code == 503
    assert account(scheduler, "interactive").rejected == 1
    for slot in held:
        slot.release()
