"""A hosted API as its clients see it: latency that does not depend on them, and quotas that do.

Floor: fourth. Real or virtual time.
Model: the first token comes after a lognormal time (97 % of calls: median 0.64 s, sigma 0.35; the others: median 3.0 s,
sigma 0.5) plus 60 microseconds for each token of the prompt; then tokens at a lognormal rate (median 90 per second,
sigma 0.25). Quotas are token buckets that refill all the time and hold one minute's worth; a call is charged its
prompt and `max_tokens` when it comes, whatever it uses in the end, and calls that fail are charged too. Beyond a quota:
429 with Retry-After. Now and then 529.
The figures stand for what large providers show from outside, not for any one of them.
"""

import asyncio
import math
import random
from collections import Counter
from typing import Final

from llm_traffic_scheduler import ConfigError

from .backend import OnFirstToken, Overloaded, Throttled
from .checks import at_least_one


class _Bucket:
    """A quota per minute: full at first, refilled all the time."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at = -math.inf

    def wait(self, now: float, cost: float) -> float:
        """Seconds until `cost` would be there; 0.0 if it is."""
        if now > self._at:
            self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
            self._at = now
        return max(0.0, cost - self._level) * 60 / self.per_minute

    def charge(self, cost: float) -> None:
        self._level = max(0.0, self._level - cost)


class HostedAPI:
    """Serves calls of known length, within quotas.

    With one `seed`, the n-th call of one length draws the same latency and the same luck, whatever else is sent: common
    random numbers, also where two runs send their calls in another order.
    Complexity: O(1) per call. Memory: one number for each length seen.
    Cancellation: the place is free at once, as when a stream is closed; nothing is paid back.
    Threads: not safe; one event loop owns the backend.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        max_concurrency: int = 256,
        requests_per_minute: float = 4_000,
        tokens_per_minute: float = 2_000_000,
        max_tokens: int = 1024,
        overloaded_share: float = 0.001,
    ) -> None:
        at_least_one(max_concurrency=max_concurrency, max_tokens=max_tokens)
        for name, value in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if not 1 <= value < math.inf:  # less than one would never be enough for any call
                raise ConfigError(f"{name} must be a finite number, at least 1, got {value!r}")
        if not 0 <= overloaded_share <= 1:
            raise ConfigError(f"overloaded_share must be from 0 to 1, got {overloaded_share!r}")
        self.max_concurrency: Final = max_concurrency
        self.max_tokens: Final = max_tokens
        self.throttled = self.overloaded = 0
        self._seed = seed
        self._overloaded_share = overloaded_share
        self._requests, self._tokens = _Bucket(requests_per_minute), _Bucket(tokens_per_minute)
        self._running = 0
        self._seen: Counter[tuple[int, int]] = Counter()

    def __repr__(self) -> str:
        return f"<HostedAPI {self._running} running, {self.throttled} throttled, {self.overloaded} overloaded>"

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """Return once the last token is there; a call has at least one token of each sort.

        Raises: `Throttled` at once, with whole seconds as the header has; `Overloaded` in place of a first token;
        `ValueError` for a call that is charged more than a minute's tokens.
        """
        prompt, output = max(1, prompt_tokens), max(1, output_tokens)
        self._seen[prompt, output] += 1
        draw = random.Random(f"{self._seed}: {prompt} {output} {self._seen[prompt, output]}")
        first, each, lucky = _latency(draw, prompt), _pace(draw), draw.random() >= self._overloaded_share
        self._admit(asyncio.get_running_loop().time(), prompt + max(output, self.max_tokens))
        self._running += 1
        try:
            await asyncio.sleep(first)
            if not lucky:
                self.overloaded += 1
                raise Overloaded("529")
            if first_token is not None:
                first_token()
            await asyncio.sleep((output - 1) * each)
        finally:
            self._running -= 1

    def _admit(self, now: float, tokens: int) -> None:
        if not tokens <= self._tokens.per_minute:
            raise ValueError(f"a call is charged {tokens} tokens, more than a minute's {self._tokens.per_minute:g}")
        requests, used = self._requests.wait(now, 1), self._tokens.wait(now, tokens)
        self._requests.charge(1)
        if requests or used or self._running >= self.max_concurrency:
            self.throttled += 1
            raise Throttled(max(1.0, math.ceil(max(requests, used))))
        self._tokens.charge(tokens)


def _latency(draw: random.Random, prompt: int) -> float:
    usual, slow = draw.lognormvariate(math.log(0.64), 0.35), draw.lognormvariate(math.log(3.0), 0.5)
    return (usual if draw.random() < 0.97 else slow) + 60e-6 * prompt


def _pace(draw: random.Random) -> float:
    """Seconds per token."""
    return 1 / draw.lognormvariate(math.log(90.0), 0.25)
