"""Batch goodput at equal interactive P95: what to read off two clouds of points.

Floor: fourth. Pure.
Why curves: two arms with other P95s are not comparable. Each arm of a family (a law at one setting) is one point: its
P95 as a multiple of the same traffic without batch, its goodput and its P99, all means over seeds. A family is then the
best that it can do at each P95, its settings chosen in hindsight.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

__all__ = ["GRID", "Comparison", "Curve", "Point", "compare", "geometric_mean"]

GRID: Final = tuple(round(1.15 + 0.05 * step, 2) for step in range(14))
"""Where ratios are taken: 1.15 to 1.80 times the P95 without batch. Below that `batch_min` decides."""


@dataclass(frozen=True, slots=True)
class Point:
    """One arm, means over seeds: P95 and P99 as multiples of no batch, goodput in tokens per second."""

    p95: float
    goodput: float
    p99: float = math.nan


@dataclass(frozen=True, slots=True)
class Curve:
    """The best of a family at each P95: points by rising P95, each with more goodput than all before it.

    Definition: a point is on the curve unless another one has no higher P95 and no lower goodput. Between two points
    the curve is the straight line: a setting half-way was not tried, and is taken to do half-way as well.
    """

    front: tuple[Point, ...]

    @classmethod
    def of(cls, points: Iterable[Point]) -> Self:
        """The curve of these points; those whose P95 is not finite (calls that never ended) are on none."""
        front: list[Point] = []
        for point in sorted(points, key=lambda point: (point.p95, -point.goodput)):
            if math.isfinite(point.p95) and (not front or point.goodput > front[-1].goodput):
                front.append(point)
        return cls(tuple(front))

    @property
    def lowest(self) -> float:
        """The lowest P95 that it reaches; infinite without points."""
        return self.front[0].p95 if self.front else math.inf

    def goodput_at(self, p95: float) -> float | None:
        """The most goodput at this P95 or a lower one: None below the lowest, the last point's above the highest."""
        if not self.front or p95 < self.lowest:
            return None
        return self._between(p95, [point.goodput for point in self.front])

    def reached_at(self, p95: float) -> float | None:
        """The most goodput of a setting that was tried and has this P95 or a lower one; None if none has."""
        after = bisect.bisect_right(self.front, p95, key=lambda point: point.p95)
        return self.front[after - 1].goodput if after else None

    def p99_at(self, p95: float) -> float | None:
        """The P99 of the arms that make the curve here; None outside of it, where P95 would not be equal."""
        if not self.front or not self.lowest <= p95 <= self.front[-1].p95:
            return None
        return self._between(p95, [point.p99 for point in self.front])

    def _between(self, p95: float, values: Sequence[float]) -> float:
        after = bisect.bisect_right(self.front, p95, key=lambda point: point.p95)
        if after == len(self.front):
            return values[-1]
        left, right = self.front[after - 1].p95, self.front[after].p95
        return values[after - 1] + (values[after] - values[after - 1]) * (p95 - left) / (right - left)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One curve as a multiple of another.

    Attributes:
        p95s: where they were compared.
        goodput: ours over theirs at each of those.
        p99: ours over theirs at those that both curves reach with that very P95.
    """

    p95s: tuple[float, ...]
    goodput: tuple[float, ...]
    p99: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Goodput at equal P95, the geometric mean over `p95s`; NaN if there is none."""
        return geometric_mean(self.goodput)

    @property
    def p99_ratio(self) -> float:
        """P99 at equal P95, likewise."""
        return geometric_mean(self.p99)


def compare(ours: Curve, theirs: Curve, grid: Sequence[float] = GRID, *, tried: bool = False) -> Comparison:
    """Ours over theirs at those P95s of the grid that both reach.

    `tried`: their goodput is that of a setting that was tried, and not what lies between two; P99 is as without.
    Where theirs reaches none of the grid, they are compared at its lowest P95, with what ours does at that or less. So
    an arm that cannot keep latency low is compared where it stands, and not left out.
    """
    p95s = [p95 for p95 in grid if p95 >= theirs.lowest] or [theirs.lowest]
    best = theirs.reached_at if tried else theirs.goodput_at
    both = [(p95, mine, yours) for p95 in p95s if (mine := ours.goodput_at(p95)) is not None and (yours := best(p95))]
    tails = [(ours.p99_at(p95), theirs.p99_at(p95)) for p95, _, _ in both]
    return Comparison(
        tuple(p95 for p95, _, _ in both),
        tuple(mine / yours for _, mine, yours in both),
        tuple(mine / yours for mine, yours in tails if mine is not None and yours),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product; NaN without values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
