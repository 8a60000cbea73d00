"""llama.cpp's server with a tiny model: a backend that batches, never refuses, and knows no kinds.

The client is the openai SDK. The model's words are random: tokens are counted by `usage`, and nothing is said of the
text but that it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llama_server import llama_server, missing

from llm_traffic_scheduler import Arrived, CallStarted, Ended, FirstToken, FixedPolicy, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.heard import Heard
from tests.support import Recorder, account, make_scheduler

if lacks := missing():
    pytest.skip(lacks, allow_module_level=True)
httpx = pytest.importorskip("httpx", reason="httpx is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")

pytestmark = pytest.mark.asyncio(loop_factories=["real"])

SLOTS = 4
WHOLE_CONTEXT = 1900  # tokens: seconds of work


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with llama_server(slots=SLOTS) as running:
        yield running


class Llama:
    """The SDK's client through a scheduler, and what the server says of itself meanwhile."""

    def __init__(self, url: str, scheduler: TrafficScheduler) -> None:
        self.scheduler = scheduler
        # The server hangs up on one in a hundred connections that are used again.
        once = {"connection": "close"}
        self.sdk: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", default_headers=once)
        self._watch = httpx.AsyncClient(base_url=url)
        schedule_client(self.sdk, scheduler)

    def ask(self, tokens: int = 8, **more: Any) -> Any:
        """Exactly so many tokens."""
        body = {"ignore_eos": True, "cache_prompt": False}
        messages = [{"role": "user", "content": "why is the sky blue?"}]
        return self.sdk.chat.completions.create(
            model="tiny", messages=messages, max_tokens=tokens, extra_body=body, **more
        )

    async def sizes(self) -> list[int]:
        """How many tokens each of the calls in the server's slots has asked for."""
        slots = (await self._watch.get("/slots")).json()
        return [slot["params"]["max_tokens"] for slot in slots if slot["is_processing"]]

    async def gauge(self, name: str) -> float:
        page = (await self._watch.get("/metrics")).text
        [value] = [line.split()[1] for line in page.splitlines() if line.startswith(f"llamacpp:{name} ")]
        return float(value)

    async def close(self) -> None:
        await self._watch.aclose()
        await self.sdk.close()


@pytest.fixture
def llama(url: str) -> Callable[..., Any]:
    """`async with llama(scheduler) as served: ...`; nothing is left running, here or there."""

    @asynccontextmanager
    async def serve(scheduler: TrafficScheduler) -> AsyncIterator[Llama]:
        served = Llama(url, scheduler)
        yield served
        assert scheduler.snapshot().running == 0
        scheduler.check()
        await until_idle(served)
        await served.close()

    return serve


async def until(asked: Callable[[], Awaitable[bool]]) -> None:
    """Ask the server until it is so; the test's own patience is a minute."""
    async with asyncio.timeout(60):
        while not await asked():
            pass


async def until_idle(served: Llama) -> None:
    async def idle() -> bool:
        return not await served.sizes()

    await until(idle)


async def watch(served: Llama, seen: list[list[int]]) -> None:
    """Note the server's slots, again and again, until cancelled."""
    while True:
        seen.append(await served.sizes())


async def leave(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stream_gives_text_and_a_first_token_and_its_slot_back(llama: Any) -> None:
    async with llama(make_scheduler(policy=(law := Heard(streams=True)))) as served:
        with traffic("interactive"):
            stream = await served.ask(24, stream=True, stream_options={"include_usage": True})
        running, chunks = [], []
        async for chunk in stream:
            running.append(served.scheduler.snapshot().running)
            chunks.append(chunk)

        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert chunks[-1].usage.completion_tokens == 24
        assert running[0] == 1
        assert served.scheduler.snapshot().running == 0
        assert [type(event) for _, event in law.told] == [Arrived, FirstToken, Ended]
        assert law.complaints == []


async def test_a_reader_cancelled_in_mid_stream_frees_the_slot_here_and_the_one_at_the_server(llama: Any) -> None:
    async with llama(make_scheduler()) as served:
        before = await served.gauge("tokens_predicted_total")
        begun = asyncio.Event()

        async def read() -> None:
            async for chunk in await served.ask(WHOLE_CONTEXT, stream=True):
                if chunk.choices and chunk.choices[0].delta.content:
                    begun.set()

        with traffic("interactive"):
            reader = asyncio.create_task(read())
        await begun.wait()
        at_the_server = await served.sizes()
        reader.cancel()
        await asyncio.wait({reader})

        assert at_the_server == [WHOLE_CONTEXT]
        assert served.scheduler.snapshot().running == 0
        assert account(served.scheduler, "interactive").cancelled == 1
        await until_idle(served)
        assert await served.gauge("tokens_predicted_total") < before + WHOLE_CONTEXT


async def test_interactive_calls_all_end_beside_a_backlog_that_keeps_to_its_limit(llama: Any) -> None:
    async with llama(make_scheduler(max_concurrency=4, batch_max_concurrency=3, policy=FixedPolicy(2))) as served:
        recorder, seen = Recorder(served.scheduler), list[list[int]]()

        async def work() -> None:
            while True:
                await served.ask(24)

        with traffic("batch"):
            backlog = [asyncio.create_task(work()) for _ in range(6)]
        watching = asyncio.create_task(watch(served, seen))
        with traffic("interactive"):
            answers = await asyncio.gather(*(served.ask(4) for _ in range(8)))
        await leave(watching, *backlog)

        assert [answer.usage.completion_tokens for answer in answers] == [4] * 8
        assert account(served.scheduler, "interactive").completed == 8
        assert max(sizes.count(24) for sizes in seen) <= 2
        assert any(event.kind == "batch" for event in recorder.of(CallStarted))


async def test_the_server_never_sees_more_calls_than_the_cap(llama: Any) -> None:
    async with llama(make_scheduler(max_concurrency=3, batch_max_concurrency=2)) as served:
        seen = list[list[int]]()
        watching = asyncio.create_task(watch(served, seen))
        with traffic("batch"):
            calls = [asyncio.create_task(served.ask(24)) for _ in range(5)]
        with traffic("interactive"):
            calls += [asyncio.create_task(served.ask(24)) for _ in range(5)]
        answers = await asyncio.gather(*calls)
        await leave(watching)

        assert max(map(len, seen)) == 3
        assert [answer.usage.completion_tokens for answer in answers] == [24] * 10
        assert await served.gauge("requests_deferred") == 0
