"""How soon interactive streams begin, and how fast they go on.

Floor: ground. No clock: time comes in as `now`. Made only once somebody reports a token.
"""

from __future__ import annotations

from .metrics import SlidingWindowMetrics

__all__ = ["StreamTimes"]


class StreamTimes:
    """Times to first token and seconds per output token of interactive calls, over the last `window` seconds.

    Complexity and precision: as `SlidingWindowMetrics`, of which this is two.
    Threads: one owns it; `read` is safe from any.
    """

    __slots__ = ("_first_tokens", "_paces")

    def __init__(self, window: float) -> None:
        self._first_tokens = SlidingWindowMetrics(window)
        self._paces = SlidingWindowMetrics(window)

    def first_token(self, now: float, elapsed: float) -> None:
        """A call has its first token, `elapsed` seconds after its submit."""
        self._first_tokens.completed(now, elapsed)

    def pace(self, now: float, seconds_per_token: float) -> None:
        """A call has ended that took so long per token after the first."""
        self._paces.completed(now, seconds_per_token)

    def advance(self, now: float) -> None:
        """Let go what has left the window by `now`: afterwards `next_change` is later than that."""
        self._first_tokens.advance(now)
        self._paces.advance(now)

    def read(self, now: float) -> tuple[float | None, float | None]:
        """P95 of the time to first token and of the pace; None where the window has none."""
        first_tokens, paces = self._first_tokens.read(now), self._paces.read(now)
        return (
            first_tokens.p95 if first_tokens.sample_count else None,
            paces.p95 if paces.sample_count else None,
        )

    def resized(self, window: float, now: float) -> StreamTimes:
        """The same over a window of another length: what still fits in it."""
        other = StreamTimes(window)
        other._first_tokens = self._first_tokens.resized(window, now)
        other._paces = self._paces.resized(window, now)
        return other

    def next_change(self) -> float:
        """When the next sample leaves the window; infinity if none is in it."""
        return min(self._first_tokens.next_change(), self._paces.next_change())
