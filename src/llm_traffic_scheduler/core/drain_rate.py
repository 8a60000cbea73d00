"""How fast the queues move, for `retry_after`.

Floor: ground. Pure.
"""

from __future__ import annotations

from collections import deque

__all__ = ["DrainRate"]


class DrainRate:
    """Starts per second over about the last `window` seconds, from readings of counters, one per kind.

    Complexity: `mark` O(1), wanted only from `next_mark` on; at most 101 readings are kept.
    """

    __slots__ = ("_marks", "_step", "next_mark")

    def __init__(self, window: float, now: float, started: tuple[int, ...]) -> None:
        self._step = window / 100
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, started)], maxlen=101)
        self.next_mark = now + self._step

    def mark(self, now: float, started: tuple[int, ...]) -> None:
        """So many calls of each kind have started by `now`."""
        self._marks.append((now, started))
        self.next_mark = now + self._step

    def seconds_for(self, calls: int, now: float, started: tuple[int, ...], kind: int) -> float | None:
        """How long `calls` starts will take at the present rate; None if nothing has started lately."""
        marks = self._marks
        while len(marks) > 1 and now - marks[1][0] >= 100 * self._step:
            marks.popleft()
        since, before = marks[0]
        if started[kind] <= before[kind] or not now > since:
            return None
        return calls * (now - since) / (started[kind] - before[kind])
