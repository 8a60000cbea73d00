"""The learnt total: how many calls may run, both kinds together, for the P95 of one latency to meet its target.

Floor: second. Pure.
Idea: a latency tells of the total it was had under. Each is scaled from the mean total of its own life to the total
that is sought, by a power law with exponent 0.8; the 95th percentile of the scaled ones then gives the total in closed
form. So there is no lag to wait out, and no cooldown. A slow integral of the misses, `trim`, takes what the model gets
wrong. Source of the law and its constants: measured on simulated engines and recorded traffic; see
`examples/compare_policies.py`, which measures them again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from .unfinished import Unfinished

__all__ = ["WARM_UP", "Objective"]

_SHARE: Final = 0.05  # of calls that may miss
_EXPONENT: Final = 0.8  # latency grows with the total to this power
_KEPT: Final = 600  # latencies
_GAIN: Final = 0.003  # of the trim, per call; with more, each burst of misses costs batch work for minutes
_TRIM: Final = (-0.3, 0.5)
_AGE_SHARE: Final = 0.75  # slots held back per unit of weight
_HEAVIEST: Final = 20.0  # weight of a call that nearly all others were quicker than
_LATE: Final = 8.0  # weight of a call that has missed already
_FALL: Final = 10 / 12  # per second
_RISE: Final = (0.3 / 12, 2.7 / 12)  # per second: at first, and what sixty samples add
_SURE_AFTER: Final = 60
_SPARE: Final = 20.0  # slots that a total may lie above what could be used
_FADES: Final = 0.99  # of the most that was held back, per latency
_START: Final = 3.0  # batch calls while nothing is known

WARM_UP: Final = 10
"""Samples before which the total is not solved for."""


class Objective:
    """One target, and the total for which the P95 of the latencies meets it.

    A latency is what `served` says: end to end, to the first token, or per token (then `timed` is False: the age of
    an unfinished call says nothing of it).

    Complexity: O(log n) for the n = 600 latencies kept, plus a move within a list of those; memory is bounded by them
    and the unfinished calls. Reading (`total`, `next_step`) is O(1), changes nothing, and may be done from any thread.
    """

    __slots__ = (
        "_at",
        "_batch_bounds",
        "_batch_running",
        "_goal",
        "_integral",
        "_latencies",
        "_most_held",
        "_ring",
        "_scaled",
        "_total",
        "_trim",
        "_warm_integral",
        "_warm_time",
        "samples",
        "target",
        "timed",
        "unfinished",
    )

    def __init__(self, target: float, *, timed: bool = True) -> None:
        self.target = target
        self.timed = timed
        self.unfinished = Unfinished(target if timed else math.inf, _LATE)
        self.samples = 0
        self._total = self._goal = _START
        self._trim = 0.0
        self._ring: deque[tuple[float, float]] = deque()
        self._latencies: list[float] = []  # sorted
        self._scaled: list[float] = []  # ln(latency) - exponent * ln(total it ran under), sorted
        self._at = -math.inf
        self._integral = 0.0  # over time, of the total in effect
        self._warm_integral = self._warm_time = 0.0
        self._most_held = 0.0  # of late
        self._batch_running = 0
        self._batch_bounds = (1, 1)

    @property
    def held_back(self) -> float:
        """Slots held back for the ages of unfinished calls, beside one for each."""
        return _AGE_SHARE * self.unfinished.reserve

    @property
    def held_back_for_one(self) -> float:
        """The same for a single call that has just come."""
        return _AGE_SHARE

    @property
    def stalled(self) -> bool:
        """At least three unfinished calls are late, and those are half of all."""
        late = self.unfinished.late
        return late >= 3 and 2 * late >= len(self.unfinished)

    @property
    def learning(self) -> bool:
        """Too few samples to solve for the total."""
        return self.samples < WARM_UP

    # What happens

    def advance(self, now: float, batch_running: int, batch_min: int, batch_max: int) -> None:
        """Take in how many batch calls run from `now` on, and the ages of the unfinished calls."""
        self._move(now)
        self._batch_running = batch_running
        if (batch_min, batch_max) != self._batch_bounds:
            self._batch_bounds = batch_min, batch_max
            self._solve()

    def arrive(self, now: float, call: int) -> None:
        """The call waits to be served."""
        self._move(now)
        self.unfinished.arrive(now, call, self._integral)

    def served(self, now: float, call: int, elapsed: float, latency: float) -> None:
        """The call was served after `elapsed` seconds, with this latency."""
        self._move(now)
        waiting = self.unfinished.leave(call)
        if waiting is None:
            return
        if self.timed and not waiting.late:
            self._count(missed=False)
        elif not self.timed:
            self._count(missed=latency > self.target)
        self._learn(elapsed, latency, waiting.mark)

    def lost(self, now: float, call: int, elapsed: float) -> None:
        """The call ended unserved after `elapsed` seconds: a lower bound, which counts from the P95 up.

        A backend that fails everything at once must not look like a quick one.
        """
        self._move(now)
        waiting = self.unfinished.leave(call)
        if waiting is not None and self.timed and self._latencies and elapsed >= self._p95(self._latencies):
            self._learn(elapsed, elapsed, waiting.mark)

    def forget_calls(self) -> None:
        """What was unfinished will never end; what was learnt stays."""
        self.unfinished = Unfinished(self.target if self.timed else math.inf, _LATE)
        self._at = -math.inf

    # Reading

    def total(self, now: float) -> float:
        """The total at `now`: on its way to the goal, quickly down and slowly up."""
        if self.samples < WARM_UP:  # as `learning`; this is on the way of each decision
            return self._warm_total(now)
        total, goal = self._total, self._goal
        if total == goal or not now > self._at > -math.inf:
            return total
        if goal < total:
            return max(goal, total * math.exp(-_FALL * (now - self._at)))
        # Bounded, or an hour without events would overflow, at each event from then on.
        return min(goal, total + max(2.0, total) * math.expm1(min(99.0, self._rise * (now - self._at))))

    def next_step(self, now: float, reserve: float, low: int, high: int) -> float:
        """When floor(total - reserve), clamped to [low, high], changes next; infinity if never."""
        if self.samples < WARM_UP:
            goal = _START + self._held
        elif (goal := self._goal) == self._total:
            return math.inf
        total = self.total(now)
        here = math.floor(total - reserve)
        if goal > total:
            level = max(low, here) + 1 + reserve
            return self._reached(level, goal) if here < high and level <= goal else math.inf
        level = min(high, here) + reserve
        return self._reached(level, goal) if here > low and level > goal else math.inf

    def lighter_at(self) -> float:
        """When less is held back although nothing happens; infinity if never."""
        return self.unfinished.lighter_at() if self.timed else math.inf

    # How it is learnt

    @property
    def _rise(self) -> float:
        return _RISE[0] + _RISE[1] * min(1.0, self.samples / _SURE_AFTER)

    @property
    def _held(self) -> float:
        """Slots for unfinished calls: one for each, and what their ages hold back."""
        return len(self.unfinished) + self.held_back

    def _warm_total(self, now: float) -> float:
        """While nothing is known: what three batch calls came to, averaged over time."""
        elapsed = now - self._at if now > self._at > -math.inf else 0.0
        time, present = self._warm_time + elapsed, _START + self._held
        return (self._warm_integral + elapsed * present) / time if time > 0 else present

    def _reached(self, level: float, goal: float) -> float:
        """When the total, on its way to `goal`, is at `level`."""
        total = self._total
        if self._at == -math.inf:
            return math.inf
        if self.learning:
            short = level * self._warm_time - self._warm_integral
            return self._at + short / (goal - level) if level != goal else math.inf
        if goal > total:
            return self._at + math.log1p((level - total) / max(2.0, total)) / self._rise
        return self._at + math.log(total / level) / _FALL

    def _move(self, now: float) -> None:
        """Carry everything that depends on time to `now`."""
        if (elapsed := now - self._at) > 0:
            total = self.total(now)
            if elapsed < math.inf:
                self._integral += elapsed * self._in_effect(self._held)
                if self.learning:
                    self._warm_integral += elapsed * (_START + self._held)
                    self._warm_time += elapsed
            self._total, self._at = total, now
        if self.timed:
            for _ in range(self.unfinished.overdue(now)):
                self._count(missed=True)
            self.unfinished.renew(now, self._weight)

    def _in_effect(self, reserve: float) -> float:
        """The total that calls ran under: the one in force, or less where batch did not use it.

        Also where no batch runs at all: else hours without any would pass for proof that more is harmless.
        """
        used, total = self._batch_running + reserve, self.total(self._at)
        return max(1.0, total if used > total - 1.5 else used)

    def _weight(self, age: float) -> float:
        """One over the share of calls that live to this age: who is old already is the likelier to be late."""
        number = len(self._latencies)
        alive = number - bisect_left(self._latencies, age)
        return min(_HEAVIEST, number / alive) if alive else _HEAVIEST if number else 1.0

    def _count(self, *, missed: bool) -> None:
        self._trim = min(_TRIM[1], max(_TRIM[0], self._trim + _GAIN * (missed - _SHARE)))
        self._solve()

    def _learn(self, elapsed: float, latency: float, mark: float) -> None:
        latency = max(1e-6, latency)
        mean_total = (self._integral - mark) / elapsed if elapsed > 0 else self._total
        scaled = math.log(latency) - _EXPONENT * math.log(max(1.0, mean_total))
        self._ring.append((latency, scaled))
        insort(self._latencies, latency)
        insort(self._scaled, scaled)
        if len(self._ring) > _KEPT:
            latency, scaled = self._ring.popleft()
            del self._latencies[bisect_left(self._latencies, latency)]
            del self._scaled[bisect_left(self._scaled, scaled)]
        self.samples += 1
        self._most_held = max(self._held, _FADES * self._most_held)
        self.unfinished.stale = True
        self._solve()

    def _solve(self) -> None:
        low, high = self._batch_bounds
        if self._scaled:
            room = math.log(self.target) - self._trim - self._p95(self._scaled)
            solved = math.exp(min(12.0, room / _EXPONENT))
            # As much as lets all batch run beside those who have been here lately; more would only have to fall again.
            most = max((1 + _AGE_SHARE) * high, high + self._most_held) + _SPARE
            self._goal = max(float(low), min(most, solved))

    @staticmethod
    def _p95(values: list[float]) -> float:
        # The nearest rank; a hair less, or rounding makes rank 20 of 20 x 0.95 = 19.000000000000004.
        return values[math.ceil((1 - _SHARE) * len(values) - 1e-9) - 1]

    def check(self) -> None:
        """Assert every invariant; for tests."""
        self.unfinished.check()
        assert len(self._ring) == len(self._latencies) == len(self._scaled) <= _KEPT
        assert self._latencies == sorted(latency for latency, _ in self._ring)
        assert self._scaled == sorted(scaled for _, scaled in self._ring)
        assert _TRIM[0] <= self._trim <= _TRIM[1]
