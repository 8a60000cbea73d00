"""A governor with everything around it that a test looks at; for tests of the governor.

`from tests.unit.policies.governed import SLICE, WINDOW, Asked, AskedOnRate, Counts, House, failing`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_traffic_scheduler import Decision, LimitPolicy, Signals
from llm_traffic_scheduler.core.admission import Limits
from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics
from llm_traffic_scheduler.policies.governor import Governor

__all__ = ["LIMITS", "SLICE", "WINDOW", "Asked", "AskedOnRate", "Counts", "House", "failing"]

LIMITS = Limits(max_concurrency=8, batch_max=6, batch_min=2)
WINDOW = 10.0
SLICE = WINDOW / 100


@dataclass
class Counts:
    """What the governor watches, set by hand."""

    limits: Limits = LIMITS
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    submitted: list[float] = field(default_factory=list)

    def oldest_wait(self, interactive: bool, now: float) -> float:
        return 0.0

    def oldest_unfinished(self, now: float) -> float:
        return now - min(self.submitted, default=now)

    def unfinished(self, now: float, older_than: float) -> tuple[list[float], float]:
        ages = [now - submitted for submitted in sorted(self.submitted)]
        younger = [now - age for age in ages if not age > older_than]
        return [age for age in ages if age > older_than], min(younger, default=math.inf)


class Asked:
    """A policy that answers what it is told, and keeps when and on what it was asked."""

    def __init__(self, answer: Callable[[float, Signals], Decision] = lambda now, signals: Decision(4)) -> None:
        self.answer = answer
        self.decided: list[float] = []
        self.advanced: list[float] = []
        self.signals = Signals()

    def advance(self, now: float, signals: Signals) -> None:
        self.advanced.append(now)

    def decide(self, now: float, signals: Signals) -> Decision:
        self.decided.append(now)
        self.signals = signals
        return self.answer(now, signals)


class AskedOnRate(Asked):
    """The same, looking at the arrival rate only."""

    reads = frozenset({"rps"})


@dataclass
class House:
    """A governor with everything around it that a test looks at."""

    policy: LimitPolicy
    watched: Counts = field(default_factory=Counts)
    faults: list[BaseException] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.governor = Governor(
            self.policy,
            SlidingWindowMetrics(WINDOW),
            on_fault=self.faults.append,
            on_change=lambda before, after: self.changes.append((before.limit, after.limit)),
        )
        self.governor.watch(self.watched)

    def arrived(self, now: float) -> None:
        self._enter(now)
        self.governor.window.arrived(now)

    def completed(self, now: float, latency: float) -> None:
        self._enter(now)
        self.governor.window.completed(now, latency)

    def _enter(self, now: float) -> None:
        if now >= self.governor.slice_end:
            self.governor.roll(now)
        self.governor.fresh = False


def failing(error: BaseException, *, until: float, limit: int = 4) -> Callable[[float, Signals], Decision]:
    """Fine before second 1, raising until `until`, fine after that."""

    def answer(now: float, signals: Signals) -> Decision:
        if 1.0 <= now < until:
            raise error
        return Decision(limit, 0.25, valid_until=now)

    return answer
