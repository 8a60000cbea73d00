"""How fast the queues move, for `retry_after`.

Floor: ground. Pure.
"""

from __future__ import annotations

from collections import deque

__all__ = ["DrainRate"]


class DrainRate:
    """Ends per second over about the last `window` seconds, from readings of counters, one per kind.

    Complexity: `mark` O(1), wanted once per hundredth of the window; at most 101 readings are kept.
    """

    __slots__ = ("_marks", "_window")

    def __init__(self, window: float, now: float, ended: tuple[int, ...]) -> None:
        self._window = window
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, ended)], maxlen=101)

    def mark(self, now: float, ended: tuple[int, ...]) -> None:
        """So many calls of each kind have given their slot back by `now`."""
        self._marks.append((now, ended))

    def seconds_for(self, calls: int, now: float, ended: tuple[int, ...], kind: int) -> float | None:
        """How long `calls` calls will take at the present rate; None if none has ended lately.

        Ends and not starts: a burst that fills free slots says nothing about how soon the next is free.
        """
        marks = self._marks
        while len(marks) > 1 and now - marks[1][0] >= self._window:
            marks.popleft()
        since, before = marks[0]
        if ended[kind] <= before[kind] or not now > since:
            return None
        return calls * (now - since) / (ended[kind] - before[kind])
