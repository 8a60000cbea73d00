"""The dullest possible twin of `Objective`: ages are exact, nothing is carried along that can be computed again.

`from tests.unit.policies.naive_objective import NaiveObjective`. The law is that of CONTROL.md; its constants are
those of the room, which tuning may change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llm_traffic_scheduler.policies import objective as law
from llm_traffic_scheduler.policies import unfinished

__all__ = ["NaiveObjective"]


@dataclass
class NaiveCall:
    arrived: float
    weight: float = 1.0
    late: bool = False


@dataclass
class NaiveObjective:
    target: float
    timed: bool = True
    calls: dict[int, NaiveCall] = field(default_factory=dict)
    history: list[tuple[float, float, float]] = field(default_factory=list)  # since, until, total in effect
    samples: list[tuple[float, float]] = field(default_factory=list)  # latency, mean total
    judged: list[bool] = field(default_factory=list)
    warm: list[tuple[float, float]] = field(default_factory=list)  # seconds, what three batch calls come to
    at: float = -math.inf
    weighed_at: float = -math.inf
    total_then: float = law._START
    most_held: float = 0.0
    batch_running: int = 0
    batch_min: int = 1
    batch_max: int = 1

    def advance(self, now: float, batch_running: int, batch_min: int, batch_max: int) -> None:
        self.move(now)
        self.batch_running, self.batch_min, self.batch_max = batch_running, batch_min, batch_max

    def arrive(self, now: float, call: int) -> None:
        self.move(now)
        self.calls[call] = NaiveCall(now)

    def served(self, now: float, call: int, elapsed: float, latency: float) -> None:
        self.move(now)
        if (gone := self.calls.pop(call, None)) is None:
            return
        if not gone.late:
            self.judged.append(latency > self.target)
        self.learn(gone, now, latency)

    def lost(self, now: float, call: int, elapsed: float) -> None:
        self.move(now)
        gone = self.calls.pop(call, None)
        if gone is not None and self.timed and self.samples and elapsed >= self.p95(self.latencies):
            self.learn(gone, now, elapsed)

    def learn(self, gone: NaiveCall, now: float, latency: float) -> None:
        mean = self.total_then
        if now > gone.arrived:
            lived = [span for span in self.history[-1000:] if span[1] > gone.arrived]
            area = sum((until - max(gone.arrived, since)) * total for since, until, total in lived)
            mean = area / (now - gone.arrived)
        self.samples.append((max(1e-6, latency), max(1.0, mean)))
        self.most_held = max(self.held, law._FADES * self.most_held)

    def move(self, now: float) -> None:
        if now > self.at > -math.inf:
            total = self.total(now)
            self.history.append((self.at, now, self.in_effect()))
            if len(self.samples) < law.WARM_UP:
                self.warm.append((now - self.at, law._START + self.held))
            self.total_then = total
        self.at = max(self.at, now)
        if self.timed:
            self.weigh(now)

    def weigh(self, now: float) -> None:
        for call in self.calls.values():
            if not call.late and now - call.arrived > self.target:
                call.late, call.weight = True, law._LATE
                self.judged.append(True)
        if self.calls and now - self.weighed_at >= unfinished._REWEIGH_AFTER:
            self.weighed_at = now
            for call in self.calls.values():
                if not call.late:
                    call.weight = self.weight(now - call.arrived)

    def weight(self, age: float) -> float:
        alive = sum(latency >= age for latency in self.latencies)
        if not self.latencies:
            return 1.0
        return min(law._HEAVIEST, len(self.latencies) / alive) if alive else law._HEAVIEST

    def in_effect(self) -> float:
        used, in_force = self.batch_running + self.held, self.total(self.at)
        if used > in_force - 1.5:
            return max(1.0, in_force)
        return max(1.0, used)

    def total(self, now: float) -> float:
        elapsed = now - self.at
        if len(self.samples) < law.WARM_UP:
            spans = [*self.warm, (max(0.0, elapsed), law._START + self.held)]
            seconds = sum(span for span, _ in spans)
            return sum(span * total for span, total in spans) / seconds if seconds else law._START + self.held
        total, goal = self.total_then, self.goal
        if goal < total:
            return max(goal, total * math.exp(-law._FALL * elapsed))
        rise = law._RISE[0] + law._RISE[1] * min(1.0, len(self.samples) / law._SURE_AFTER)
        return min(goal, total + max(2.0, total) * math.expm1(min(99.0, rise * elapsed)))

    @property
    def latencies(self) -> list[float]:
        return [latency for latency, _ in self.samples[-law._KEPT :]]

    @property
    def reserve(self) -> float:
        return sum(call.weight for call in self.calls.values())

    @property
    def late(self) -> int:
        return sum(call.late for call in self.calls.values())

    @property
    def held(self) -> float:
        return len(self.calls) + law._AGE_SHARE * self.reserve

    @property
    def trim(self) -> float:
        trim = 0.0
        for missed in self.judged:
            trim = min(max(trim + law._GAIN * (missed - law._SHARE), law._TRIM[0]), law._TRIM[1])
        return trim

    @property
    def goal(self) -> float:
        if not self.samples:
            return law._START
        scaled = [math.log(latency / total**law._EXPONENT) for latency, total in self.samples[-law._KEPT :]]
        solved = math.exp(min(12.0, (math.log(self.target) - self.trim - self.p95(scaled)) / law._EXPONENT))
        used = self.batch_max + max(law._AGE_SHARE * self.batch_max, self.most_held)
        return max(self.batch_min, min(used + law._SPARE, solved))

    @staticmethod
    def p95(values: list[float]) -> float:
        return sorted(values)[-(-95 * len(values) // 100) - 1]
