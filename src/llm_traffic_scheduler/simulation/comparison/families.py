"""The arms that are compared: families of one law at many settings.

Floor: fourth.
A family's settings are swept, so that each can be judged by the best it could have done, known in hindsight. All get
the same bounds; thresholds and targets are multiples of the P95 without batch, which everybody may measure.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from llm_traffic_scheduler import AdaptivePolicy, LimitPolicy, TrafficScheduler

from ..arms import Arm, FixedSplit, SemaphoreArm, Unscheduled
from ..laws import AIMD, FixedTotal, Scavenger

__all__ = [
    "CURVES",
    "LITERAL",
    "LITERAL_SWEPT",
    "OURS",
    "STATIC",
    "TARGETS",
    "TOTAL",
    "Candidate",
    "Room",
    "candidates",
]

OURS: Final = "adaptive"
STATIC: Final = "static split"
TOTAL: Final = "fixed total"
LITERAL: Final = "literal law"
LITERAL_SWEPT: Final = "literal law, batch_max too"
CURVES: Final = {
    STATIC: (STATIC,),
    TOTAL: (TOTAL,),
    LITERAL: (LITERAL,),
    LITERAL_SWEPT: (LITERAL, LITERAL_SWEPT),
    "AIMD": ("AIMD",),
    "scavenger": ("scavenger",),
    OURS: (OURS,),
}
"""The families that are shown as a curve, by its name; where batch_max is swept too, the given one counts as well."""
TARGETS: Final = (1.15, 1.25, 1.4, 1.6, 1.8)
"""Multiples of the P95 without batch that AdaptivePolicy and AIMD are asked to keep."""

_STATIC: Final = (*range(1, 21), 24, 32, 48, 64)  # each, to beyond 1.8 x no batch on the headline
_TOTALS: Final = (3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 25, 28, 32, 36, 42, 48, 56, 64, 80, 100)
_THRESHOLDS: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.45, 1.6)
_BATCH_MAXES: Final = (4, 6, 8, 12, 16, 24, 32, 48)
_RISES: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.8)  # of the pace, that the scavenger allows
_WINDOW: Final = 10.0


@dataclass(frozen=True, slots=True)
class Room:
    """The bounds that every arm works in."""

    max_concurrency: int = 128
    batch_max: int = 64
    batch_min: int = 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One arm: a family at one setting.

    Attributes:
        build: makes a fresh arm, told the bounds and the P95 without batch in seconds.
        target: the P95 it is told to keep, as a multiple of no batch, if any.
        reports: calls tell it of first tokens and tokens.
    """

    family: str
    setting: str
    build: Callable[[Room, float], Arm]
    target: float | None = None
    reports: bool = False


def candidates(*, thin: bool = False, families: Collection[str] | None = None) -> tuple[Candidate, ...]:
    """All arms, or those of `families` and ours.

    `thin`: every second setting of each sweep, the rest of its curve being drawn as straight lines; but all static
    splits, for there is none between two of them.
    """
    step = 2 if thin else 1
    arms = (
        Candidate("no scheduler", "", _unscheduled),
        Candidate("semaphore", "", _semaphore),
        Candidate("priority only", "", _priority),
        Candidate("batch_min", "", _batch_min),
        *(Candidate(STATIC, f"{limit}", partial(_static, limit)) for limit in _STATIC),
        *(Candidate(TOTAL, f"{total}", partial(_fixed_total, total)) for total in _TOTALS[::step]),
        *(_literal(threshold, None) for threshold in _THRESHOLDS[::step]),
        *(_literal(threshold, most) for most in _BATCH_MAXES[::step] for threshold in _THRESHOLDS[:: 2 * step]),
        *(_on_target("AIMD", AIMD, target) for target in TARGETS),
        *(Candidate("scavenger", f"rise {rise:g}", partial(_scavenger, rise), reports=True) for rise in _RISES),
        *(_on_target(OURS, AdaptivePolicy, target) for target in TARGETS),
    )
    return tuple(arm for arm in arms if families is None or arm.family == OURS or arm.family in families)


def _on_target(family: str, law: Callable[[float], LimitPolicy], target: float) -> Candidate:
    return Candidate(family, f"{target:g} x", partial(_law_on_target, law, target), target)


def _literal(threshold: float, batch_max: int | None) -> Candidate:
    build = partial(_pressure, threshold, batch_max)
    if batch_max is None:
        return Candidate(LITERAL, f"{threshold:g} x", build, threshold)
    return Candidate(LITERAL_SWEPT, f"{threshold:g} x, batch_max {batch_max}", build, threshold)


def _unscheduled(room: Room, p95_alone: float) -> Arm:
    return Unscheduled()


def _semaphore(room: Room, p95_alone: float) -> Arm:
    return SemaphoreArm(room.max_concurrency)


def _priority(room: Room, p95_alone: float) -> Arm:
    return FixedSplit(room.max_concurrency, room.max_concurrency)


def _batch_min(room: Room, p95_alone: float) -> Arm:
    return FixedSplit(room.max_concurrency, room.batch_min)


def _static(limit: int, room: Room, p95_alone: float) -> Arm:
    return FixedSplit(room.max_concurrency, min(limit, room.batch_max))


def _fixed_total(total: int, room: Room, p95_alone: float) -> Arm:
    return _scheduler(room, FixedTotal(total))


def _law_on_target(law: Callable[[float], LimitPolicy], target: float, room: Room, p95_alone: float) -> Arm:
    return _scheduler(room, law(target * p95_alone))


def _scavenger(rise: float, room: Room, p95_alone: float) -> Arm:
    return _scheduler(room, Scavenger(rise))


def _pressure(threshold: float, batch_max: int | None, room: Room, p95_alone: float) -> Arm:
    return TrafficScheduler(
        max_concurrency=room.max_concurrency,
        batch_max_concurrency=min(batch_max or room.batch_max, room.batch_max),
        batch_min_concurrency=room.batch_min,
        interactive_p95_threshold=threshold * p95_alone,
        window=_WINDOW,
    )


def _scheduler(room: Room, policy: LimitPolicy) -> TrafficScheduler:
    return TrafficScheduler(
        max_concurrency=room.max_concurrency,
        batch_max_concurrency=room.batch_max,
        batch_min_concurrency=room.batch_min,
        window=_WINDOW,
        policy=policy,
    )
