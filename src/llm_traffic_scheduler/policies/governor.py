"""From what is known to the batch limit in force: asks the policy, keeps its answer, survives its faults.

Floor: second. Pure. The policy is asked only when batch work waits for an answer or somebody
reads, and an answer is kept until its `valid_until` or until a signal it depends on changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ..core.admission import Limits
from ..core.metrics import SlidingWindowMetrics, WindowReading
from ..core.stream_times import StreamTimes
from . import validity
from .base import (
    Decision,
    LimitPolicy,
    Observation,
    Signals,
    check_decision,
    observer_of,
    reads_of,
    threshold_of,
)
from .diagnosis import Tide
from .fallback import Fallback
from .history import LimitHistory
from .watched import Watched, signals_of

__all__ = ["Governor"]

_BATCH_COUNTS: Final = frozenset({"batch_running", "batch_queued"})
_COUNTS: Final = _BATCH_COUNTS | {"interactive_running", "interactive_queued"}
_AGES: Final = frozenset({"oldest_unfinished", "oldest_batch_wait"})
_STREAMS: Final = frozenset({"ttft_p95", "pace"})
_WINDOW: Final = _STREAMS | {"rps", "sample_count", "p50", "p95", "p99", "p95_finished"}
_UNREAD: Final = WindowReading()


class Governor:
    """Decides how many batch calls may run now, by the policy and the window of interactive traffic.

    Complexity: an event costs an append; a decision one reading of the window, and only if something
    the policy reads has changed. At a slice boundary the policy is advanced; after a quiet spell once for
    each slice in which samples left, at most a hundred times.
    Threads: `read` from any (try a RuntimeError again), the rest from the one that owns it.
    """

    __slots__ = (
        "_answer_by",
        "_counts",
        "_decision",
        "_faults",
        "_heedless",
        "_joins_at",
        "_lowest",
        "_next_join",
        "_on_change",
        "_reads_ages",
        "_reads_batch_counts",
        "_reads_counts",
        "_reads_window",
        "_told",
        "_watched",
        "asking",
        "bar",
        "fresh",
        "history",
        "kept",
        "kept_until",
        "observe",
        "policy",
        "slice_end",
        "streams",
        "throttled_until",
        "tide",
        "window",
    )

    def __init__(
        self,
        policy: LimitPolicy,
        window: SlidingWindowMetrics,
        *,
        on_fault: Callable[[BaseException], None],
        on_change: Callable[[Decision, Decision], None],
    ) -> None:
        self.window = window
        self.streams: StreamTimes | None = None  # from the first report of a token on
        self.throttled_until = -math.inf
        self._faults = Fallback(on_fault)
        self._on_change = on_change
        self._watched: Watched | None = None
        self._decision: Decision | None = None
        self.kept = 0
        self.asking = False  # the policy is at work; whoever asks it is in the middle of something
        self._told: WindowReading | None = None
        self._lowest: int | None = None
        self.history = LimitHistory()
        self.tide = Tide()
        self.set_policy(policy)

    def watch(self, watched: Watched) -> None:
        """Take the counts from here; once, before the first event."""
        self._watched = watched

    def set_policy(self, policy: LimitPolicy) -> None:
        """Ask `policy` from now on."""
        self.policy = policy
        reads = reads_of(policy)
        self._reads_counts = not _COUNTS.isdisjoint(reads)
        self._reads_batch_counts = not _BATCH_COUNTS.isdisjoint(reads)
        self._reads_ages = not _AGES.isdisjoint(reads)
        self._reads_window = not _WINDOW.isdisjoint(reads)
        self.observe = observer_of(policy)
        # What happens to interactive calls makes no difference to it, but for their number if it reads that.
        self._heedless = not self._reads_window and self.observe is None
        self._faults.forgive()
        self.slice_end = -math.inf
        self.forget()

    def set_window(self, window: SlidingWindowMetrics, now: float) -> None:
        """Look at `window` from now on."""
        self.window = window
        if self.streams is not None:
            self.streams = self.streams.resized(window.length, now)
        self.slice_end = -math.inf
        self.forget()

    def forget(self) -> None:
        """Ask the policy again at the next occasion; for changed bounds."""
        self.fresh = False
        # The P95 that an unsuccessful end must reach to count, None if it is to be read from the window again: after
        # a success, and in each slice. Not after each failure: with 100,000 calls waiting, an hour of reading.
        self.bar: float | None = None
        self._counts: tuple[int, ...] | None = None
        self.kept_until = self._answer_by = self._next_join = -math.inf
        self._joins_at: float | None = None

    # Events. Arrivals and completions go to `window` directly, after a `roll` if `now >= slice_end`; both set `fresh`
    # to False and a completion `bar` to None: one call less for each of them.

    def failed(self, now: float, latency: float) -> None:
        """An interactive call ended without success: a lower bound, which counts from the current P95 up."""
        if now >= self.slice_end:
            self.roll(now)
        self.fresh = False
        if self.bar is None:
            self.window.advance(now)
            self.bar = self.window.read(now, self._unfinished(now)).p95
        self.window.failed(now, latency, counts=latency >= self.bar)

    def tell(self, now: float, event: Observation) -> None:
        """Let the policy know of a single call; only if it has `observe`."""
        assert self.observe is not None
        if now >= self.slice_end:
            self.roll(now)
        self.fresh, self.asking = False, True
        try:
            self.observe(now, event)
        except BaseException as error:
            self._faults.fault(now, error)
        finally:
            self.asking = False

    def throttled(self, until: float) -> None:
        """The backend has asked us to wait; of two such wishes the later end holds."""
        if until > self.throttled_until:
            self.throttled_until = until
            self.fresh = False
            self._answer_by = -math.inf

    def first_token(self, now: float, elapsed: float) -> None:
        """An interactive call has its first token, `elapsed` seconds after its submit."""
        self._streams(now).first_token(now, elapsed)
        self.fresh = False

    def pace(self, now: float, seconds_per_token: float) -> None:
        """An interactive call has streamed to its end at this pace."""
        self._streams(now).pace(now, seconds_per_token)
        self.fresh = False

    def _streams(self, now: float) -> StreamTimes:
        if now >= self.slice_end:
            self.roll(now)
        if self.streams is None:
            self.streams = StreamTimes(self.window.length)
        return self.streams

    def roll(self, now: float) -> None:
        """Enter the slice that holds `now`: samples leave, and the policy is advanced.

        After a quiet spell the policy sees the end of the last slice with events and each boundary at which
        something left, so that what it averages does not depend on who looked in between.
        """
        if -math.inf < self.slice_end <= now:
            self._enter(self.slice_end)
        while (left := self.window.next_change()) <= now:
            self._enter(left)
        if now >= self.slice_end:
            self._enter(now)

    def _enter(self, now: float) -> None:
        self.bar = None
        self.window.enter(now)
        self._told = self.window.read(now)
        self._advance_policy(now)
        self.slice_end = self.window.slice_end

    # Decisions

    def limit(self, now: float) -> int:
        """The batch limit in force, asked for before each single start."""
        if (
            (self.fresh or self._heedless)
            and now < self._answer_by
            and (not self._reads_counts or (self._watched is not None and self._read_counts() == self._counts))
        ):
            return self.kept
        return self._decide(now).limit

    def _read_counts(self) -> tuple[int, ...]:
        """Those that the policy looks at."""
        assert self._watched is not None
        return self._watched.counts if self._reads_batch_counts else self._watched.counts[:2]

    def read(self, now: float) -> tuple[Decision, Signals, WindowReading]:
        """What would be decided at `now`, and on which signals. Changes nothing."""
        reading = self._measure(now)
        signals = self._signals(now, reading)
        try:
            decision = check_decision(self.policy, self._caught_up(now).decide(now, signals), signals)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a CancelledError too: nobody's task is meant
            decision = self._fallback(now)
        return decision, signals, reading

    def _decide(self, now: float) -> Decision:
        if now >= self.slice_end:
            self.roll(now)
        ages: list[float] = []
        if self._reads_window:
            self.window.advance(now)
            if self.streams is not None:
                self.streams.advance(now)
            ages = self._unfinished(now)
        reading = self.window.read(now, ages) if self._reads_window else _UNREAD
        signals = self._signals(now, reading, ages=self._reads_ages)
        self._lowest = signals.batch_lowest
        before, self.asking = self._decision, True
        try:
            decision = check_decision(self.policy, self.policy.decide(now, signals), signals)
        except BaseException as error:
            self._faults.fault(now, error)
            decision = self._fallback(now)
            self._answer_by = now
        else:
            self._faults.forgive()
            self._answer_by = self._stands_until(now, decision, ages)
        finally:
            self.asking = False
        self.fresh = True
        self.kept_until = -math.inf if self._reads_counts else self._answer_by
        self._counts = self._read_counts()
        self._decision, self.kept = decision, decision.limit
        if before is None or before.limit != decision.limit or before.reason != decision.reason:
            self._changed(now, before, decision)
        return decision

    def _changed(self, now: float, before: Decision | None, after: Decision) -> None:
        self.history.add(now, after, self.window.length)
        if before is not None and before.limit != after.limit:
            self._on_change(before, after)

    def _fallback(self, now: float) -> Decision:
        return self._faults.decision(now, self._decision, self._limits, self.window.length)

    def _advance_policy(self, now: float) -> None:
        self.asking = True
        try:
            self._lowest = None
            signals = self._signals(now, self._measure(now))
            self._lowest = signals.batch_lowest
            self.tide.note(signals.rps, signals.p95)
            self.policy.advance(now, signals)
        except BaseException as error:
            self._faults.fault(now, error)
        finally:
            self.asking = False

    # For how long that holds: in a room of its own.
    next_look = validity.next_look
    _stands_until = validity.stands_until
    _caught_up = validity.caught_up

    # Signals

    @property
    def follows_calls(self) -> bool:
        """The policy moves with single calls by design: it reads their counts, or does not say what it reads."""
        return self._reads_counts

    @property
    def threshold(self) -> float | None:
        """The age from which an unfinished call joins the quantile, in seconds; None if there is none."""
        return threshold_of(self.policy)

    @property
    def _limits(self) -> Limits:
        assert self._watched is not None
        return self._watched.limits

    def _measure(self, now: float) -> WindowReading:
        """The window with every unfinished call that has joined it. Changes nothing."""
        assert self._watched is not None
        threshold = self.threshold
        return self.window.read(now, [] if threshold is None else self._watched.unfinished(now, threshold)[0])

    def _unfinished(self, now: float) -> list[float]:
        """Ages that join the quantile; looks only when one can have crossed the threshold since the last look."""
        assert self._watched is not None
        threshold = self.threshold
        if threshold is None:
            self._next_join, self._joins_at = math.inf, None
            return []
        if threshold != self._joins_at:
            self._next_join, self._joins_at = -math.inf, threshold
        if now < self._next_join:
            return []
        ages, next_submitted = self._watched.unfinished(now, threshold)
        self._next_join = now if ages else min(now, next_submitted) + threshold
        return ages

    def _signals(self, now: float, reading: WindowReading, *, ages: bool = True) -> Signals:
        assert self._watched is not None
        streams = None if reading is _UNREAD else self.streams
        return signals_of(
            self._watched,
            now,
            reading,
            stream_times=(None, None) if streams is None else streams.read(now),
            throttled_until=self.throttled_until,
            slice_length=self.window.slice_length,
            batch_lowest=self._lowest,
            ages=ages,
        )
