"""How interactive traffic has fared lately: arrivals per second and latency percentiles.

Floor: ground. No clock, no asyncio: time comes in as `now`.
Algorithm: samples are appended to flat lists and folded, 512 at a time or when somebody looks,
into a window of time slices of logarithmic buckets (`window`, `histogram`). The lists are what
keeps a call cheap: an append costs a tenth of what finding slice and bucket one by one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from .readings import TrafficSnapshot, WindowReading
from .window import Grid, Pending, Window

__all__ = ["SlidingWindowMetrics", "TrafficSnapshot", "WindowReading"]

_FOLD_AT: Final = 512


class SlidingWindowMetrics:
    """Arrivals and latencies over the last `window` seconds, in `slices` slices.

    A sample leaves at most one slice before it is `window` old, and never after. A percentile is
    nearest-rank and within 1 % of the exact one. A clock that goes back is taken to stand still.

    An unsuccessful end says only that the call would have taken at least so long. It joins the
    samples if the caller says so (`counts`); and once the last success has left while failures
    remain, the P95 for policies keeps the value it had, until a success comes or no failure is
    left: a backend that fails everything at once must not look like one at ease.

    Attributes:
        arrived: `arrived(now)` notes that a call was submitted. It is the append of the list
            itself, for a call pays for every frame; who lets calls arrive that never end calls `trim`.

    Complexity: `arrived`, `completed` and `failed` amortised O(1); `read` O(1), plus O(log n) for n
    unfinished calls and, from a thread that did not `advance` first, a fold of what is pending.
    Memory is bounded whatever the traffic.
    Threads: one thread owns it; `read` changes nothing and is safe from any.
    """

    __slots__ = (
        "_failed_at",
        "_finished_at",
        "_latencies",
        "_lower_bounds",
        "_seen",
        "arrived",
        "length",
        "slice_length",
        "span",
    )

    def __init__(self, window: float, *, slices: int = 100) -> None:
        assert 0 < window < math.inf
        assert slices >= 1
        self.length = window
        self.span = slices
        self.slice_length = window / slices
        self._publish(Window(Grid(0.0, window, slices)), Pending())

    def __repr__(self) -> str:
        window, pending = self._seen
        return (
            f"<SlidingWindowMetrics: {window.arrivals} arrivals, {window.successes} successes, {window.failures}"
            f" failures in {window.grid.length:g} s; {len(pending.arrivals) + len(pending.latencies)} not folded yet>"
        )

    def completed(self, now: float, latency: float) -> None:
        """A call succeeded, `latency` seconds after its submit."""
        self._finished_at.append(now)
        latencies = self._latencies
        latencies.append(latency)
        if len(latencies) >= _FOLD_AT:
            self.advance(now)

    def failed(self, now: float, latency: float, *, counts: bool) -> None:
        """A call ended without success after `latency` seconds; it joins the samples if `counts`."""
        self._failed_at.append(now)
        self._lower_bounds.append(latency if counts else None)
        if len(self._failed_at) >= _FOLD_AT:
            self.advance(now)

    def trim(self, now: float) -> None:
        """Fold if much is pending."""
        if len(self._seen[1].arrivals) >= _FOLD_AT:
            self.advance(now)

    def advance(self, now: float) -> None:
        """Fold what is pending, and let go what has left the window by `now`."""
        window, pending = self._seen
        later = window.after(now, pending)
        if later is not window:
            self._publish(later, Pending())

    def read(self, now: float, unfinished: Sequence[float] = ()) -> WindowReading:
        """Rate and percentiles at `now`: exactly what they would be after `advance(now)`.

        `unfinished` are the ages in seconds, longest first, of calls that join as samples.
        """
        window, pending = self._seen
        return window.after(now, pending).reading(unfinished)

    def next_change(self) -> float:
        """When the next sample leaves the window; infinity if none is in it."""
        _, pending = self._seen
        if pending:
            self.advance(pending.first())
        window, _ = self._seen
        return window.next_change()

    def slice_end(self, now: float) -> float:
        """When the slice that `now` lies in ends; slices are counted from the first sample."""
        window, pending = self._seen
        if not window.begun:
            window = window.after(now, pending)
        if not window.begun:
            return now + self.slice_length
        return window.grid.start(max(window.grid.index(now), window.latest) + 1)

    def resized(self, window: float, now: float) -> SlidingWindowMetrics:
        """A window of another length that keeps what still fits in it.

        Where a longer one reaches back further than this one knows, it presumes the arrival rate
        that this one knows: an operator who lengthens the window under load must not reopen the gate.
        """
        seen, pending = self._seen
        other = SlidingWindowMetrics(window, slices=self.span)
        other._publish(seen.after(now, pending).resized(window, now), Pending())
        return other

    def check(self) -> None:
        """Assert every invariant; for tests."""
        window, pending = self._seen
        window.check()
        assert len(pending.finished_at) == len(pending.latencies) < _FOLD_AT
        assert len(pending.failed_at) == len(pending.lower_bounds) < _FOLD_AT
        assert pending.latencies is self._latencies

    def _publish(self, window: Window, pending: Pending) -> None:
        # The pair is replaced in one assignment: a reader gets a window and what is not folded into
        # it yet, never the samples twice or not at all.
        self._seen = window, pending
        self.arrived: Callable[[float], None] = pending.arrivals.append
        self._finished_at, self._latencies = pending.finished_at, pending.latencies
        self._failed_at, self._lower_bounds = pending.failed_at, pending.lower_bounds
