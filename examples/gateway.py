"""A gateway that streams chat while an evaluation runs in the background, and that cuts nobody off when it is stopped.

python examples/gateway.py --demo    SIGTERM in mid-stream. Without: POST :8200/chat?question=why, a model on port 8100
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware

try:
    if sys.argv[1:] == ["--demo"]:
        from gateway_demo import demo
    import uvicorn
    from fastapi import Depends, FastAPI, concurrency, responses
    from openai import APIError, AsyncOpenAI
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed: pip install fastapi uvicorn openai; --demo runs in a checkout")

scheduler = TrafficScheduler(max_concurrency=8, max_queued_interactive=32)
llm = AsyncOpenAI(base_url="http://127.0.0.1:8100/v1", api_key="none")


async def ask(question: str, tokens: int = 1000) -> AsyncIterator[str]:
    async with await llm.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": question}], max_completion_tokens=tokens, stream=True
    ) as chunks:
        async for chunk in chunks:
            yield chunk.choices[0].delta.content or ""


async def evaluate() -> str:
    async def grade(case: int) -> bool:
        return "blue" in "".join([piece async for piece in ask(f"case {case}", tokens=8)])

    async with scheduler.map("batch", grade, range(1000)) as grades:
        return f"{sum([good async for good in grades])} of 1000 answers are right"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    evaluation = asyncio.create_task(evaluate())
    evaluation.add_done_callback(lambda ended: print("evaluation:", ended.exception() or ended.result()))
    yield  # until the last answer has been sent
    await scheduler.close()  # the evaluation hears of it


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: object) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(scheduler.pause, "batch")  # the lifespan hears of it too late
        self.force_exit = self.should_exit  # at the second signal
        self.should_exit = True


app = FastAPI(lifespan=lifespan)
app.add_middleware(TrafficMiddleware, kind="interactive", queue_timeout=10)
app.add_exception_handler(APIError, lambda _, fault: responses.JSONResponse({"detail": f"the model: {fault}"}, 502))


async def answer(question: str) -> AsyncIterator[AsyncIterator[str]]:
    async with scheduler.stream(None, ask, question) as stream:  # closed when all is sent or the client has left
        first = concurrency.iterate_in_threadpool([await anext(stream, "")])  # in time for a 503 or a 502
        yield (piece for part in (first, stream) async for piece in part)


@app.post("/chat")
async def chat(pieces: Annotated[AsyncIterator[str], Depends(answer)]) -> responses.StreamingResponse:
    return responses.StreamingResponse(pieces, media_type="text/plain")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--demo"]):
        sys.exit(__doc__)
    server = Server(uvicorn.Config(app, port=8200, log_level="warning" if sys.argv[1:] else "info"))
    asyncio.run(demo(server, scheduler, llm) if sys.argv[1:] else server.serve())
