"""Interactive streams beside an endless batch backlog on a local server: with no batch, a semaphore, and the scheduler.

    python tests/benchmarks/local_server.py           about thirteen minutes
    python tests/benchmarks/local_server.py --quick   for CI: half a minute, one short round, which judges nothing

The server is `examples/fake_llm_server.py`, a process of its own: eight sequences in a batch, 20 ms for a prompt,
during which the whole batch stands still, and 10 ms for a token. The client is the real `openai` SDK. Three
interactive streams of 24 tokens come per second, at random; 200 batch calls of 64 to 128 tokens are always there,
and each that ends is replaced.

Arms, one after another in each round, with the same arrivals:
    people       interactive alone
    batch        batch alone, all 200 sent at once
    semaphore    both through an `asyncio.Semaphore(8)`
    scheduler    both through `schedule_client`, with `AdaptivePolicy(ttft_target=...)`
    preemptible  as before, but batch by `as_completed("batch", ask, lengths, preemptible=True)` around the client
The target is what a user would write who has seen the first arm: 1.4 times its P95, in the first round. The two
schedulers are used through all rounds, as in a service, and have had a minute to learn in before the first.

Time to first token runs from the call of the SDK to the first chunk with text; a call that has none at the end of its
run counts with its age, which is a lower bound. Batch tokens are those of calls that have ended, so what preempted ones
had done is lost. The first seconds of each run count for nothing. Ratios are made within a round, and are medians over
rounds. Never fails on speed; on a machine that is busy with other things, latencies are that machine's: `nice -n -15`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
from openai import AsyncOpenAI

from llm_traffic_scheduler import AdaptivePolicy, TrafficScheduler, traffic
from llm_traffic_scheduler.adapters.httpx import schedule_client

CAP: Final = 8
BACKLOG: Final = 200
PER_SECOND: Final = 3.0
PEOPLES_TOKENS: Final = 24
BATCH_TOKENS: Final = (64, 128)
TARGET: Final = 1.4  # times the P95 without batch
BESIDE, OF_SEMAPHORE, GOODPUT = 1.5, 0.2, 0.75  # what was to be reached
SERVER: Final = (
    "--port=0",
    f"--max-num-seqs={CAP}",
    "--prefill=0.02",
    "--token=0.01",
    f"--tokens={BATCH_TOKENS[1]}",
)


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds; seconds of a run that count, longer where a P95 is close to its bound; seconds before, which do not."""

    rounds: int
    longer: float
    shorter: float
    warm_up: float
    learning: float

    def of(self, arm: str) -> float:
        return self.longer if arm in ("people", *SCHEDULED) else self.shorter


SCHEDULED: Final = ("scheduler", "preemptible")
FULL: Final = Effort(3, 50.0, 15.0, 5.0, 60.0)
QUICK: Final = Effort(1, 3.5, 3.0, 1.0, 0.0)


@dataclass(slots=True)
class Run:
    """What was seen of one arm in one round."""

    first_tokens: list[float] = field(default_factory=list)
    batch_tokens: int = 0
    peoples_tokens: int = 0
    seconds: float = 0.0
    most_slots: int = 0
    most_present: int = 0  # at the server

    @property
    def p95(self) -> float:
        ordered = sorted(self.first_tokens)
        return ordered[ceil(0.95 * len(ordered)) - 1]

    @property
    def batch_rate(self) -> float:
        return self.batch_tokens / self.seconds

    @property
    def peoples_rate(self) -> float:
        return self.peoples_tokens / self.seconds


class Arm:
    """One run: the traffic, and what holds it back."""

    def __init__(
        self,
        client: AsyncOpenAI,
        semaphore: asyncio.Semaphore | None = None,
        preempting: TrafficScheduler | None = None,
    ) -> None:
        self.client: Any = client
        self.seen = Run()
        self._semaphore = semaphore
        self._preempting = preempting
        self._clock = asyncio.get_running_loop().time
        self._begin = self._end = 0.0
        draw = random.Random("lengths")
        self._lengths = (draw.randint(*BATCH_TOKENS) for _ in count())

    async def run(self, warm_up: float, seconds: float, *, people: bool, batch: bool, seed: int) -> Run:
        """The traffic, to the end of the run; what goes on then is cancelled."""
        self.seen.seconds = seconds
        self._begin = self._clock() + warm_up
        self._end = self._begin + seconds
        calls = [asyncio.ensure_future(work) for work in self._backlog()] if batch else []
        draw = random.Random(seed)
        due = self._clock() + draw.expovariate(PER_SECOND)
        while people and due < self._end:
            await asyncio.sleep(due - self._clock())
            calls.append(asyncio.ensure_future(self._person()))
            due += draw.expovariate(PER_SECOND)
        await asyncio.sleep(self._end - self._clock())
        for call in calls:
            call.cancel()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        return self.seen

    def look(self, scheduler: TrafficScheduler, _: object) -> None:
        """Listens to the scheduler: how many slots are used."""
        self.seen.most_slots = max(self.seen.most_slots, scheduler.snapshot().running)

    @property
    def _counts(self) -> bool:
        return self._begin <= self._clock() < self._end

    def _held_back(self) -> AbstractAsyncContextManager[object]:
        return nullcontext() if self._semaphore is None else self._semaphore

    def _ask(self, tokens: int, **more: Any) -> Any:
        messages = [{"role": "user", "content": "why is the sky blue?"}]
        return self.client.chat.completions.create(model="fake", messages=messages, max_tokens=tokens, **more)

    def _backlog(self) -> list[Coroutine[Any, Any, None]]:
        if self._preempting is not None:
            return [self._bulk(self._preempting)]
        return [self._worker() for _ in range(BACKLOG)]

    async def _worker(self) -> None:
        with traffic("batch"):
            while True:
                async with self._held_back():
                    answer = await self._ask(next(self._lengths))
                self._batch_ended(answer)

    async def _bulk(self, scheduler: TrafficScheduler) -> None:
        async with scheduler.as_completed(
            "batch", self._ask, self._lengths, buffer=BACKLOG, preemptible=True
        ) as outcomes:
            async for outcome in outcomes:
                self._batch_ended(outcome.get())

    def _batch_ended(self, answer: Any) -> None:
        if self._counts:
            self.seen.batch_tokens += answer.usage.completion_tokens

    async def _person(self) -> None:
        came, waits = self._clock(), True
        try:
            with traffic("interactive"):
                async with self._held_back():
                    async for chunk in await self._ask(PEOPLES_TOKENS, stream=True):
                        if not chunk.choices[0].delta.content:
                            continue
                        if waits:
                            waits = False
                            self._first_token(came)
                        self.seen.peoples_tokens += self._counts
        finally:
            if waits:
                self._first_token(came)

    def _first_token(self, came: float) -> None:
        if came >= self._begin:
            self.seen.first_tokens.append(self._clock() - came)


@contextmanager
def server() -> Iterator[str]:
    """The server in a process of its own, which ends with the block; its address."""
    example = Path(__file__).resolve().parents[2] / "examples" / "fake_llm_server.py"
    with subprocess.Popen([sys.executable, str(example), *SERVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def at_rest(url: str) -> dict[str, int]:
    """What the server has counted since the last look, once nothing of it is left."""
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=9)) as probe:
        most = 0
        while True:
            counts: dict[str, int] = (await probe.get(f"{url}/seen")).json()
            most = max(most, counts["most_present"])
            if not counts["running"] + counts["waiting"]:
                return {**counts, "most_present": most}
            await asyncio.sleep(0.05)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncOpenAI]:
    """A client that has loaded what the SDK loads with its first request."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        _ = await client.chat.completions.create(model="fake", messages=[], max_tokens=1)
        await at_rest(url)
        yield client


class Bench:
    """All arms on one server."""

    def __init__(self, url: str, effort: Effort) -> None:
        self._url = url
        self._effort = effort
        self._schedulers: dict[str, TrafficScheduler] = {}

    async def one_round(self, number: int) -> dict[str, Run]:
        """All arms, one after another."""
        runs: dict[str, Run] = {}
        for name in ("people", "batch", "semaphore", *SCHEDULED):
            if name in SCHEDULED and name not in self._schedulers:
                await self._learn(name, TARGET * runs["people"].p95)
            run = runs[name] = await self._run(name, self._effort.warm_up, self._effort.of(name), number)
            p95 = f"{run.p95:7.3f}" if run.first_tokens else f"{'-':>7}"
            load = os.getloadavg()[0]
            print(f"{number:5} {name:11} {p95} {run.peoples_rate:12.0f} {run.batch_rate:6.0f} {load:6.1f}", flush=True)
        return runs

    async def _learn(self, name: str, target: float) -> None:
        policy = AdaptivePolicy(ttft_target=target)
        self._schedulers[name] = TrafficScheduler(
            name=name, max_concurrency=CAP, batch_max_concurrency=CAP - 1, policy=policy
        )
        if self._effort.learning:
            await self._run(name, self._effort.learning, 0.0, 0)

    async def _run(self, name: str, warm_up: float, seconds: float, seed: int) -> Run:
        async with connected(self._url) as client:
            scheduler = self._schedulers.get(name)
            arm = Arm(
                client,
                asyncio.Semaphore(CAP) if name == "semaphore" else None,
                scheduler if name == "preemptible" else None,
            )
            listener = None if scheduler is None else partial(arm.look, scheduler)
            if scheduler is not None and listener is not None:
                scheduler.add_listener(listener)
                schedule_client(client, scheduler)
            await arm.run(warm_up, seconds, people=name != "batch", batch=name != "people", seed=seed)
            if scheduler is not None and listener is not None:
                scheduler.remove_listener(listener)
                scheduler.check()
            arm.seen.most_present = (await at_rest(self._url))["most_present"]
        return arm.seen


def clauses(name: str, rounds: list[dict[str, Run]]) -> list[tuple[str, str, str, bool]]:
    """Each clause for an arm: what is judged, its bound, what was measured, whether it holds."""
    beside = median(runs[name].p95 / runs["people"].p95 for runs in rounds)
    through = median(runs[name].p95 / runs["semaphore"].p95 for runs in rounds)
    goodput = median(runs[name].batch_rate / (runs["batch"].batch_rate - runs[name].peoples_rate) for runs in rounds)
    slots = max(runs[name].most_slots for runs in rounds)
    return [
        ("P95 to first token, of that without batch", f"<= {BESIDE} x", f"{beside:.2f} x", beside <= BESIDE),
        ("P95 to first token, of a Semaphore's", f"<= {OF_SEMAPHORE} x", f"{through:.3f} x", through <= OF_SEMAPHORE),
        ("batch tokens/s, of alone less interactive", f">= {GOODPUT} x", f"{goodput:.2f} x", goodput >= GOODPUT),
        ("slots used at a time", f"<= {CAP}", str(slots), slots <= CAP),
    ]


async def bench(effort: Effort, *, judged: bool) -> None:
    """All rounds, and what comes of them."""
    print(f"{effort.rounds} rounds; Python {sys.version.split()[0]}")
    print("round arm           P95 s people tok/s  batch   load")
    with server() as url:
        arms = Bench(url, effort)
        rounds = [await arms.one_round(number) for number in range(1, effort.rounds + 1)]
    for name in SCHEDULED:
        print(f"\n{name:42} {'bound':>9} {'measured':>9}")
        for what, bound, measured, holds in clauses(name, rounds):
            verdict = ("ok" if holds else "missed") if judged else "not judged"
            print(f"{what:42} {bound:>9} {measured:>9}  {verdict}")
        present = max(runs[name].most_present for runs in rounds)
        print(f"{'sequences at the server, preempted ones too':42} {'':>8} {present:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    effort = QUICK if given.quick else FULL
    asyncio.run(bench(replace(effort, rounds=given.rounds or effort.rounds), judged=not given.quick))


if __name__ == "__main__":
    main()
