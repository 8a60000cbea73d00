"""The real SDKs of OpenAI and Anthropic on a local server, through the scheduler's transport.

`async with tell(OpenAI, server, **settings of the client) as told: answer = await told.sdk.ask()`
Importing it skips the tests of a module where an SDK is not installed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_traffic_scheduler import CallFinished, Event, KindTotals, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client
from tests.heard import Heard
from tests.support import account, make_scheduler

openai = pytest.importorskip("openai", reason="openai is not installed")
anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")
httpx2 = pytest.importorskip("httpx2", reason="httpx2 is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from fake_llm_server import FakeLLM  # noqa: E402  # it needs what is looked for above

from tests.llm_server import LLMServer, llm_server  # noqa: E402

__all__ = [
    "MESSAGES",
    "TEXT",
    "Anthropic",
    "LLMServer",
    "OpenAI",
    "Story",
    "anthropic",
    "httpx2",
    "llm_server",
    "lose",
    "openai",
    "passes",
    "tell",
]

MESSAGES = [{"role": "user", "content": "why is the sky blue?"}]
TEXT = "The sky is blue because of scattering."


class OpenAI:
    """The words of OpenAI's SDK."""

    errors = openai
    silence = openai.APITimeoutError  # what it makes of a stream that stands still
    lost = openai.APIConnectionError  # and of one that has been closed

    def __init__(self, url: str, **settings: Any) -> None:
        self.client: Any = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", **settings)

    def ask(self, **more: Any) -> Any:
        return self.client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=9, **more)

    @staticmethod
    def text(answer: Any) -> str:
        return str(answer.choices[0].message.content)


class Anthropic:
    """The words of Anthropic's."""

    errors = anthropic
    silence = httpx2.ReadTimeout
    lost = httpx2.ReadError

    def __init__(self, url: str, **settings: Any) -> None:
        self.client: Any = anthropic.AsyncAnthropic(base_url=url, api_key="none", **settings)

    def ask(self, **more: Any) -> Any:
        return self.client.messages.create(model="fake", messages=MESSAGES, max_tokens=9, **more)

    @staticmethod
    def text(answer: Any) -> str:
        return str(answer.content[0].text)


class Story:
    """A scheduler of two slots, a client on it, and all that the scheduler has said."""

    def __init__(self, sdk: Any, server: LLMServer, scheduler: TrafficScheduler, law: Heard) -> None:
        self.sdk = sdk
        self.law = law
        self.server = server
        self.scheduler = scheduler
        self.events: list[Event] = []
        scheduler.add_listener(self.events.append)

    @property
    def totals(self) -> KindTotals:
        return account(self.scheduler, "interactive")

    @property
    def running(self) -> int:
        return self.scheduler.snapshot().running

    def ends(self) -> list[CallFinished]:
        """How calls have ended that had a slot."""
        return [event for event in self.events if isinstance(event, CallFinished)]

    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.ends()]


@asynccontextmanager
async def tell(sdk: Any, server: LLMServer, *, idle_timeout: float = 60.0, **settings: Any) -> AsyncIterator[Story]:
    """A story in interactive traffic, on a server without faults; in the end nothing is left of it."""
    # The story before may be over while the server has not noticed yet; it would count itself off this one's calls.
    await passes(lambda: server.engine.running == server.engine.waiting == 0)
    server.engine.__dict__.update(FakeLLM(prefill=0.002, token=0.002).__dict__ | {"_batch": server.engine._batch})
    scheduler = make_scheduler(policy=(law := Heard()))
    words = sdk(server.url, **{"timeout": 60.0, **settings})
    schedule_client(words.client, scheduler, idle_timeout=idle_timeout)
    with traffic("interactive"):
        yield Story(words, server, scheduler, law)
    assert scheduler.snapshot().running == 0
    scheduler.check()
    await words.client.close()


def lose(holder: list[Any]) -> None:
    """Forget what is in it, and let the collector look."""
    holder.clear()
    gc.collect()


async def passes(until: Callable[[], bool]) -> None:
    """Let the loop and the server go on until it is so; the test's own patience is a minute."""
    async with asyncio.timeout(60):
        while not until():  # noqa: ASYNC110  # a server in another thread has no event to wait for
            await asyncio.sleep(0.002)
