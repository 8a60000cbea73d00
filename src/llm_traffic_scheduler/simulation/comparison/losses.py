"""Where others beat us: published, whatever they are.

Floor: fourth. Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from .curves import GRID, Curve
from .families import OURS
from .study import Study

__all__ = ["Loss", "losses"]

_SAME: Final = 1.005  # half a per cent is neither a win nor a loss


@dataclass(frozen=True, slots=True)
class Loss:
    """A family that has more goodput at equal P95, or keeps a P95 that ours cannot.

    Attributes:
        p95s: lowest and highest of the grid at which it is ahead, as multiples of no batch.
        most: its goodput over ours where it is furthest ahead; infinite where ours does not reach that P95.
    """

    engine: str
    shape: str
    family: str
    p95s: tuple[float, float]
    most: float


def losses(study: Study) -> tuple[Loss, ...]:
    """Every family ahead of ours anywhere on the grid, on any shape."""
    found: list[Loss] = []
    for engine, shape in study.plan.cells:
        ours = study.curve(engine, shape, OURS)
        for family in study.families():
            if family != OURS:
                found += _ahead(engine, shape, family, study.curve(engine, shape, family), ours)
    return tuple(found)


def _ahead(engine: str, shape: str, family: str, theirs: Curve, ours: Curve) -> Iterable[Loss]:
    def lead(p95: float) -> float:
        yours, mine = theirs.goodput_at(p95), ours.goodput_at(p95)
        return 0.0 if yours is None else math.inf if mine is None else yours / mine

    # Not reached and reached with less are two different things to know.
    leads = [(p95, lead(p95)) for p95 in GRID]
    for _, group in groupby((pair for pair in leads if pair[1] > _SAME), key=lambda pair: math.isinf(pair[1])):
        pairs = list(group)
        yield Loss(engine, shape, family, (pairs[0][0], pairs[-1][0]), max(value for _, value in pairs))
