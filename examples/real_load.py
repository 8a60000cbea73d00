"""Interactive chat beside an endless batch backlog, on a server with slots as llama.cpp's: one run of one arm.

For `real_server.py`. An arm says how many batch calls there are at a time and who lets them through. Interactive calls
stream, and their time to the first token counts from their arrival; batch calls do not. Connections are not used
twice: llama.cpp's server closes one in a hundred of those that are.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import httpx

from llm_traffic_scheduler import TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client

__all__ = ["BATCH_TOKENS", "CHAT_TOKENS", "LEAD", "RATE", "Arm", "Run", "arrivals", "run"]

RATE: Final = 2.0  # interactive calls per second
CHAT_TOKENS: Final = 24
BATCH_TOKENS: Final = 96
LEAD: Final = 2.0  # seconds before those that count
_ROUNDING: Final = 1e-9
_QUESTION: Final = "why is the sky blue?"
_TASK: Final = "summarise the minutes of the last meeting in one paragraph."


@dataclass(frozen=True)
class Arm:
    """Who shares the server with whom, and how.

    Args:
        name: as tables and pictures say it.
        batch: calls of the backlog at a time.
        semaphore: how many calls pass at a time, both kinds together; None: without one.
        scheduler: which the client is given; None: without one.
    """

    name: str
    batch: int
    semaphore: int | None = None
    scheduler: TrafficScheduler | None = None


@dataclass(frozen=True)
class Run:
    """Seconds to the first token of each interactive call that counts, and batch tokens per second meanwhile."""

    first_tokens: tuple[float, ...]
    batch_rate: float

    def first_token(self, share: float) -> float:
        """The nearest rank of `share`, which is above 0 and at most 1."""
        return sorted(self.first_tokens)[math.ceil(share * len(self.first_tokens) - _ROUNDING) - 1]


def arrivals(seconds: float, seed: int) -> list[float]:
    """Seconds from the beginning at which interactive calls come, in order.

    At random; as many in the lead, and in the `seconds` that count, as the rate says.
    """
    chance = random.Random(seed)
    lead = [chance.uniform(0, LEAD) for _ in range(round(RATE * LEAD))]
    counted = [LEAD + chance.uniform(0, seconds) for _ in range(max(1, round(RATE * seconds)))]
    return sorted([*lead, *counted])


async def run(url: str, arm: Arm, seconds: float, seed: int) -> Run:
    """Both kinds of traffic for `LEAD` and `seconds`, until the last interactive call has its answer.

    Raises:
        httpx.HTTPError: the server failed a call.
    Cancellation: all calls are cancelled first.
    """
    async with _Site(url, arm) as site:
        began = monotonic()
        backlog = [asyncio.create_task(site.batch()) for _ in range(arm.batch)]
        counting = asyncio.create_task(_count(site, began + LEAD, began + LEAD + seconds))
        calls: list[asyncio.Task[float]] = []
        times = arrivals(seconds, seed)
        try:
            for at in times:
                await asyncio.sleep(began + at - monotonic())
                calls.append(asyncio.create_task(site.chat()))
            first_tokens, rate = await asyncio.gather(*calls), await counting
        finally:
            outcomes = await _leave(counting, *calls, *backlog)
        await site.until_idle()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return Run(tuple(first_tokens[-sum(at >= LEAD for at in times) :]), rate)


async def _leave(*tasks: asyncio.Task[Any]) -> list[Any]:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def _count(site: _Site, begin: float, end: float) -> float:
    """Batch tokens per second between two instants."""
    marks = []
    for instant in (begin, end):
        await asyncio.sleep(instant - monotonic())
        marks.append((monotonic(), await site.batch_tokens()))
    (before, first), (after, last) = marks
    return (last - first) / (after - before)


class _Site:
    """The server as an arm's clients see it, and what it says of itself."""

    def __init__(self, url: str, arm: Arm) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=url, limits=limits, timeout=None)
        self._watch = httpx.AsyncClient(base_url=url, limits=limits, timeout=60.0)
        if arm.scheduler is not None:
            schedule_client(self._client, arm.scheduler)
        gate: AbstractAsyncContextManager[Any] = nullcontext()
        self._gate = gate if arm.semaphore is None else asyncio.Semaphore(arm.semaphore)
        self._ended = 0  # tokens of batch calls that have

    async def __aenter__(self) -> _Site:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self._watch.aclose()

    async def batch(self) -> None:
        """One place of the backlog: a call after the other."""
        with traffic("batch"):
            while True:
                async with self._gate:
                    answer = await self._client.post("/v1/chat/completions", json=_body(_TASK, BATCH_TOKENS))
                answer.raise_for_status()
                self._ended += answer.json()["usage"]["completion_tokens"]

    async def chat(self) -> float:
        """One interactive call, read to its end; seconds to its first token."""
        began, first = monotonic(), None
        body = _body(_QUESTION, CHAT_TOKENS) | {"stream": True}
        with traffic("interactive"):
            async with self._gate, self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if first is None and _carries_text(line):
                        first = monotonic()
        return (first or monotonic()) - began

    async def batch_tokens(self) -> int:
        """Tokens of batch calls so far, those that are under way included."""
        batch = [slot for slot in await self._slots() if slot["params"]["max_tokens"] == BATCH_TOKENS]
        return self._ended + sum(int(slot["next_token"][0]["n_decoded"]) for slot in batch)

    async def until_idle(self) -> None:
        """Wait until the server has noticed that everybody has gone."""
        while await self._slots():  # noqa: ASYNC110  # a server in another process has no event to wait for
            await asyncio.sleep(0.02)

    async def _slots(self) -> list[Any]:
        answer = await self._watch.get("/slots")
        return [slot for slot in answer.raise_for_status().json() if slot["is_processing"]]


def _body(text: str, tokens: int) -> dict[str, object]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "cache_prompt": False,
    }


def _carries_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return bool(choices and choices[0]["delta"].get("content"))
