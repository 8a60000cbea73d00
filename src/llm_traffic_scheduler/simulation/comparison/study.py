"""Every arm on every instance: what is run, in which order, and what is kept.

Floor: fourth.
Scouting: every arm runs on the first instance of a shape. A setting of a swept family that lies far from the best of
its family there, or far above the P95s at which ratios are taken, is not run on the further instances; `scouted`
defines "far". The margins are wider than what the next instance changes; the first instance counts as the others do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final

from ..pool import run_parallel
from ..progress import Progress
from .curves import GRID, Curve, Point
from .families import CURVES, LITERAL, LITERAL_SWEPT, OURS, STATIC, TOTAL, Candidate, Room, candidates
from .instances import HEADLINE, SHAPES, Instance
from .trials import Figures, Trial, run_trial, seconds_to_open

__all__ = ["ArmResult", "Plan", "Study", "scouted", "study"]

_SWEPT: Final = frozenset({STATIC, TOTAL, LITERAL, LITERAL_SWEPT})
_MUCH_LESS: Final = 0.9
_FAR_ABOVE: Final = 1.3

_Runs = dict[tuple[Instance, Candidate | None], Figures]
Watch = Callable[[str], AbstractContextManager[Progress]]
"""Opens a progress bar with this label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `span` in seconds; `thin` and `families` as of `candidates`; `jobs`: processes, None: one a core.

    The H100 model runs the shapes of the headline only.
    """

    shapes: tuple[str, ...] = tuple(SHAPES)
    seeds: int = 10
    span: float = 1800.0
    engines: tuple[str, ...] = ("A100", "H100")
    thin: bool = False
    families: tuple[str, ...] | None = None
    room: Room = field(default_factory=Room)
    traces: Path | None = None
    jobs: int | None = None

    @property
    def instances(self) -> str:
        """How much of each shape is run, in words."""
        minutes = self.span / 60
        return (
            f"{self.seeds} instance{'' if self.seeds == 1 else 's'} of {minutes:g} minute{'' if minutes == 1 else 's'}"
        )

    @property
    def quotable(self) -> bool:
        """Whether its figures may be quoted: at least four instances of 30 minutes, every setting."""
        return self.seeds >= 4 and self.span >= 1800 and not self.thin

    @property
    def most_runs(self) -> int:
        """How many runs all `arms` make; with several instances scouting saves some of them."""
        return len(self.cells) * self.seeds * (1 + len(self.arms))

    @property
    def arms(self) -> tuple[Candidate, ...]:
        """Every arm that is run at least once on each shape."""
        return candidates(thin=self.thin, families=self.families)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The families that are not run."""
        run = {arm.family for arm in self.arms}
        return tuple(dict.fromkeys(arm.family for arm in candidates() if arm.family not in run))

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """Engine and shape of each part of the study."""
        return tuple(
            (engine, shape) for engine in self.engines for shape in self.shapes if engine == "A100" or shape in HEADLINE
        )


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm on one shape: a run for each seed, beside the same traffic without batch."""

    engine: str
    shape: str
    candidate: Candidate
    runs: tuple[Figures, ...]
    alone: tuple[Figures, ...]

    @property
    def point(self) -> Point:
        """Means over seeds; P95 and P99 as multiples of no batch on the same instance."""
        return _point(self.runs, self.alone)

    @property
    def p95_over_target(self) -> float:
        """P95 over the arm's target, the mean over instances; NaN if it has none."""
        target = self.candidate.target
        return math.nan if target is None else self.point.p95 / target

    @property
    def complete(self) -> bool:
        """It ran on every instance."""
        return len(self.runs) == len(self.alone)


@dataclass(frozen=True, slots=True)
class Study:
    """All results. `cold_start`: seconds that ours takes to open without interactive traffic."""

    plan: Plan
    arms: tuple[ArmResult, ...]
    cold_start: float

    def of(self, engine: str, shape: str, *families: str) -> tuple[ArmResult, ...]:
        """The arms of these families that ran on every instance of the shape."""
        return tuple(
            arm
            for arm in self.arms
            if (arm.engine, arm.shape) == (engine, shape) and arm.candidate.family in families and arm.complete
        )

    def curve(self, engine: str, shape: str, *families: str) -> Curve:
        """The best of these families at each P95."""
        return Curve.of(arm.point for arm in self.of(engine, shape, *families))

    def curves(self, engine: str, shape: str) -> dict[str, Curve]:
        """The curve of each family that is swept, by name; where batch_max is swept too, 64 is one of its values."""
        return {
            name: self.curve(engine, shape, *families)
            for name, families in CURVES.items()
            if self.of(engine, shape, *families)
        }

    def families(self) -> tuple[str, ...]:
        """All families in the order in which they are listed."""
        return tuple(dict.fromkeys(arm.candidate.family for arm in self.arms))


def study(plan: Plan, watch: Watch, *, arms: Sequence[Candidate] | None = None) -> Study:
    """Run the plan. Deterministic: the same plan gives the same study, with any number of jobs.

    `arms`: what is run; left out, those of the plan. Ours is among them.

    Raises: what a run raises, with a note that names it; a crashed process is an error too.
    """
    arms = plan.arms if arms is None else arms
    cells = [
        tuple(Instance(shape, seed, plan.span, engine, plan.traces) for seed in range(plan.seeds))
        for engine, shape in plan.cells
    ]

    def run(label: str, pairs: Sequence[tuple[Instance, Candidate | None]]) -> _Runs:
        trials = [Trial(instance, plan.room, arm, alone.get(instance, math.nan)) for instance, arm in pairs]
        with watch(label) as progress:
            return dict(zip(pairs, run_parallel(run_trial, trials, jobs=plan.jobs, progress=progress), strict=True))

    alone: dict[Instance, float] = {}
    runs = run("without batch", [(instance, None) for instances in cells for instance in instances])
    alone |= {instance: figures.p95 for (instance, _), figures in runs.items()}
    runs |= run("first instances", [(instances[0], arm) for instances in cells for arm in arms])
    further = [
        (instance, arm)
        for instances in cells
        for instance, worth in product(instances[1:], [_worth_more(instances[0], arms, runs)])
        for arm in worth
    ]
    if further:
        runs |= run("further instances", further)
    results = (_arm_result(instances, arm, runs) for instances in cells for arm in arms)
    return Study(plan, tuple(results), _cold_start(plan, arms))


def scouted(points: Mapping[Candidate, Point]) -> tuple[Candidate, ...]:
    """Those of one family that are worth further instances, by their points on the first one.

    Left out is who has less than 0.9 of the family's best goodput at his P95, and who is more than 1.3 times above both
    the highest P95 at which ratios are taken and the family's lowest; but for the first point of the curve above it.
    """
    curve = Curve.of(points.values())
    most = max(GRID[-1], curve.lowest)
    beyond = next((point for point in curve.front if point.p95 > most), None)
    return tuple(
        arm
        for arm, point in points.items()
        if point is beyond
        or (point.p95 <= _FAR_ABOVE * most and point.goodput >= _MUCH_LESS * (curve.goodput_at(point.p95) or 0.0))
    )


def _worth_more(first: Instance, arms: Sequence[Candidate], runs: _Runs) -> tuple[Candidate, ...]:
    alone = runs[first, None]
    points = {arm: _point([runs[first, arm]], [alone]) for arm in arms}
    kept: set[Candidate] = set()
    for family in {arm.family for arm in arms}:
        members = {arm: point for arm, point in points.items() if arm.family == family}
        kept.update(scouted(members) if family in _SWEPT else members)
    return tuple(arm for arm in arms if arm in kept)


def _arm_result(instances: Sequence[Instance], arm: Candidate, runs: _Runs) -> ArmResult:
    return ArmResult(
        engine=instances[0].engine,
        shape=instances[0].shape,
        candidate=arm,
        runs=tuple(runs[instance, arm] for instance in instances if (instance, arm) in runs),
        alone=tuple(runs[instance, None] for instance in instances),
    )


def _point(runs: Sequence[Figures], alone: Sequence[Figures]) -> Point:
    pairs = list(zip(runs, alone, strict=False))
    return Point(
        p95=fmean(run.p95 / bare.p95 for run, bare in pairs),
        goodput=fmean(run.goodput for run in runs),
        p99=fmean(run.p99 / bare.p99 for run, bare in pairs),
    )


def _cold_start(plan: Plan, arms: Sequence[Candidate]) -> float:
    ours = next(arm for arm in arms if arm.family == OURS)
    return seconds_to_open(ours, plan.room)
