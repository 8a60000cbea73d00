"""A backend that works on a fixed number of calls at once, first come first served.

Floor: fourth. Real or virtual time, whatever the running loop has.
What it stands for: a GPU server or a provider's quota seen from far away. A call
takes as long as it takes, whatever runs beside it; only waiting for a slot hurts.
"""

import asyncio
from collections import deque

from .backend import OnFirstToken
from .checks import above_zero, at_least_one, at_least_zero


class SlotServer:
    """Serves calls of known length, `slots` at once, the others in order of arrival.

    Complexity: O(1) per call.
    Cancellation: a call that has a slot keeps it to its end, as a generation does whose client has
    hung up; one that waits is skipped.
    Threads: not safe; one event loop owns the server.
    """

    __slots__ = ("_busy", "_slots", "_waiting")

    def __init__(self, slots: int) -> None:
        at_least_one(slots=slots)
        self._slots = slots
        self._busy = 0
        self._waiting: deque[tuple[asyncio.Future[None], float, OnFirstToken | None, float]] = deque()

    def __repr__(self) -> str:
        return f"<SlotServer {self._busy} of {self._slots} busy, {len(self._waiting)} waiting>"

    async def serve(self, seconds: float, *, first_token: OnFirstToken | None = None, first_after: float = 0.0) -> None:
        """Return once the call has had a slot for `seconds`, `first_after` of them before `first_token` is called."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((finished, seconds, first_token, first_after))
        self._fill()
        await finished

    def _fill(self) -> None:
        while self._waiting and self._busy < self._slots:
            finished, seconds, first_token, first_after = self._waiting.popleft()
            if not finished.done():
                self._busy += 1
                loop = finished.get_loop()
                if first_token is not None:
                    loop.call_later(first_after, _tell, finished, first_token)
                loop.call_later(seconds, self._end, finished)

    def _end(self, finished: asyncio.Future[None]) -> None:
        self._busy -= 1
        if not finished.done():
            finished.set_result(None)
        self._fill()


def _tell(finished: asyncio.Future[None], first_token: OnFirstToken) -> None:
    if not finished.done():
        first_token()


class TokenSlots:
    """A `SlotServer` for calls of known length: a fixed time for each token, whatever runs beside it.

    Complexity, cancellation and threads: as `SlotServer`. The first token comes when the prompt has been read.
    """

    __slots__ = ("_per_output_token", "_per_prompt_token", "_server")

    def __init__(self, slots: int, *, per_prompt_token: float = 0.0001, per_output_token: float = 0.02) -> None:
        at_least_zero(per_prompt_token=per_prompt_token)
        above_zero(per_output_token=per_output_token)
        self._server = SlotServer(slots)
        self._per_prompt_token = per_prompt_token
        self._per_output_token = per_output_token

    def __repr__(self) -> str:
        return f"<TokenSlots {self._server!r}>"

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        """Return once the last token is there; a call has at least one token of each sort."""
        reading = max(1, prompt_tokens) * self._per_prompt_token + self._per_output_token
        writing = (max(1, output_tokens) - 1) * self._per_output_token
        await self._server.serve(reading + writing, first_token=first_token, first_after=reading)
