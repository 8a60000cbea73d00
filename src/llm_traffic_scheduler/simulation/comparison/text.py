"""The comparison in text for a terminal of 100 columns.

Floor: fourth. Pure.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Final

from ..layout import paragraph, title
from .families import CURVES, OURS
from .instances import ENGINES, SHAPES
from .losses import Loss, losses
from .reach import OPPONENTS, Line, against
from .study import Study
from .trials import BACKLOG

__all__ = ["GOOD_FOR", "study_text"]

GOOD_FOR: Final = "Simulated: good for ranking policies, not for absolute GPU figures."
_SHOWN_P95S: Final = (1.15, 1.3, 1.5, 1.8)
_STEERED_AT: Final = 1.4
_SINGLE: Final = ("no scheduler", "semaphore", "priority only", "batch_min")


def study_text(study: Study, lines: Sequence[Line]) -> str:
    """Rules, a table for each shape, the headline, how targets were kept, losses, and every line to reach."""
    return "\n".join(
        (
            *_rules(study),
            *(row for engine, shape in study.plan.cells for row in _shape_table(study, engine, shape)),
            *_headline(study),
            *_targets(study),
            *_steering(study),
            *_losses(losses(study)),
            *_reach(lines),
        )
    )


def _rules(study: Study) -> list[str]:
    plan, room = study.plan, study.plan.room
    engines = "; ".join(f"{ENGINES[engine][0].name}, traffic x {ENGINES[engine][1]:g}" for engine in plan.engines)
    runs = sum(len(arm.runs) for arm in study.arms)
    rules = [
        f"{GOOD_FOR} Engines: {engines}.",
        f"{plan.instances} of each shape (recorded ones as long as there is trace), {runs:,} runs; every arm sees the"
        f" same calls. Cap {room.max_concurrency}, batch {room.batch_min} to {room.batch_max}, {BACKLOG} batch calls"
        " submitted at all times.",
        "Thresholds and targets are multiples of the interactive P95 without batch, which is known. Goodput counts the"
        " tokens, prompt and answer, of batch calls that ended within the time.",
    ]
    if plan.left_out:
        rules.append(f"Left out: {', '.join(plan.left_out)}.")
    if not plan.quotable:
        rules.append(
            f"Short form: {plan.instances}{', every second setting' if plan.thin else ''}. It shows the way; figures to"
            " quote come from at least four instances of 30 minutes and every setting (--full)."
        )
    return [title("Control laws compared"), *(line for rule in rules for line in paragraph(rule))]


def _shape_table(study: Study, engine: str, shape: str) -> list[str]:
    label = f"{shape} on {engine}"
    times = ENGINES[engine][1]
    story = SHAPES[shape].story + (f"; here {times:g} times that" if times != 1 else "")
    rows = [title(label), *paragraph(f"{story}. Batch tokens/s at interactive P95 of ... times no batch:"), ""]
    rows.append(f"{'':30}" + "".join(f"{f'{p95:g} x':>10}" for p95 in _SHOWN_P95S) + f"{'lowest':>10}")
    for family, curve in study.curves(engine, shape).items():
        if curve.front:
            cells = (_tokens(curve.goodput_at(p95)) for p95 in _SHOWN_P95S)
            rows.append(f"{family:30}" + "".join(f"{cell:>10}" for cell in cells) + f"{curve.lowest:8.2f} x")
    for family in _SINGLE:
        for arm in study.of(engine, shape, family):
            point = arm.point
            rows.append(
                f"{family:30}{_tokens(point.goodput):>10} at {point.p95:.2f} x the P95, {point.p99:.2f} x the P99"
            )
    return rows


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _headline(study: Study) -> list[str]:
    rows = [
        title("Batch goodput at equal interactive P95: adaptive over ..."),
        *paragraph(
            "Geometric means over P95s of 1.15 to 1.8 x no batch, as far as both reach them; in brackets P99 at equal"
            " P95."
        ),
    ]
    for engine, cells in groupby(study.plan.cells, key=lambda cell: cell[0]):
        shapes = [shape for _, shape in cells]
        for part in (shapes[start : start + 5] for start in range(0, len(shapes), 5)):
            rows += ["", f"{engine:30}" + "".join(f"{shape:>14}" for shape in part)]
            for opponent in OPPONENTS:
                results = [against(study, engine, shape, opponent) for shape in part]
                texts = [f"{result.ratio:.2f} ({result.p99_ratio:.2f})".replace("nan", "-") for result in results]
                name = opponent.name.removeprefix("the ").replace(" in hindsight", "")
                rows.append(f"{name:30}" + "".join(f"{text:>14}" for text in texts))
    return rows


def _targets(study: Study) -> list[str]:
    rows = [title("P95 over target: adaptive, mean over instances"), ""]
    header = False
    for engine, shape in study.plan.cells:
        arms = study.of(engine, shape, OURS)
        if not header and arms:
            rows.append(f"{'target, x no batch':22}" + "".join(f"{arm.candidate.setting:>10}" for arm in arms))
            header = True
        rows.append(f"{f'{shape} on {engine}':22}" + "".join(f"{arm.p95_over_target:10.3f}" for arm in arms))
    return rows


def _steering(study: Study) -> list[str]:
    """How restless each law is, at the setting whose P95 is nearest to 1.4 x no batch on the first shape."""
    engine, shape = study.plan.cells[0]
    rows = [
        title(
            f"How they steer: {shape} on {engine}, each at its setting nearest to a P95 of {_STEERED_AT:g} x no batch"
        ),
        *paragraph(
            "Changes of direction per minute, seen every 5 s: of the batch limit, and of the limit plus the interactive"
            f" calls. Idle: of {study.plan.room.batch_max} slots for batch, those without, while batch waits."
        ),
        "",
        f"{'':46}{'P95':>8}{'limit turns':>13}{'total turns':>13}{'idle':>7}{'wasted':>8}",
    ]
    for family in CURVES:
        arms = study.of(engine, shape, family)
        if arms:
            arm = min(arms, key=lambda arm: abs(arm.point.p95 - _STEERED_AT))
            turns = (_mean([getattr(run, name) for run in arm.runs]) for name in ("limit_turns", "total_turns"))
            idle, wasted = (fmean(getattr(run, name) for run in arm.runs) for name in ("idle_slots", "wasted_tokens"))
            name = f"{arm.candidate.family.removesuffix(', batch_max too')}, {arm.candidate.setting}"
            texts = "".join(f"{text:>13}" for text in turns)
            rows.append(f"{name:46}{arm.point.p95:6.2f} x{texts}{idle:7.1f}{wasted:8,.0f}")
    return rows


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.1f}" if known else "-"


def _losses(found: Sequence[Loss]) -> list[str]:
    rows = [title("Where another arm is ahead of adaptive")]
    for family, group in groupby(sorted(found, key=lambda loss: loss.family), key=lambda loss: loss.family):
        places = ", ".join(_place(loss) for loss in group)
        rows += paragraph(f"{family}: {places}", "* ")
    return rows if found else [*rows, "Nowhere, in these runs."]


def _place(loss: Loss) -> str:
    low, high = loss.p95s
    where = f"{low:g} x" if low == high else f"{low:g} to {high:g} x"
    ahead = "which ours does not reach" if math.isinf(loss.most) else f"by up to {100 * (loss.most - 1):.0f} %"
    return f"{loss.shape} on {loss.engine} at {where} ({ahead})"


def _reach(lines: Sequence[Line]) -> list[str]:
    marks = {True: "pass", False: "MISS", None: "-   "}
    rows = [title("What was to be reached")]
    for line in lines:
        rows += paragraph(f"{line.claim}: {line.bound}; measured {line.measured}", f"{marks[line.passed]}  ")
    return rows
