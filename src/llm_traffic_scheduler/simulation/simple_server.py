"""A second opinion: an engine so simple that nothing in it can be wrong in an interesting way.

Floor: fourth. Real or virtual time; written for virtual time.
Model: a step takes `a + b * running` and brings every running call one token. Calls enter first come, first served, up
to `max_running`; the prompts of those that enter together are computed at once, in a step of their own that stalls
everybody else, and brings their first token. No chunks, no memory. A law that wins here and on `BatchingServer` does
not win by the details of either.
"""

import asyncio
import heapq
import math
from collections import deque
from typing import Final

from .backend import OnFirstToken
from .checks import above_zero, at_least_one, at_least_zero


class _Call:
    __slots__ = ("finished", "first_token", "last_step", "output", "prompt")

    def __init__(
        self, finished: asyncio.Future[None], prompt: int, output: int, first_token: OnFirstToken | None
    ) -> None:
        self.finished = finished
        self.prompt = prompt
        self.output = output
        self.first_token = first_token
        self.last_step = 0


class SimpleServer:
    """Serves calls of known length; `per_step`, `per_running` and `per_prompt_token` are seconds.

    The defaults are of the size of an A100's (see `batching_server.A100`): 11.3 ms a step, 0.15 ms for each call in it
    with a context of some 1500 tokens, and 0.068 ms for each token of a prompt.
    Complexity: O(log n) per call; steps that only decode are skipped over in closed form.
    Cancellation: the engine does not notice; the call goes on to its end.
    Threads: not safe; one event loop owns the server.
    """

    def __init__(
        self,
        *,
        per_step: float = 11.3e-3,
        per_running: float = 0.15e-3,
        per_prompt_token: float = 0.068e-3,
        max_running: int = 256,
    ) -> None:
        above_zero(per_step=per_step)
        at_least_zero(per_running=per_running, per_prompt_token=per_prompt_token)
        at_least_one(max_running=max_running)
        self.max_running: Final = max_running
        self._per_step, self._per_running, self._per_prompt_token = per_step, per_running, per_prompt_token
        self._waiting: deque[_Call] = deque()
        self._entering: list[_Call] = []  # in the step that computes their prompts
        self._decoding: list[tuple[int, int, _Call]] = []  # a heap by last step
        self._step = self._serial = 0
        self._began = self._each = 0.0  # when the present stretch of steps began, and what each of them takes
        self._steps = 0
        self._timer: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<SimpleServer {len(self._entering) + len(self._decoding)} running, {len(self._waiting)} waiting>"

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """Return once the last token is there; a call has at least one token of each sort."""
        loop = asyncio.get_running_loop()
        call = _Call(loop.create_future(), max(1, prompt_tokens), max(1, output_tokens), first_token)
        self._waiting.append(call)
        if self._timer is None:
            # At the end of this pass of the loop: calls that come together enter together.
            self._timer = loop.call_soon(self._plan, loop, None)
        elif self._steps > 1 and len(self._waiting) == 1 and len(self._decoding) < self.max_running:
            self._cut_short(loop)
        await call.finished

    def _cut_short(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the present stretch with the step that runs now: somebody may enter after it."""
        steps = max(1, math.ceil((loop.time() - self._began) / self._each))
        if steps < self._steps and self._timer is not None:
            self._timer.cancel()
            self._steps = steps
            self._timer = loop.call_at(self._began + steps * self._each, self._finish, loop)

    def _plan(self, loop: asyncio.AbstractEventLoop, start: float | None) -> None:
        """Start the next step with prompts, or the next stretch of steps without."""
        while self._waiting and len(self._entering) + len(self._decoding) < self.max_running:
            self._entering.append(self._waiting.popleft())
        running = len(self._entering) + len(self._decoding)
        if not running:
            self._timer, self._steps = None, 0
            return
        self._began = loop.time() if start is None else start
        self._each = self._per_step + self._per_running * running
        self._steps = 1 if self._entering else self._decoding[0][0] - self._step
        if self._entering:
            self._each += self._per_prompt_token * sum(call.prompt for call in self._entering)
        self._timer = loop.call_at(self._began + self._steps * self._each, self._finish, loop)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        end = self._began + self._steps * self._each
        if not self._entering:
            self._step += self._steps
        for call in self._entering:
            # Others are stalled while prompts are computed: this step is none of theirs.
            call.last_step = self._step + call.output - 1
            self._serial += 1
            heapq.heappush(self._decoding, (call.last_step, self._serial, call))
            if call.first_token is not None and not call.finished.done():
                loop.call_soon(call.first_token)
        self._entering.clear()
        while self._decoding and self._decoding[0][0] <= self._step:
            call = heapq.heappop(self._decoding)[2]
            if not call.finished.done():
                call.finished.set_result(None)
        self._plan(loop, end)
