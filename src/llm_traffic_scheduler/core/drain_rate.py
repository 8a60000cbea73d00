"""How fast a queue moves, for `retry_after`.

Floor: ground. Pure.
"""

from __future__ import annotations

from collections import deque

__all__ = ["DrainRate"]


class DrainRate:
    """Starts per second over about the last `window` seconds, from readings of a counter.

    Complexity: `mark` O(1); at most 101 readings are kept, one per hundredth of the window.
    """

    __slots__ = ("_marks", "_step")

    def __init__(self, window: float, now: float) -> None:
        self._step = window / 100
        self._marks: deque[tuple[float, int]] = deque([(now, 0)], maxlen=101)

    def mark(self, now: float, started: int) -> None:
        """`started` calls have started by `now`."""
        if now - self._marks[-1][0] >= self._step:
            self._marks.append((now, started))

    def seconds_for(self, calls: int, now: float, started: int) -> float | None:
        """How long `calls` starts will take at the present rate; None if nothing has started lately."""
        marks = self._marks
        while len(marks) > 1 and now - marks[1][0] >= 100 * self._step:
            marks.popleft()
        since, before = marks[0]
        if started <= before or not now > since:
            return None
        return calls * (now - since) / (started - before)
