"""Studies made up by hand, for tests of what is read off them.

`from tests.unit.simulation.comparison.made_up import arm, figures, made_up_study`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_traffic_scheduler.simulation.arms import Unscheduled
from llm_traffic_scheduler.simulation.comparison import ArmResult, Candidate, Figures, Plan, Study
from llm_traffic_scheduler.simulation.comparison.bursts import Burst
from llm_traffic_scheduler.simulation.comparison.families import OURS, STATIC, TOTAL

__all__ = ["ALONE", "arm", "figures", "made_up_study"]

SHAPES = ("steady", "cv3", "chat")


def figures(p95: float = 1.0, goodput: float = 0.0, p99: float = 2.0, **changes: object) -> Figures:
    plain = Figures(
        calls=1000, unfinished=0, failed=0, p50=0.5, p95=p95, p99=p99, ttft_p50=0.1, ttft_p95=0.2, ttft_p99=0.3,
        within_target=None, goodput=goodput, wasted_tokens=0, limit_turns=1.0, total_turns=2.0, idle_slots=50.0,
        most_starts=7, most_added=7, bursts=(),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


ALONE = figures()


def arm(
    family: str,
    *runs: Figures,
    shape: str = "steady",
    target: float | None = None,
    engine: str = "A100",
    instances: int | None = None,
) -> ArmResult:
    """An arm with a run for each instance; without batch P95 is 1 s and P99 2 s on all."""
    candidate = Candidate(family, f"{target or runs[0].p95:g} x", lambda room, p95_alone: Unscheduled(), target)
    return ArmResult(engine, shape, candidate, runs, (ALONE,) * (instances or len(runs)))


def curve_of(family: str, *goodputs: float, **options: object) -> list[ArmResult]:
    """Arms at P95s of 1, 2, 3 ... times no batch with these goodputs."""
    return [
        arm(family, figures(number + 1.0, goodput), **options)  # type: ignore[arg-type]
        for number, goodput in enumerate(goodputs)
    ]


def ours_of(*goodputs: float, shape: str, kept: float = 1.0, engine: str = "A100") -> list[ArmResult]:
    """Ours at targets of 1, 2, 3 ... with P95s of `kept` times that, and a burst in each run."""
    bursts = (Burst(2.0, 10.0), Burst(4.0, 20.0))
    return [
        arm(
            OURS,
            figures(kept * (number + 1.0), goodput, bursts=bursts),
            shape=shape,
            target=number + 1.0,
            engine=engine,
        )
        for number, goodput in enumerate(goodputs)
    ]


def made_up_study(
    *more: ArmResult, shapes: Sequence[str] = SHAPES, kept: float = 1.0, cold_start: float = 50.0
) -> Study:
    """Ours with 1000 and 2000 tokens/s at 1 and 2 x no batch, all others with half of that; and `more`."""
    arms: list[ArmResult] = []
    for shape in shapes:
        arms += ours_of(1000, 2000, shape=shape, kept=kept)
        for family in (STATIC, TOTAL, "literal law", "literal law, batch_max too", "AIMD"):
            arms += curve_of(family, 500, 1000, shape=shape)
        arms.append(arm("no scheduler", figures(12.0, 9000), shape=shape))
    plan = Plan(shapes=tuple(shapes), seeds=1, span=600.0, engines=("A100",), thin=True)
    return Study(plan, (*arms, *more), cold_start)
