"""LangChain's models go through the scheduler's transport: by a client that they are given, or wrapped in place."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import Ended, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.heard import Heard
from tests.sdks import TEXT, LLMServer, httpx2, openai
from tests.support import account, hold, make_scheduler, settle

# To import LangChain takes longer than all that is done with it here, so it is imported only where it is used.
pytestmark = [pytest.mark.asyncio(loop_factories=["real"]), pytest.mark.slow]

QUESTION = "why is the sky blue?"


@pytest.fixture
def law() -> Heard:
    return Heard()


@pytest.fixture
async def scheduler(law: Heard) -> AsyncIterator[TrafficScheduler]:
    scheduler = make_scheduler(policy=law)
    await scheduler.drain()  # it has a loop from here on, for threads
    yield scheduler
    assert scheduler.snapshot().running == 0
    scheduler.check()


@pytest.fixture
async def model(server: LLMServer, scheduler: TrafficScheduler) -> AsyncIterator[Any]:
    """ChatOpenAI on two clients of the test's own, asynchronous and not, both scheduled."""
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    async with httpx2.AsyncClient(timeout=60) as client:
        with httpx2.Client(timeout=60) as sync_client:
            for each in (client, sync_client):
                schedule_client(each, scheduler)
            yield langchain.ChatOpenAI(
                model="fake",
                base_url=f"{server.url}/v1",
                api_key="none",
                http_async_client=client,
                http_client=sync_client,
            )


async def test_ainvoke_takes_a_slot(model: Any, scheduler: TrafficScheduler) -> None:
    with traffic("batch"):
        answer = await model.ainvoke(QUESTION)

    assert answer.content == TEXT
    assert account(scheduler, "batch").completed == 1


async def test_astream_keeps_its_slot_until_it_has_been_read(model: Any, scheduler: TrafficScheduler, law: Any) -> None:
    with traffic("interactive"):
        seen = [(scheduler.snapshot().running, chunk.content) async for chunk in model.astream(QUESTION)]

    assert "".join(content for _, content in seen) == TEXT
    assert seen[0][0] == 1
    [end] = law.of(Ended)
    assert (end.outcome, end.tokens) == ("completed", 8)


async def test_a_stream_that_is_left_gives_its_slot_back_when_it_is_closed(
    model: Any, scheduler: TrafficScheduler
) -> None:
    gc.disable()
    try:
        with traffic("interactive"):
            chunks = model.astream(QUESTION)
            await anext(chunks)
            assert scheduler.snapshot().running == 1
            await chunks.aclose()
        await scheduler.drain()
    finally:
        gc.enable()

    assert account(scheduler, "interactive").submitted == 1


async def test_invoke_and_stream_wait_in_their_thread(
    model: Any, server: LLMServer, scheduler: TrafficScheduler
) -> None:
    server.engine.most_running = 0

    def invoke() -> str:
        return str(model.invoke(QUESTION).content)

    def stream() -> str:
        return "".join(chunk.content for chunk in model.stream(QUESTION))

    with traffic("batch"):
        answers = await asyncio.gather(*(asyncio.to_thread(each) for each in (invoke, stream, invoke, stream)))

    assert answers == [TEXT] * 4
    assert server.engine.most_running == 1
    assert account(scheduler, "batch").completed == 4


async def test_a_refusal_is_the_sdks_typed_error_and_is_not_tried_again(
    model: Any, server: LLMServer, scheduler: TrafficScheduler
) -> None:
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    seen = server.engine.seen
    with traffic("interactive", queue_timeout=0):
        with pytest.raises(openai.InternalServerError, match="got no slot"):
            await model.ainvoke(QUESTION)
        with pytest.raises(openai.InternalServerError, match="got no slot"):
            await asyncio.to_thread(model.invoke, QUESTION)

    assert server.engine.seen == seen
    assert account(scheduler, "interactive").rejected == 2
    for each in held:
        each.release()
    await scheduler.drain()


async def test_a_model_that_takes_no_client_is_wrapped_in_place(server: LLMServer, scheduler: TrafficScheduler) -> None:
    langchain = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
    model = langchain.ChatAnthropic(model="fake", base_url=server.url, api_key="none", max_tokens=9)
    schedule_client(model._async_client, scheduler)

    with traffic("batch"):
        answer = await model.ainvoke(QUESTION)
        text = "".join([chunk.text async for chunk in model.astream(QUESTION)])

    assert (answer.content, text) == (TEXT, TEXT)
    assert account(scheduler, "batch").completed == 2
    await model._async_client.close()
