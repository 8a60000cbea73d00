"""How interactive traffic has fared lately: arrivals per second and latency percentiles.

Floor: ground. No clock, no asyncio: time comes in as `now`.
Algorithm: what happens within a time slice is counted and appended, without its time, and folded
as one slice of logarithmic buckets into a window of such slices (`window`, `histogram`) when the
next slice begins, 512 samples are there, or somebody looks. That is what keeps a call cheap: an
addition and an append, a tenth of what finding slice and bucket one by one costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .readings import TrafficSnapshot, WindowReading
from .window import Grid, Pending, Window

__all__ = ["FOLD_AT", "SlidingWindowMetrics", "TrafficSnapshot", "WindowReading"]

FOLD_AT: Final = 512


class SlidingWindowMetrics:
    """Arrivals and latencies over the last `window` seconds, in `slices` slices.

    A sample leaves at most one slice before it is `window` old, and never after. A percentile is
    nearest-rank and within 1 % of the exact one. A clock that goes back is taken to stand still.

    An unsuccessful end says only that the call would have taken at least so long. It joins the
    samples if the caller says so (`counts`); and once the last success has left while failures
    remain, the P95 for policies keeps the value it had, until a success comes or no failure is
    left: a backend that fails everything at once must not look like one at ease.

    Attributes:
        pending: what is not folded yet. For a call pays for every frame, who knows that `slice_end`
            has not come may count `pending.arrivals` up and append to `pending.latencies` in place
            of calling `arrived` and `completed`, and calls `trim` now and then.
        slice_end: when the slice entered last ends; before the first sample it has ended already.
        length, slice_length: of the window and of one slice, seconds; `slices` is how many there are.

    Complexity: `arrived`, `completed` and `failed` amortised O(1); `read` O(1), plus O(log n) for n
    unfinished calls and, from a thread that did not `advance` first, a fold of what is pending.
    Memory is bounded whatever the traffic.
    Threads: one thread owns it; `read` changes nothing and is safe from any.
    """

    __slots__ = (
        "_seen",
        "length",
        "pending",
        "slice_end",
        "slice_length",
        "slices",
    )

    def __init__(self, window: float, *, slices: int = 100) -> None:
        assert 0 < window < math.inf
        assert slices >= 1
        self.length = window
        self.slices = slices
        self.slice_length = window / slices
        self._publish(Window(Grid(0.0, window, slices)), Pending())

    def __repr__(self) -> str:
        window, pending = self._seen
        return (
            f"<SlidingWindowMetrics: {window.arrivals} arrivals, {window.successes} successes, {window.failures}"
            f" failures in {window.grid.length:g} s;"
            f" {pending.arrivals + len(pending.latencies) + pending.failures} not folded yet>"
        )

    def arrived(self, now: float) -> None:
        """A call was submitted."""
        if now >= self.slice_end:
            self.enter(now)
        self.pending.arrivals += 1

    def completed(self, now: float, latency: float) -> None:
        """A call succeeded, `latency` seconds after its submit."""
        if now >= self.slice_end:
            self.enter(now)
        self.pending.latencies.append(latency)
        self.trim(now)

    def failed(self, now: float, latency: float, *, counts: bool) -> None:
        """A call ended without success after `latency` seconds; it joins the samples if `counts`."""
        if now >= self.slice_end:
            self.enter(now)
        self.pending.failures += 1
        if counts:
            self.pending.lower_bounds.append(latency)
            self.trim(now)

    def trim(self, now: float) -> None:
        """Fold if much is pending."""
        if len(self.pending.latencies) + len(self.pending.lower_bounds) >= FOLD_AT:
            self.advance(now)

    def enter(self, now: float) -> None:
        """Go to the slice that `now` lies in, for samples will follow; with the first, slices begin to be counted."""
        window, pending = self._seen
        window = window.after(now, pending) if window.begun else window.begun_at(now)
        self._publish(window, Pending())

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
        window, pending = self._seen
        return min(window.next_change(), window.grid.start(window.latest + window.grid.slices) if pending else math.inf)

    def end_of_slice(self, now: float) -> float:
        """When the slice that `now` lies in ends; only once a sample has come."""
        window, _ = self._seen
        return window.grid.start(max(window.grid.index(now), window.latest) + 1)

    def resized(self, window: float, now: float) -> SlidingWindowMetrics:
        """A window of another length that keeps what still fits in it.

        Where a longer one reaches back further than this one knows, it presumes the arrival rate
        that this one knows: an operator who lengthens the window under load must not reopen the gate.
        """
        seen, pending = self._seen
        other = SlidingWindowMetrics(window, slices=self.slices)
        other._publish(seen.after(now, pending).resized(window, now), Pending())
        return other

    def check(self) -> None:
        """Assert every invariant; for tests."""
        window, pending = self._seen
        window.check()
        assert pending is self.pending
        assert window.begun or not pending
        assert len(pending.lower_bounds) <= pending.failures

    def _publish(self, window: Window, pending: Pending) -> None:
        # The pair is replaced in one assignment: a reader gets a window and what is not folded into
        # it yet, never the samples twice or not at all.
        self._seen = window, pending
        self.pending = pending
        self.slice_end = window.grid.start(window.latest + 1) if window.begun else -math.inf
