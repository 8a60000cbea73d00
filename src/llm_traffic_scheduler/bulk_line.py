"""How the calls of one `map` or `as_completed` wait for room in a queue that has a bound.

Floor: third. At most as many of them wait in the scheduler's queue as its bound allows, and one at least; the others
stand in line here. Those in the queue count against a bound of their own, so they turn nobody else's call away, and
nobody else's turn them away. A place that comes free is counted to the next in line before it wakes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

__all__ = ["Line"]


class Line:
    """Places in the queue, first come, first served.

    Complexity: O(1) each; who was cancelled in line is passed over when its turn comes.
    """

    __slots__ = ("_line", "_places", "_taken")

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._places = 1.0
        self._taken = 0

    async def enter(self, bound: int) -> None:
        """Take a place; return when there is one. `bound`: that of the queue, now.

        Cancellation: leaves the line, or gives the place on that it has just got.
        """
        self._places = max(1, bound)
        self._call_up()
        if not self._line and self._taken < self._places:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()
            turn.cancel()
            raise

    def lift(self) -> None:
        """There is no bound any more: nobody has to stand here."""
        self._places = math.inf
        self._call_up()

    def leave(self) -> None:
        """Give the place on: the call has started, or will not."""
        self._taken -= 1
        self._call_up()

    def _call_up(self) -> None:
        while self._line and self._taken < self._places:
            turn = self._line.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
