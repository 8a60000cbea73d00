"""What the last seconds of traffic looked like, as a value: folding samples in makes the next value.

Floor: ground. No clock: time comes in as `now`.
Algorithm: a hundred time slices, each with its counts and its latencies by bucket, and their sum.
A slice leaves as a whole, so a sample leaves at most one slice early and never late.

Why a value, and not an object that changes: any thread may read at any moment. One that finds a
half-folded window could only wait for the thread that folds, with a lock or by trying again, and
that thread may have been put off for as long as the interpreter's switch interval, 5 ms. What is
copied for it is small, and when nobody looks a fold happens once in 512 samples.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from .histogram import EMPTY, count
from .readings import WindowReading

__all__ = ["Grid", "Pending", "TimeSlice", "Window"]


class Pending:
    """What has happened in the slice entered last and is not folded yet. One thread writes.

    A failure is counted before its latency is appended, so a reader finds no latency that nobody had.
    """

    __slots__ = ("arrivals", "failures", "latencies", "lower_bounds")

    def __init__(self) -> None:
        self.arrivals = 0
        self.failures = 0
        self.latencies: list[float] = []  # of successes
        self.lower_bounds: list[float] = []  # of those failures that join the samples

    def __bool__(self) -> bool:
        return bool(self.arrivals or self.latencies or self.failures)

    def folded(self, index: int) -> TimeSlice:
        """The same as a slice. Lists are copied in one step, for the other thread may append."""
        latencies, bounds = self.latencies.copy(), self.lower_bounds.copy()
        return TimeSlice(index, self.arrivals, len(latencies), self.failures, count(latencies + bounds))


@dataclass(frozen=True, slots=True)
class Grid:
    """Time in slices, counted from the first sample, so a clock may start at 0 or at a billion."""

    origin: float
    length: float  # of the window, seconds
    slices: int

    @property
    def slice_length(self) -> float:
        return self.length / self.slices

    def index(self, time: float) -> int:
        """The slice that `time` lies in."""
        return int((time - self.origin) * self.slices / self.length)

    def start(self, index: int) -> float:
        """When a slice begins: a timer set for then finds it begun."""
        time = self.origin + index * self.length / self.slices
        while self.index(time) < index:
            # Far from 0 a float step is coarser than the rounding of the division in `index`.
            time = math.nextafter(time, math.inf)
        return time


@dataclass(slots=True)
class TimeSlice:
    """What happened in one slice; not changed once it is part of a window."""

    index: int
    arrivals: int = 0
    successes: int = 0
    failures: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def plus(self, other: TimeSlice) -> TimeSlice:
        """Both together."""
        buckets = self.buckets
        if other.buckets:
            buckets = buckets.copy()
            for bucket, number in other.buckets.items():
                buckets[bucket] = buckets.get(bucket, 0) + number
        return TimeSlice(
            self.index,
            self.arrivals + other.arrivals,
            self.successes + other.successes,
            self.failures + other.failures,
            buckets,
        )


_index_of: Final = attrgetter("index")


class Window:
    """Arrivals and latencies of the last `grid.length` seconds; what others see of it never changes.

    Complexity: `after` O(pending samples + slices that leave), gaps of any length included; `reading`
    as `Histogram.percentile`. Kept are at most `grid.slices` slices, each with the buckets in use.
    Threads: safe to read from any, `after` included: it leaves this window alone and makes another.
    """

    __slots__ = (
        "_cached",
        "arrivals",
        "begun",
        "failures",
        "grid",
        "held",
        "histogram",
        "latest",
        "slices",
        "successes",
    )

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.begun = False  # before the first sample there is no origin, and looking must not set one
        self.latest = 0  # the last slice that was entered
        self.slices: list[TimeSlice] = []  # those in which something happened, oldest first
        self.arrivals = 0
        self.successes = 0
        self.failures = 0
        self.held = 0.0  # the P95 when the last success left, while there are failures and no success
        self.histogram = EMPTY
        self._cached: WindowReading | None = None

    def after(self, now: float, pending: Pending) -> Window:
        """The window at `now`, with `pending` in it; itself if that makes no difference."""
        if not self.begun or not (pending or self.grid.index(now) > self.latest):
            return self
        later = self._copy()
        if pending:
            later._merge(pending.folded(self.latest))
        later._enter(later.grid.index(now))
        return later

    def begun_at(self, now: float) -> Window:
        """The empty window whose slices are counted from `now`."""
        first = Window(replace(self.grid, origin=now))
        first.begun = True
        return first

    def reading(self, unfinished: Sequence[float] = ()) -> WindowReading:
        """Rate and percentiles; `unfinished` are ages in seconds, descending, that join as samples."""
        if unfinished:
            return self._measure(unfinished)
        if (cached := self._cached) is None:
            # Another thread that comes here too computes the same.
            cached = self._cached = self._measure(())
        return cached

    def next_change(self) -> float:
        """When the oldest slice leaves; infinity if there is none."""
        return self.grid.start(self.slices[0].index + self.grid.slices) if self.slices else math.inf

    def resized(self, length: float, now: float) -> Window:
        """The same traffic in a window of another length, each slice where its start falls.

        A longer window reaches back to where nothing is known any more. There the arrival rate is
        taken to have been what it was since: counted as 0, an operator who goes from 10 s to 30 s
        under load would see a third of the rate, and batch work would start on a busy backend.
        """
        other = Window(replace(self.grid, length=length))
        if not self.begun:
            return other
        other.begun, other.held = True, self.held
        present = other.grid.index(max(now, self.grid.start(self.latest)))
        for index, arrivals in self._presumed(other.grid, present):
            other._merge(TimeSlice(index, arrivals))
        for piece in self.slices:
            other._merge(replace(piece, index=other.grid.index(self.grid.start(piece.index))))
        other._enter(present)
        return other

    def check(self) -> None:
        """Assert every invariant; for tests."""
        indexes = [piece.index for piece in self.slices]
        assert indexes == sorted(set(indexes)), "slices out of order"
        assert all(self.latest - self.grid.slices < index <= self.latest for index in indexes), "a slice outside"
        assert self.begun or not indexes, "samples before the first"
        total = EMPTY
        for piece in self.slices:
            assert piece.arrivals or piece.successes or piece.failures, "an empty slice"
            latencies = sum(piece.buckets.values())
            assert piece.successes <= latencies <= piece.successes + piece.failures, "latencies that nobody had"
            total = total.plus(piece.buckets)
        self.histogram.check()
        assert self.histogram.counts() == total.counts(), "the sum over the slices is off"
        assert self.arrivals == sum(piece.arrivals for piece in self.slices)
        assert self.successes == sum(piece.successes for piece in self.slices)
        assert self.failures == sum(piece.failures for piece in self.slices)
        assert self.held == 0.0 or (self.failures and not self.successes), "held without a reason"
        assert self._cached in (None, self._measure(())), "the cached reading is old"

    def _copy(self) -> Window:
        twin = Window(self.grid)
        twin.begun, twin.latest, twin.slices = self.begun, self.latest, self.slices.copy()
        twin.arrivals, twin.successes, twin.failures = self.arrivals, self.successes, self.failures
        twin.held, twin.histogram, twin._cached = self.held, self.histogram, self._cached
        return twin

    def _enter(self, index: int) -> None:
        """Go to a slice, and let those go that are a window behind it."""
        if index <= self.latest:
            return
        self.latest = index
        leaving = bisect_left(self.slices, index - self.grid.slices + 1, key=_index_of)
        for piece in self.slices[:leaving]:
            self._drop(piece)
        del self.slices[:leaving]

    def _drop(self, piece: TimeSlice) -> None:
        if self.successes and piece.successes == self.successes:
            self.held = self.histogram.percentile(95)
        self.arrivals -= piece.arrivals
        self.successes -= piece.successes
        self.failures -= piece.failures
        if not self.failures:
            self.held = 0.0
        if piece.buckets:
            self.histogram = self.histogram.minus(piece.buckets)
        self._cached = None

    def _merge(self, piece: TimeSlice) -> None:
        """Add to the last slice, or behind it."""
        if self.slices and self.slices[-1].index == piece.index:
            self.slices[-1] = self.slices[-1].plus(piece)
        else:
            self.slices.append(piece)
        self.arrivals += piece.arrivals
        self.successes += piece.successes
        self.failures += piece.failures
        if self.successes:
            self.held = 0.0
        if piece.buckets:
            self.histogram = self.histogram.plus(piece.buckets)
        self._cached = None

    def _presumed(self, grid: Grid, present: int) -> Iterator[tuple[int, int]]:
        """Arrivals to presume in those slices of a longer window that begin before this one does."""
        known_from = grid.index(self.grid.start(self.latest - self.grid.slices + 1))
        begin = max(0, present - grid.slices + 1)  # before the first sample there was nothing
        pieces = known_from - begin
        missing = round(self.arrivals / self.grid.length * pieces * grid.slice_length)
        for number in range(pieces):
            if arrivals := missing * (number + 1) // pieces - missing * number // pieces:
                yield begin + number, arrivals

    def _measure(self, unfinished: Sequence[float]) -> WindowReading:
        samples, finished = self.histogram, self.histogram.percentile(95)
        if unfinished:
            p50, p95, p99 = samples.percentiles_with(unfinished, 50, 95, 99)
        else:
            p50, p95, p99 = samples.percentile(50), finished, samples.percentile(99)
        number, rps = samples.total + len(unfinished), self.arrivals / self.grid.length
        return WindowReading(rps, number, p50, max(p95, self.held), p99, max(finished, self.held), p95)
