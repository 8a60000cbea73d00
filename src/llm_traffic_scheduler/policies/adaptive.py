"""The adaptive law: one learnt total for both kinds, less what interactive calls need at this instant.

Floor: second. Pure.
Why it works: the number of interactive calls is known at once and without a window, so the limit follows each arrival;
what total the target allows is learnt slowly, from every latency and the total it was had under (`objective`).
Tried without gain, and left out: hysteresis, confidence margins, at most one or two batch calls before a first token,
the pace of all calls as a fast signal. A gradient law takes the batch load itself for normal, and never yields.
"""

from __future__ import annotations

import math
from typing import Final

from ..core.checks import seconds
from . import adaptive_words
from .base import Arrived, Decision, Ended, FirstToken, Observation, Signals
from .objective import Objective

__all__ = ["AdaptivePolicy"]

_READS: Final = frozenset(
    {"batch_max", "batch_min", "interactive_running", "interactive_queued", "throttled_until", "batch_lowest"}
)

_STEPS: Final = 8  # in which a limit reopens, one per slice of the window: never all of it in one pass of the loop
_START: Final = 3.0
_IDLE_AFTER: Final = 60.0  # seconds, or so many mean gaps between arrivals, whichever is longer:
_IDLE_GAPS: Final = 8.0  # a gap that is not much longer than others is no evidence that nobody will come
_OPENS_WITHIN: Final = 50.0
_GAP_GAIN: Final = 0.05


class AdaptivePolicy:
    """As many batch calls as leave the interactive P95 at its target: `limit = T - n - 0.75 * R`.

    `n` is the number of interactive calls that run or wait. `R` weighs those that are not served yet by their age, as
    one over the share of calls that live so long, up to 20, and 8 once past the target: who is old already is the
    likelier to miss. `T`, the total, is learnt from the last 600 calls, so that 5 % miss. The limit
    falls with each arrival and rises with each end; `T` moves to what it should be by 10/12 per second downwards, and
    at most a quarter per second upwards.

    The first 10 calls run beside three batch calls. With no interactive call for a minute, or 8 mean gaps if that is
    longer, or none ever, the limit opens to `batch_max` within 50 s; the next arrival restores it. At least three
    late calls that are half of all unfinished ones: `batch_min`. So while the backend asks us to wait. A limit that
    reopens grows by an eighth of its range per slice of the window.

    Without any target: `limit = batch_max - n`, so that the reserve `max_concurrency - batch_max` stays free for the
    next interactive call at every instant.

    Args:
        p95_target: for the P95 end to end, in seconds. A target close to what it is without batch no limit keeps:
            `batch_min` calls may always run.
        ttft_target: for the P95 of the time to first token, in seconds; `slot.first_token()` reports it. A call that
            reports none has its end for its first token.
        pace_target: for the P95 of the seconds per output token after the first; `slot.first_token()` and
            `slot.tokens()` report it. Calls that do not report it are not judged.
        With several the lowest limit holds.

    Raises:
        ConfigError: a target that is not a finite number above 0.
    """

    __slots__ = (
        "_began",
        "_gap",
        "_last_arrival",
        "_last_seen",
        "_objectives",
        "_pace",
        "_ramp_at",
        "_served",
        "_slice",
        "_ttft",
        "observing",
        "p95_target",
        "pace_target",
        "ttft_target",
    )

    reads: frozenset[str] = _READS

    def __init__(
        self,
        p95_target: float | None = None,
        ttft_target: float | None = None,
        pace_target: float | None = None,
    ) -> None:
        self.p95_target = None if p95_target is None else seconds("p95_target", p95_target)
        self.ttft_target = None if ttft_target is None else seconds("ttft_target", ttft_target)
        self.pace_target = None if pace_target is None else seconds("pace_target", pace_target)
        self._served = None if self.p95_target is None else Objective(self.p95_target)
        self._ttft = None if self.ttft_target is None else Objective(self.ttft_target)
        self._pace = None if self.pace_target is None else Objective(self.pace_target, timed=False)
        self._objectives = tuple(each for each in (self._served, self._ttft, self._pace) if each is not None)
        self.observing = bool(self._objectives)
        self._gap: float | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the calls of the event loop that has gone, and its clock; what was learnt stays."""
        self._began = self._last_arrival = self._last_seen = self._ramp_at = -math.inf
        self._slice = 0.0
        for objective in self._objectives:
            objective.forget_calls()

    def advance(self, now: float, signals: Signals) -> None:
        """Take in how many batch calls run, and how old the interactive ones have become."""
        if self._began == -math.inf:
            self._began = now
        self._ramp_at, self._slice = now, signals.slice_length
        for objective in self._objectives:
            objective.advance(now, signals.batch_running, signals.batch_min, signals.batch_max)

    def observe(self, now: float, event: Observation) -> None:
        """An interactive call came, has its first token, or ended."""
        self._last_seen = now
        if isinstance(event, Arrived):
            if self._last_arrival > -math.inf:
                gap = now - self._last_arrival
                self._gap = gap if self._gap is None else self._gap + _GAP_GAIN * (gap - self._gap)
            self._last_arrival = now
            for objective in self._objectives:
                objective.arrive(now, event.call)
        elif isinstance(event, FirstToken):
            if self._ttft is not None:
                self._ttft.served(now, event.call, event.elapsed, event.elapsed)
        else:
            self._ended(now, event)

    def decide(self, now: float, signals: Signals) -> Decision:
        """The law; valid until the total, or an opening limit, takes it over the next whole number."""
        low, high = signals.batch_min, signals.batch_max
        interactive = signals.interactive_running + signals.interactive_queued
        room, reason, until = high - interactive + 0.0, "headroom", math.inf
        if self._objectives:
            room, reason, until = self._within_total(now, interactive, low, high)
            if not interactive:
                room, reason, until = self._while_idle(now, room, reason, until, high)
        pressure = max(0.0, (high - room) / (high - low)) if high > low else 0.0
        if now < signals.throttled_until:
            return Decision(low, max(1.0, pressure), "throttled", signals.throttled_until)
        limit = max(low, min(high, math.floor(room)))
        ramp, next_step = self._ramp(now, signals)
        if limit > ramp:
            return Decision(max(low, ramp), pressure, "ramp", min(until, next_step))
        return Decision(limit, pressure, reason, until)

    def describe(self, now: float, decision: Decision, signals: Signals) -> str:
        """What the limit is made of: the learnt total, and who comes off it."""
        return adaptive_words.why(now, decision, signals, self._named)

    def outlook(self, now: float, decision: Decision, signals: Signals) -> tuple[str, ...]:
        """What moves the limit next, and how many interactive calls at once bring it to its minimum."""
        return adaptive_words.outlook(now, decision, signals, self._named)

    @property
    def _named(self) -> list[tuple[str, Objective]]:
        named = (("p95_target", self._served), ("ttft_target", self._ttft), ("pace_target", self._pace))
        return [(name, objective) for name, objective in named if objective is not None]

    def _within_total(self, now: float, interactive: int, low: int, high: int) -> tuple[float, str, float]:
        """Room for batch within the lowest total, why, and until when."""
        room, reason, until = math.inf, "budget", math.inf
        for objective in self._objectives:
            reserve = interactive + objective.held_back
            left = float(low) if objective.stalled else objective.total(now) - reserve
            if left < room:
                room = left
                reason = "stalled" if objective.stalled else "learning" if objective.learning else "budget"
            until = min(until, objective.next_step(now, reserve, low, high), objective.lighter_at())
        return room, reason, until

    def _while_idle(self, now: float, room: float, reason: str, until: float, high: int) -> tuple[float, str, float]:
        """The same where no interactive call is there: with nobody to protect for long, more and more."""
        last, patience = self._last_seen, max(_IDLE_AFTER, _IDLE_GAPS * (self._gap or 0.0))
        begins = self._began if last == -math.inf else last + patience
        if begins == -math.inf:
            return room, reason, until
        slope = (high + 1 - _START) / _OPENS_WITHIN
        if now >= begins:
            opened = _START + slope * min(_OPENS_WITHIN, now - begins)
            if opened > room:
                room, reason = opened, "idle"
        level = math.floor(room) + 1
        if level <= high:
            until = min(until, begins + ((level - _START) / slope if level > _START else 0.0))
        return room, reason, until

    def _ramp(self, now: float, signals: Signals) -> tuple[int, float]:
        """What a limit that reopens may be at most now, and when that is more."""
        step = max(1, (signals.batch_max - signals.batch_min) // _STEPS)
        ramp, until = signals.batch_max, math.inf
        # Only within the slice: whoever lets batch calls start has `advance` called first in each. A reader may come at
        # any time, and to say that one call may start because none has of late would look like trouble.
        if self._objectives and now < self._ramp_at + self._slice:
            lowest = signals.batch_running if signals.batch_lowest is None else signals.batch_lowest
            ramp, until = lowest + step, self._ramp_at + self._slice
        since, slice_length = now - signals.throttled_until, signals.slice_length
        if since < math.inf:
            steps = 1 + int(since / slice_length)
            # By rounding a step may be due and not count yet: who is told "until now" looks again a slice later.
            steps += not signals.throttled_until + steps * slice_length > now
            # As many as it takes: an eighth of 15 calls is one, and after eight of those seven would start at once.
            if signals.batch_min + steps * step < ramp:
                return signals.batch_min + steps * step, signals.throttled_until + steps * slice_length
        return ramp, until

    def _ended(self, now: float, event: Ended) -> None:
        call, latency, completed = event.call, event.latency, event.outcome == "completed"
        for objective in (self._served, self._ttft):
            if objective is not None:
                if completed:
                    objective.served(now, call, latency, latency)
                else:
                    objective.lost(now, call, latency)
        if self._pace is not None:
            if completed and (pace := event.pace) is not None:
                self._pace.served(now, call, latency, pace)
            else:
                self._pace.lost(now, call, latency)

    def __repr__(self) -> str:
        given = [name for name in ("p95_target", "ttft_target", "pace_target") if getattr(self, name) is not None]
        return f"AdaptivePolicy({', '.join(f'{name}={getattr(self, name):g}' for name in given)})"
