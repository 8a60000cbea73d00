"""A gateway that streams chat while an evaluation runs in the background, and that cuts nobody off when it is stopped.

python examples/gateway.py --demo    SIGTERM in mid-stream. Without --demo: port 8200, in front of a model on port 8100
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Annotated

from llm_traffic_scheduler import Stream, TrafficScheduler
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware

try:
    import uvicorn
    from fastapi import Depends, FastAPI
    from fastapi.responses import StreamingResponse
    from gateway_demo import demo
    from openai import AsyncOpenAI
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed: pip install fastapi uvicorn openai httpx")

scheduler = TrafficScheduler(max_concurrency=8, max_queued_interactive=32)
llm = AsyncOpenAI(base_url="http://127.0.0.1:8100/v1", api_key="none")


async def ask(question: str, tokens: int = 1000) -> AsyncIterator[str]:
    async with await llm.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": question}], max_completion_tokens=tokens, stream=True
    ) as chunks:
        async for chunk in chunks:
            yield chunk.choices[0].delta.content or ""


async def grade(case: int) -> bool:
    return "blue" in "".join([piece async for piece in ask(f"case {case}", tokens=8)])


async def evaluate() -> None:
    async with scheduler.map("batch", grade, range(1000)) as grades:
        print(sum([good async for good in grades]), "of 1000 answers are right")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    evaluation = asyncio.create_task(evaluate())
    yield  # until the last answer has been sent
    evaluation.cancel()
    await scheduler.close()


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(scheduler.pause, "batch")  # the lifespan hears of it too late
        self.force_exit = self.should_exit  # at the second signal
        self.should_exit = True


app = FastAPI(lifespan=lifespan)
app.add_middleware(TrafficMiddleware, kind="interactive", queue_timeout=10)


async def answer(question: str) -> AsyncIterator[Stream[str]]:
    async with scheduler.stream(None, ask, question) as stream:  # closed when all is sent or the client has left
        await stream.start()  # a refusal is still a 503 here
        yield stream


@app.post("/chat")
async def chat(stream: Annotated[Stream[str], Depends(answer)]) -> StreamingResponse:
    return StreamingResponse(stream, media_type="text/plain")


if __name__ == "__main__":
    server = Server(uvicorn.Config(app, port=8200, log_level="warning"))
    asyncio.run(demo(server, scheduler, llm) if "--demo" in sys.argv else server.serve())
