"""A simulated inference engine with continuous batching (as in vLLM), step by step.

Floor: fourth. Real or virtual time; written for virtual time.
Model: every engine step first decodes one token for each call that generates, then
spends the rest of its token budget on prefill chunks in queue order. Calls enter
first come, first served, up to `max_num_seqs`, if the key-value memory holds their
whole prompt. When the memory overflows, the newest call loses its place and its
memory, goes back to the head of the queue, and its tokens are computed again.
Formula: a step with n tokens (one per decoding call plus the chunks), C context
tokens of the decoding calls and chunks of q tokens after c tokens of context takes
    ms = max(f0 + b1*n, a2 + b2*n) + extra + kd*C/1000 + kp*sum(q*(c + q/2))/1e6
Sources: f0 to b2 of the A100 row are fitted to the operator profile that Vidur
publishes (Agrawal et al., MLSys 2024; mean error 3.4 %), those of the H100 row scaled from
its profile of Llama-2-7B; extra, kd and kp are derived from sizes and bandwidths of the
model and the card; memory and budgets are vLLM's defaults. The row of two CPU cores is
fitted to a real llama.cpp server with a tiny model and eight slots.
Good for ranking policies, not for absolute GPU figures.
"""

import asyncio
import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from llm_traffic_scheduler import ConfigError

from .backend import OnFirstToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What one engine step costs, in seconds, and what fits; the letters are those of the formula."""

    name: str
    floor: float  # f0: memory-bound step without tokens
    floor_per_token: float  # b1
    base: float  # a2: compute-bound step without tokens
    base_per_token: float  # b2
    overhead: float  # extra: scheduling and sampling
    per_context_token: float  # kd / 1000: reading the memory of the calls that decode
    per_token_pair: float  # kp / 1e6: attention inside prefill
    kv_tokens: int
    max_num_seqs: int
    token_budget: int

    def __post_init__(self) -> None:
        if not self.token_budget > self.max_num_seqs >= 1:
            raise ConfigError(
                f"token_budget ({self.token_budget}) must be above max_num_seqs ({self.max_num_seqs}):"
                " a step decodes one token for each call and needs room for prefill"
            )

    def linear_cost(self, tokens: int) -> float:
        """Seconds of a step with so many tokens, attention left out."""
        return self.overhead + max(
            self.floor + self.floor_per_token * tokens,
            self.base + self.base_per_token * tokens,
        )


A100: Final = Engine(
    name="Llama-3-8B in bf16 on one A100-80G",
    floor=9.8e-3,
    floor_per_token=0.027e-3,
    base=4.5e-3,
    base_per_token=0.068e-3,
    overhead=1.5e-3,
    per_context_token=0.080e-6,
    per_token_pair=3.0e-9,
    kv_tokens=445_000,
    max_num_seqs=256,
    token_budget=2048,
)
H100: Final = Engine(
    name="Llama-3-8B in bf16 on one H100-80G",
    floor=5.8e-3,
    floor_per_token=0.008e-3,
    base=4.2e-3,
    base_per_token=0.0207e-3,
    overhead=0.7e-3,
    per_context_token=0.049e-6,
    per_token_pair=1.3e-9,
    kv_tokens=445_000,
    max_num_seqs=1024,
    token_budget=8192,
)
TWO_CORE_CPU: Final = Engine(
    name="a tiny model on two CPU cores",
    floor=0.70e-3,
    floor_per_token=0.0,
    base=0.30e-3,
    base_per_token=0.160e-3,
    overhead=0.0,
    per_context_token=0.5e-6,
    per_token_pair=0.0,
    kv_tokens=16_000,
    max_num_seqs=8,
    token_budget=512,
)


class _Call:
    __slots__ = ("finished", "first_token", "held", "last_step", "output_left", "prefill_left", "ticket")

    def __init__(
        self, finished: asyncio.Future[None], prompt: int, output: int, first_token: OnFirstToken | None
    ) -> None:
        self.finished = finished
        self.first_token = first_token  # until it has been called
        self.held = prompt  # tokens of memory when it (last) entered; one more per decode step since
        self.prefill_left = prompt
        self.output_left = output
        self.last_step = 0  # number of the decode step that brings its last token
        self.ticket = 0  # which entry of the heap of last steps is its own


@dataclass(slots=True)
class _Stretch:
    """Consecutive steps with the same calls, planned in one go: step i costs `first + (i - 1) * growth`."""

    start: float
    first: float
    growth: float
    steps: int

    def end(self, steps: int) -> float:
        return self.start + steps * (self.first + self.growth * (steps - 1) / 2)

    def steps_until(self, now: float) -> int:
        """The smallest number of steps, at least one, that end at `now` or later: a quadratic equation."""
        elapsed = max(0.0, now - self.start)
        slope = self.first - self.growth / 2
        steps = max(1, math.ceil(2 * elapsed / (slope + math.sqrt(slope * slope + 2 * self.growth * elapsed))))
        while steps > 1 and self.end(steps - 1) >= now:
            steps -= 1
        while self.end(steps) < now:
            steps += 1
        return steps


class BatchingServer:
    """Serves calls of known length as an engine with continuous batching would.

    Complexity: O(log n) per call, and O(calls in prefill) per step that prefills; steps that only decode are skipped
    over in closed form up to the next arrival, end or overflow, with the same result.
    Cancellation: the engine does not notice; the call goes on to its end, as behind a gateway that keeps generating.
    Threads: not safe; one event loop owns the server.
    """

    def __init__(self, engine: Engine = A100) -> None:
        self.engine: Final = engine
        self.recomputed_tokens = 0
        self._waiting: deque[_Call] = deque()
        self._prefilling: deque[_Call] = deque()
        self._decoding: dict[_Call, None] = {}  # in order of entry, so that popitem() takes the newest
        self._ends: list[tuple[int, int, _Call]] = []
        self._tickets = 0
        self._step = 0  # decode steps so far
        self._memory = 0  # tokens held by calls that prefill or decode
        self._context = 0  # those of the calls that decode
        self._stretch: _Stretch | None = None
        self._timer: asyncio.Handle | None = None

    def __repr__(self) -> str:
        running = len(self._prefilling) + len(self._decoding)
        return f"<BatchingServer {running} running, {len(self._waiting)} waiting, {self._memory} tokens held>"

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """Return once the last token is there; a call has at least one token of each sort.

        `first_token` is called once, when the prompt has been computed for the first time.
        Raises: `ValueError` for a call that the memory could not hold even alone.
        """
        prompt, output = max(1, prompt_tokens), max(1, output_tokens)
        if not prompt + output <= self.engine.kv_tokens:
            raise ValueError(
                f"a call of {prompt + output} tokens never fits the engine's memory ({self.engine.kv_tokens} tokens)"
            )
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future(), prompt, output, first_token)
        self._waiting.append(call)
        if self._timer is None:
            # Not now but at the end of this pass of the loop: calls that come together enter together.
            self._timer = loop.call_soon(self._plan)
        elif len(self._waiting) == 1:
            self._cut_short(loop)
        await call.finished

    def check(self) -> None:
        """Assert every invariant; for tests."""
        decoding = sum(call.held + self._decoded(call) for call in self._decoding)
        assert self._context == decoding
        assert self._memory == decoding + sum(call.held for call in self._prefilling) <= self.engine.kv_tokens
        assert len(self._decoding) + len(self._prefilling) <= self.engine.max_num_seqs

    def _decoded(self, call: _Call) -> int:
        """Decode steps that `call` has had since it entered; its first token came with the prefill."""
        return self._step - call.last_step + call.output_left - 1

    def _cut_short(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the present stretch with the step that runs now: somebody has come and may enter after it.

        Only whoever is first in the queue cuts: behind a queue nobody enters before a call ends.
        """
        if self._stretch is not None and self._timer is not None and self._stretch.steps > 1:
            steps = self._stretch.steps_until(loop.time())
            if steps < self._stretch.steps:
                self._timer.cancel()
                self._stretch.steps = steps
                self._timer = loop.call_at(self._stretch.end(steps), self._finish_stretch)

    def _plan(self) -> None:
        """Start the next step, or the next stretch of equal ones."""
        loop = asyncio.get_running_loop()
        now = loop.time() if self._stretch is None else self._stretch.end(self._stretch.steps)
        self._make_room()
        decoding = len(self._decoding)
        chunk_tokens, pairs = self._prefill(self.engine.token_budget - decoding)
        if not decoding and not chunk_tokens:
            self._stretch = self._timer = None
            return
        engine = self.engine
        first = engine.linear_cost(decoding + chunk_tokens) + engine.per_token_pair * pairs
        first += engine.per_context_token * (self._context + decoding)
        steps = 1 if chunk_tokens else self._equal_steps(decoding)
        self._stretch = _Stretch(now, first, engine.per_context_token * decoding, steps)
        self._timer = loop.call_at(self._stretch.end(steps), self._finish_stretch)

    def _equal_steps(self, decoding: int) -> int:
        """How many steps from here on only decode the same calls: up to the next end or overflow."""
        while self._ends[0][2].ticket != self._ends[0][1]:
            heapq.heappop(self._ends)
        return min(self._ends[0][0] - self._step, (self.engine.kv_tokens - self._memory) // decoding)

    def _make_room(self) -> None:
        """Send the newest calls back to the queue until every other one may decode one more token."""
        while self._memory + len(self._decoding) > self.engine.kv_tokens:
            if self._prefilling:
                call = self._prefilling.pop()
                self._memory -= call.held
                self.recomputed_tokens += call.held - call.prefill_left
            else:
                call, _ = self._decoding.popitem()
                decoded = self._decoded(call)
                call.ticket = -1
                call.held += decoded
                self._memory -= call.held
                self._context -= call.held
                self.recomputed_tokens += call.held
                # The token that the last decode step brought has no memory yet: it is prefilled too.
                call.held += 1
                call.output_left -= decoded + 1
            call.prefill_left = call.held
            self._waiting.appendleft(call)

    def _prefill(self, budget: int) -> tuple[int, float]:
        """Cut chunks off the calls in prefill, then let calls in; the tokens, and sum(q * (c + q / 2))."""
        tokens, pairs = 0, 0.0
        for call in self._prefilling:
            chunk = min(call.prefill_left, budget - tokens)
            pairs += chunk * (call.held - call.prefill_left + chunk / 2)
            call.prefill_left -= chunk
            tokens += chunk
        running = len(self._decoding) + len(self._prefilling)
        # The step that is being planned decodes too: what it writes is taken before anybody enters.
        free = self.engine.kv_tokens - self._memory - len(self._decoding)
        while tokens < budget and self._waiting and running < self.engine.max_num_seqs:
            if self._waiting[0].held > free:
                break
            call = self._waiting.popleft()
            chunk = min(call.prefill_left, budget - tokens)
            pairs += chunk * chunk / 2
            call.prefill_left -= chunk
            tokens += chunk
            running += 1
            free -= call.held
            self._memory += call.held
            self._prefilling.append(call)
        return tokens, pairs

    def _finish_stretch(self) -> None:
        assert self._stretch is not None
        steps = self._stretch.steps
        decoded = steps * len(self._decoding)
        if decoded:
            self._step += steps
            self._memory += decoded
            self._context += decoded
        while self._prefilling and not self._prefilling[0].prefill_left:
            self._start_decoding(self._prefilling.popleft())
        while self._ends and self._ends[0][0] <= self._step:
            _, ticket, call = heapq.heappop(self._ends)
            if ticket == call.ticket:
                self._end(call)
        self._plan()

    def _start_decoding(self, call: _Call) -> None:
        self._tickets += 1
        call.ticket = self._tickets
        call.last_step = self._step + call.output_left - 1
        self._context += call.held
        self._decoding[call] = None
        heapq.heappush(self._ends, (call.last_step, call.ticket, call))
        if call.first_token is not None:
            if not call.finished.done():
                # In a callback of its own: if it raises, the engine goes on.
                asyncio.get_running_loop().call_soon(call.first_token)
            call.first_token = None

    def _end(self, call: _Call) -> None:
        del self._decoding[call]
        held = call.held + call.output_left - 1
        self._memory -= held
        self._context -= held
        if not call.finished.done():
            call.finished.set_result(None)
