"""When the batch limit was what, and why: the last changes, at a price that a busy law does not feel.

Floor: second. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from .base import Decision

__all__ = ["LimitHistory", "LimitRecord", "Swings", "swing"]

_CHANGES: Final = 256
_PER_STRETCH: Final = 3  # the lowest, the highest, the latest
_STRETCHES: Final = 10  # of a window: at worst a history goes back 256 / (3 * 10) = 8.5 windows


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """From `time` on so many batch calls were allowed to run, for this reason.

    Attributes:
        time: seconds on the clock of the scheduler's event loop; `loop.time() - record.time` is its age. From another
            thread `time.monotonic()` serves as well, unless the loop has a clock of its own.
        limit: batch calls allowed to run.
        pressure: at that moment; never clamped.
        reason: the policy's own code, as in `LimitChanged`.
    """

    time: float
    limit: int
    pressure: float
    reason: str


class LimitHistory:
    """The last 256 changes of the limit or of its reason, oldest first.

    A law that moves with each call would push everything out within a second. So of the changes within a tenth
    of the window at most three are kept: the lowest, the highest and the latest limit; where changes are
    fewer, all are.

    Complexity: `add` O(1). Threads: one owns it; `records` from any (try a RuntimeError again).
    """

    __slots__ = ("_changes", "_in_stretch", "_stretch_end")

    def __init__(self) -> None:
        # Decisions are there already; a record for each of those that are dropped again would cost more than the rest.
        self._changes: deque[tuple[float, Decision]] = deque(maxlen=_CHANGES)
        self._stretch_end = 0.0
        self._in_stretch = 0

    def add(self, now: float, decision: Decision, window: float) -> None:
        """This decision is in force from `now` on, and is not as the one before; `window` in seconds."""
        changes = self._changes
        if changes and now < changes[-1][0]:
            now = changes[-1][0]  # a timer that fires early is taken to have fired when it was due
        if not self._in_stretch or now >= self._stretch_end:
            self._stretch_end = now + window / _STRETCHES
            self._in_stretch = 0
        elif self._in_stretch >= _PER_STRETCH:
            self._thin_out(decision.limit)
        changes.append((now, decision))
        self._in_stretch += 1

    def _thin_out(self, limit: int) -> None:
        """Of those of this stretch, keep what is lowest and highest when `limit` has come."""
        changes = self._changes
        start = len(changes) - _PER_STRETCH
        limits = changes[start][1].limit, changes[start + 1][1].limit, changes[start + 2][1].limit
        lowest, highest = min(limits), max(limits)
        kept = (
            limits.index(lowest) if lowest <= limit else None,
            limits.index(highest) if highest >= limit else None,
        )
        # One by one, so that a reader in another thread never misses those that stay.
        for place in (2, 1, 0):
            if place not in kept:
                del changes[start + place]
                self._in_stretch -= 1

    def records(self) -> tuple[LimitRecord, ...]:
        """What is kept, oldest first."""
        return tuple(LimitRecord(at, made.limit, made.pressure, made.reason) for at, made in tuple(self._changes))

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert self._in_stretch <= min(_PER_STRETCH, len(self._changes))
        times = [at for at, _ in self._changes]
        assert times == sorted(times)


def swing(batch_max: int, batch_min: int) -> int:
    """By how many calls a limit must move to have moved: a quarter of its range, at least two calls if it has them.

    A rate at the edge of two limits takes the limit to and fro by one with each call, which does no harm. 0: it cannot
    move at all.
    """
    span = batch_max - batch_min
    return min(span, max(2, -(-span // 4)))


class Swings:
    """How often the limit turned: went up or down by at least `by` calls after it had gone the other way."""

    __slots__ = ("_by", "_direction", "_high", "_low", "highest", "lowest", "turns")

    def __init__(self, by: int) -> None:
        self._by = by
        self._direction = 0
        self._low = self._high = self.lowest = self.highest = -1
        self.turns = 0

    def add(self, limit: int) -> None:
        """The limit has become `limit`."""
        if self._low < 0:
            self._low = self._high = self.lowest = self.highest = limit
        self.lowest, self.highest = min(self.lowest, limit), max(self.highest, limit)
        self._low, self._high = min(self._low, limit), max(self._high, limit)
        if self._by < 1:
            return
        if self._direction <= 0 and limit - self._low >= self._by:
            self._turn(limit, 1)
        elif self._direction >= 0 and self._high - limit >= self._by:
            self._turn(limit, -1)

    def _turn(self, limit: int, direction: int) -> None:
        self.turns += self._direction != 0
        self._direction = direction
        self._low = self._high = limit
