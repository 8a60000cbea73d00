"""Interactive calls that have not been served yet, and how many slots to hold back for them by their ages.

Floor: second. Pure.
Algorithm: calls stand in buckets by time of arrival, a thirty-second of the target wide, because a weight depends on
nothing but age. So weighing them anew costs the same for ten calls and for a hundred thousand.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

__all__ = ["Unfinished", "Waiting"]

_BUCKETS: Final = 32

# Weights are renewed at most so often, in seconds.
_REWEIGH_AFTER: Final = 0.25


class _Bucket:
    """Calls that came at about the same time and are not late."""

    __slots__ = ("calls", "middle", "until", "weight")

    def __init__(self, start: float, width: float) -> None:
        self.middle = start + width / 2
        self.until = start + width
        self.calls = 0
        self.weight = 1.0


class Waiting:
    """One call that has not been served yet."""

    __slots__ = ("arrived", "bucket", "late", "mark")

    def __init__(self, arrived: float, mark: float, bucket: _Bucket) -> None:
        self.arrived = arrived
        self.mark = mark  # the integral of the total when it arrived
        self.bucket = bucket
        self.late = False


class Unfinished:
    """Calls by age. `reserve` is the sum of their weights: `weight(age)` each, `late_weight` once older than `target`.

    Complexity: O(1) per arrival and end, amortised; `renew` O(buckets), at most four times a second.
    """

    __slots__ = ("_buckets", "_calls", "_late_weight", "_renewed_at", "_target", "_young", "late", "reserve", "stale")

    def __init__(self, target: float, late_weight: float) -> None:
        self._target = target
        self._late_weight = late_weight
        self._calls: dict[int, Waiting] = {}
        # Those that are not late, in order of arrival. A deque would keep those that have gone until the front has.
        self._young: OrderedDict[int, Waiting] = OrderedDict()
        self._buckets: deque[_Bucket] = deque()
        self._renewed_at = -math.inf
        self.late = 0
        self.reserve = 0.0
        self.stale = False  # what `weight` answers has changed since the last renewal

    def __len__(self) -> int:
        return len(self._calls)

    def arrive(self, now: float, call: int, mark: float) -> None:
        """The call waits to be served from now on."""
        if not self._buckets or not now < self._buckets[-1].until:
            while self._buckets and not self._buckets[0].calls:
                self._buckets.popleft()
            self._buckets.append(_Bucket(now, self._target / _BUCKETS))
        bucket = self._buckets[-1]
        bucket.calls += 1
        waiting = self._calls[call] = Waiting(now, mark, bucket)
        self._young[call] = waiting
        self.reserve += bucket.weight

    def leave(self, call: int) -> Waiting | None:
        """The call is served, or gone; None if it was not known."""
        waiting = self._calls.pop(call, None)
        if waiting is None:
            return None
        if waiting.late:
            self.late -= 1
            self.reserve -= self._late_weight
        else:
            del self._young[call]
            waiting.bucket.calls -= 1
            self.reserve -= waiting.bucket.weight
        if not self._calls:
            self._buckets.clear()
            self.reserve = 0.0  # what rounding has left of it
        return waiting

    def overdue(self, now: float) -> int:
        """How many calls have become older than the target since the last time."""
        newly, young = 0, self._young
        while young:
            waiting = next(iter(young.values()))
            if not now - waiting.arrived > self._target:
                break
            young.popitem(last=False)
            waiting.late = True
            waiting.bucket.calls -= 1
            self.reserve += self._late_weight - waiting.bucket.weight
            newly += 1
        self.late += newly
        return newly

    def renew(self, now: float, weight: Callable[[float], float]) -> None:
        """Weigh anew those that are not late, if it is time to."""
        if now - self._renewed_at < _REWEIGH_AFTER or not self._calls:
            return
        self._renewed_at, self.stale = now, False
        reserve = self.late * self._late_weight
        for bucket in self._buckets:
            bucket.weight = weight(max(0.0, now - bucket.middle))
            reserve += bucket.calls * bucket.weight
        self.reserve = reserve

    def lighter_at(self) -> float:
        """When `reserve` may fall although nobody leaves; infinity if only then.

        Age alone makes a call heavier, until it is late; other latencies may make it lighter.
        """
        due = math.inf
        if self._young:
            oldest = next(iter(self._young.values()))
            if oldest.bucket.weight > self._late_weight:
                due = oldest.arrived + self._target
            if self.stale and self.reserve > self.late * self._late_weight + len(self._young):
                due = min(due, self._renewed_at + _REWEIGH_AFTER)
        return due

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert self.late == sum(waiting.late for waiting in self._calls.values())
        assert list(self._young) == [call for call, waiting in self._calls.items() if not waiting.late]
        assert sum(bucket.calls for bucket in self._buckets) == len(self._young)
        expected = self.late * self._late_weight + sum(bucket.calls * bucket.weight for bucket in self._buckets)
        assert abs(self.reserve - expected) <= 1e-6 * max(1.0, expected)
        assert len(self._buckets) <= _BUCKETS + 2
