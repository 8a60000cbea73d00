"""A backend that works on a fixed number of calls at once, first come first served.

Floor: fourth. Real or virtual time, whatever the running loop has.
What it stands for: a GPU server or a provider's quota seen from far away. A call
takes as long as it takes, whatever runs beside it; only waiting for a slot hurts.
"""

import asyncio
from collections import deque


class SlotServer:
    """Serves calls of known length, `slots` at once, the others in order of arrival.

    Complexity: O(1) per call.
    Cancellation: a call that has a slot keeps it to its end, as a generation does whose client has
    hung up; one that waits is skipped.
    Threads: not safe; one event loop owns the server.
    """

    __slots__ = ("_busy", "_slots", "_waiting")

    def __init__(self, slots: int) -> None:
        if not slots >= 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self._slots = slots
        self._busy = 0
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()

    def __repr__(self) -> str:
        return f"<SlotServer {self._busy} of {self._slots} busy, {len(self._waiting)} waiting>"

    async def serve(self, seconds: float) -> None:
        """Return once the call has had a slot for `seconds`."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((finished, seconds))
        self._fill()
        await finished

    def _fill(self) -> None:
        while self._waiting and self._busy < self._slots:
            finished, seconds = self._waiting.popleft()
            if not finished.done():
                self._busy += 1
                finished.get_loop().call_later(seconds, self._end, finished)

    def _end(self, finished: asyncio.Future[None]) -> None:
        self._busy -= 1
        if not finished.done():
            finished.set_result(None)
        self._fill()
