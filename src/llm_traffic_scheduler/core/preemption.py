"""Whether running batch calls are stopped for waiting interactive ones, how many of them, and what that has cost.

Floor: ground. No clock, no asyncio: time comes in as `now`.

A call that is stopped has to begin anew, so what it has run is lost. The loss is bounded, not only the number: a
twentieth of what batch work has had lately. A newcomer costs next to nothing, a call near its end is left alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

__all__ = ["BUDGET", "PER_CALL", "PER_DECISION", "WINDOW", "BatchTime", "choose", "wanted"]

BUDGET: Final = 0.05
"""Of the batch slot-seconds in the window, the part that may be lost."""
WINDOW: Final = 60.0
"""Seconds over which both are counted."""
PER_DECISION: Final = 2
"""Calls that are stopped at once; more only when those have ended and somebody still waits."""
PER_CALL: Final = 2
"""Times that one call is stopped; then it runs to its end."""

_SLICE: Final = 1.0  # seconds; sixty of them and the two that the window cuts are all that is kept

ItemT = TypeVar("ItemT")


@dataclass(slots=True)
class _Slice:
    index: int
    taken: float = 0.0
    lost: float = 0.0


class BatchTime:
    """Slot-seconds that batch calls have had in the last WINDOW seconds, and those of them that were for nothing.

    What the window cuts is left out of the former and counted into the latter: the share that was lost is never
    higher than it seems.

    Complexity: O(1) for each event, and as many slices as have begun since the last one, WINDOW at most.
    Threads: one owns it.
    """

    __slots__ = ("_running", "_slices", "_until")

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()
        self._running = 0
        self._until = -math.inf

    def advance(self, now: float, running: int) -> None:
        """From `now` on so many batch calls run; as many as were told last time have run until then."""
        self._add(self._until, now, self._running)
        self._until, self._running = max(now, self._until), running

    def recall(self, now: float, starts: Iterable[float]) -> None:
        """Nobody has told of anything since the last time: what runs now has done so since `starts`.

        What has ended meanwhile is not known, and left out.
        """
        since, running = max(self._until, now - WINDOW), 0
        for start in sorted(max(start, since) for start in starts):
            self._add(since, start, running)
            since, running = start, running + 1
        self._add(since, now, running)
        self._until, self._running = max(now, self._until), running

    def lose(self, now: float, seconds: float) -> None:
        """A call that has had a slot for so long has to begin anew."""
        self._slice(math.floor(now / _SLICE)).lost += seconds

    def lost(self, now: float) -> float:
        """Slot-seconds that were for nothing."""
        self._trim(now)
        return sum(each.lost for each in self._slices)

    def taken(self, now: float) -> float:
        """Slot-seconds that batch calls have had."""
        return sum(each.taken for each in self._slices if now - WINDOW <= each.index * _SLICE)

    def left(self, now: float) -> float:
        """Slot-seconds that may be lost now; below 0 if too many have been."""
        return BUDGET * self.taken(now) - self.lost(now)

    def _add(self, start: float, end: float, running: int) -> None:
        if not running:
            return
        start = max(start, end - WINDOW - _SLICE)
        while start < end:
            index = math.floor(start / _SLICE)
            until = min((index + 1) * _SLICE, end)
            self._slice(index).taken += running * (until - start)
            start = until

    def _slice(self, index: int) -> _Slice:
        """The last slice, which is the one of this index or, once the clock has stepped back, a later one."""
        if not self._slices or self._slices[-1].index < index:
            self._trim(index * _SLICE)
            self._slices.append(_Slice(index))
        return self._slices[-1]

    def _trim(self, now: float) -> None:
        while self._slices and (self._slices[0].index + 1) * _SLICE <= now - WINDOW:
            self._slices.popleft()

    def check(self) -> None:
        """Assert every invariant; for tests."""
        indexes = [each.index for each in self._slices]
        assert indexes == sorted(set(indexes)), "slices out of order"
        assert len(indexes) <= WINDOW / _SLICE + 2, "slices that nobody needs"
        assert all(each.taken >= 0 and each.lost >= 0 for each in self._slices)


def wanted(*, waiting: int, running: int, batch_running: int, max_concurrency: int, batch_min: int) -> range:
    """How many batch calls to stop for `waiting` interactive ones; empty if none.

    Not fewer than brings a slot: with more running than the cap, which has been lowered, the first to end bring none.
    """
    too_many = max(0, running - max_concurrency)
    if running < max_concurrency or not waiting:
        return range(0)
    return range(too_many + 1, min(PER_DECISION, too_many + waiting, batch_running - batch_min) + 1)


def choose(newest_first: Iterable[tuple[ItemT, float]], numbers: range, left: float) -> list[ItemT]:
    """As many as `numbers` allows, from the front; none if there are too few. Each comes with what it would lose.

    The first that would lose more than is `left` ends it: those behind it have run longer.
    """
    chosen: list[ItemT] = []
    if numbers:
        for item, loss in newest_first:
            left -= loss
            if left < 0:
                break
            chosen.append(item)
            if len(chosen) == numbers[-1]:
                break
    return chosen if len(chosen) in numbers else []
