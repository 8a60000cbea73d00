"""The real SDKs of OpenAI and Anthropic against a server on the loopback: what they do is what the transport is for."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import Arrived, Ended, FirstToken, QueueTimeout, traffic
from llm_traffic_scheduler.adapters.asgi import TrafficMiddleware
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.sdks import (
    MESSAGES,
    TEXT,
    Anthropic,
    LLMServer,
    OpenAI,
    httpx2,
    lose,
    openai,
    passes,
)
from tests.support import account, hold, make_scheduler

pytestmark = pytest.mark.asyncio(loop_factories=["real"])


@pytest.fixture(params=["gc", "no gc"])
def collector(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is given back at once is given back without the collector's help."""
    if request.param == "no gc":
        gc.disable()
    yield
    gc.enable()


async def test_an_answer_takes_one_slot_and_gives_it_back(story: Any) -> None:
    async with story() as told:
        answer = await told.sdk.ask()

        assert told.sdk.text(answer) == TEXT
        assert told.outcomes() == ["completed"]


async def test_no_more_requests_are_under_way_than_there_are_slots(story: Any) -> None:
    async with story() as told:
        await asyncio.gather(*(told.sdk.ask() for _ in range(8)))

        assert told.server.engine.most_running <= 2
        assert told.totals.completed == 8


async def test_each_attempt_has_a_slot_of_its_own_and_the_sleep_between_has_none(story: Any) -> None:
    async with story(max_retries=2) as told:
        told.server.engine.faulty, told.server.engine.retry_after = ["error", "throttle"], "0.1"
        asking = asyncio.ensure_future(told.sdk.ask())
        await passes(lambda: len(told.outcomes()) == 1)
        resting = told.running

        answer = await asking

        assert resting == 0
        assert told.sdk.text(answer) == TEXT
        assert told.outcomes() == ["failed", "failed", "completed"]
        assert told.scheduler._home.governor.throttled_until > 0


async def test_a_refusal_is_one_attempt_and_the_sdks_own_typed_error(story: Any) -> None:
    async with story(max_retries=5) as told:
        held = [hold(told.scheduler), hold(told.scheduler)]
        await passes(lambda: told.running == 2)
        seen = told.server.engine.seen
        with traffic("interactive", queue_timeout=0), pytest.raises(told.sdk.errors.InternalServerError) as refused:
            await told.sdk.ask()

        assert refused.value.status_code == 503
        assert "QueueTimeout" in str(refused.value.body)
        assert told.totals.rejected == 1
        assert told.server.engine.seen == seen
        for slot in held:
            slot.release()
        await told.scheduler.drain()


async def test_a_refusal_that_is_raised_leaves_openais_sdk_as_it_is_and_is_tried_again_by_anthropics(
    server: LLMServer,
) -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    seen = []
    for sdk in (OpenAI(server.url, max_retries=1), Anthropic(server.url, max_retries=1)):
        schedule_client(sdk.client, scheduler, on_reject="raise")
        with traffic("interactive", queue_timeout=0), pytest.raises(Exception) as refused:  # noqa: PT011
            await sdk.ask()
        seen.append((type(refused.value), type(refused.value.__cause__), account(scheduler, "interactive").rejected))
        await sdk.client.close()
    for slot in held:
        slot.release()

    assert seen == [
        (QueueTimeout, type(None), 1),
        (Anthropic.errors.APIConnectionError, QueueTimeout, 1 + 2),
    ]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_refusal_inside_of_an_sdk_is_a_503_of_the_middleware(story: Any, wrapped: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await told.sdk.ask()
        except told.sdk.errors.APIStatusError as error:
            if wrapped:
                raise RuntimeError("no answer") from error
            raise

    async with story() as told:
        held = [hold(told.scheduler), hold(told.scheduler)]
        await passes(lambda: told.running == 2)
        transport = httpx2.ASGITransport(TrafficMiddleware(app, kind="interactive", queue_timeout=0))
        async with httpx2.AsyncClient(transport=transport, base_url="http://app") as visitor:
            refused = await visitor.post("/")
        for slot in held:
            slot.release()
        await told.scheduler.drain()

    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "QueueTimeout"
    assert told.totals.rejected == 1


@pytest.mark.usefixtures("collector")
async def test_a_stream_keeps_its_slot_until_it_has_been_read(story: Any) -> None:
    async with story() as told:
        stream = await told.sdk.ask(stream=True)
        running = [told.running async for _ in stream]

        assert set(running[:5]) == {1}
        assert told.running == 0
        assert told.outcomes() == ["completed"]


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("way", ["close", "block"])
async def test_a_stream_that_is_closed_gives_its_slot_back_at_once(story: Any, way: str) -> None:
    async with story() as told:
        stream = await told.sdk.ask(stream=True)
        if way == "close":
            await anext(aiter(stream))
            await stream.close()
        else:
            async with stream:
                async for _ in stream:
                    break

        assert told.running == 0
        assert told.outcomes() == ["cancelled"]


@pytest.mark.usefixtures("collector")
async def test_a_stream_that_is_closed_after_its_last_event_has_completed(story: Any) -> None:
    async with story() as told:
        async with await told.sdk.ask(stream=True) as stream:
            async for event in stream:
                if getattr(event, "type", None) == "message_stop":
                    break  # OpenAI's SDK does so itself, at "[DONE]"

        assert told.running == 0
        assert told.outcomes() == ["completed"]


async def test_a_stream_that_is_dropped_gives_its_slot_back_when_it_is_collected(story: Any) -> None:
    async with story() as told:
        stream = await told.sdk.ask(stream=True)
        assert told.running == 1
        holder = [stream]
        del stream
        with pytest.warns(ResourceWarning):
            lose(holder)
        await passes(lambda: told.running == 0)

        assert told.outcomes() == ["cancelled"]


@pytest.mark.usefixtures("collector")
async def test_a_reader_cancelled_in_mid_stream_gives_its_slot_back_at_once(story: Any) -> None:
    async with story() as told:
        told.server.engine.faulty = ["slow_tail"]
        got = []

        async def read() -> None:
            async for chunk in await told.sdk.ask(stream=True):
                got.append(chunk)  # noqa: PERF401  # seen while it goes on

        reader = asyncio.ensure_future(read())
        await passes(lambda: len(got) >= 3)
        reader.cancel()
        await asyncio.wait({reader})

        assert reader.cancelled()
        assert told.running == 0
        assert told.outcomes() == ["cancelled"]


@pytest.mark.usefixtures("collector")
async def test_a_request_cancelled_before_its_answer_gives_its_slot_back_at_once(story: Any) -> None:
    async with story() as told:
        told.server.engine.faulty = ["hang"]
        asking = asyncio.ensure_future(told.sdk.ask())
        await passes(lambda: told.server.engine.running == 1)
        asking.cancel()
        await asyncio.wait({asking})

        assert told.running == 0
        assert told.outcomes() == ["cancelled"]
        await passes(lambda: told.server.engine.running == 0)


@pytest.mark.usefixtures("collector")
async def test_a_server_that_dies_in_mid_stream_is_a_failure(story: Any) -> None:
    async with story() as told:
        told.server.engine.faulty = ["reset"]
        stream = await told.sdk.ask(stream=True)
        with pytest.raises(Exception, match=r"peer closed|incomplete|onnection"):
            _ = [chunk async for chunk in stream]

        assert told.running == 0
        assert told.outcomes() == ["failed"]


@pytest.mark.usefixtures("collector")
async def test_a_client_timeout_is_a_failure(story: Any) -> None:
    async with story(max_retries=0, timeout=0.3) as told:
        told.server.engine.faulty = ["hang"]
        with pytest.raises(told.sdk.errors.APITimeoutError):
            await told.sdk.ask()

        assert told.running == 0
        assert told.outcomes() == ["failed"]


async def test_the_first_token_is_heard_of_once(story: Any) -> None:
    async with story() as told:
        async for _ in await told.sdk.ask(stream=True):
            pass

        assert [type(event) for _, event in told.law.told] == [Arrived, FirstToken, Ended]


async def test_a_stream_left_in_its_midst_and_lost_is_given_back_when_idle_where_nothing_is_collected(
    server: LLMServer,
) -> None:
    scheduler, sdk = make_scheduler(), OpenAI(server.url)
    schedule_client(sdk.client, scheduler, idle_timeout=0.2)
    gc.disable()
    try:
        with traffic("interactive"):
            stream = await sdk.ask(stream=True)
        async for _ in stream:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del stream
            await passes(lambda: scheduler.snapshot().running == 0)
    finally:
        gc.enable()

    assert account(scheduler, "interactive").submitted == 1
    await sdk.client.close()


async def test_a_synchronous_client_waits_in_its_thread(server: LLMServer) -> None:
    scheduler = make_scheduler()
    await scheduler.drain()
    server.engine.most_running = 0
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    schedule_client(client, scheduler)

    def work() -> Any:
        with traffic("batch"):
            stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    texts = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    client.close()

    assert texts == [TEXT] * 4
    assert server.engine.most_running == 1
    assert account(scheduler, "batch").completed == 4
