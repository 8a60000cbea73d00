"""What was set out to be reached, and what was measured: one line each, with the bound.

Floor: fourth. Pure.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final

from .curves import Comparison, compare, geometric_mean
from .families import LITERAL, LITERAL_SWEPT, OURS, STATIC, TOTAL
from .instances import HEADLINE
from .study import Study

__all__ = ["OPPONENTS", "Line", "Opponent", "against", "reach"]

_KEPT: Final = ("steady", "cv3", "square", "burst", "chat")
_H100_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Opponent:
    """Whom we are measured against: the best of these families at each P95, and the multiple to reach.

    `whole`: between two of its settings there is none, so that its curve says more than anybody can set.
    """

    name: str
    families: tuple[str, ...]
    bound: float
    whole: bool = False


OPPONENTS: Final = (
    Opponent("the literal law", (LITERAL,), 1.5),
    Opponent("the literal law, batch_max in hindsight too", (LITERAL, LITERAL_SWEPT), 1.25),
    Opponent("the best static split", (STATIC,), 1.22, whole=True),
    Opponent("the best fixed total", (TOTAL,), 1.02),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to reach. `passed` None: the plan did not run what it takes to say."""

    claim: str
    bound: str
    measured: str
    passed: bool | None


def against(study: Study, engine: str, shape: str, opponent: Opponent, *, tried: bool = False) -> Comparison:
    """Our curve over the opponent's on one shape, or over its settings alone that were tried."""
    return compare(study.curve(engine, shape, OURS), study.curve(engine, shape, *opponent.families), tried=tried)


def reach(study: Study) -> tuple[Line, ...]:
    """Every line, in the order in which they were set."""
    shapes = [shape for engine, shape in study.plan.cells if engine == "A100"]
    return (
        *(_goodput(study, opponent) for opponent in OPPONENTS),
        _worst_shape(study, shapes),
        _kept(study, [shape for shape in shapes if shape in _KEPT]),
        _kept_elsewhere(study, [shape for shape in shapes if shape not in _KEPT]),
        _tail(study, shapes),
        *(_same_on_the_h100(study, opponent) for opponent in OPPONENTS),
        _bursts(study),
        _starts(study),
        _cold_start(study),
    )


def _line(claim: str, bound: str, measured: str, value: float, passes: Callable[[float], bool]) -> Line:
    """A value that is NaN was not measured."""
    return Line(claim, bound, "not run", None) if math.isnan(value) else Line(claim, bound, measured, passes(value))


def _mean_ratio(
    study: Study, engine: str, opponent: Opponent, *, tried: bool = False
) -> tuple[float, dict[str, float]]:
    """The geometric mean over the shapes of the headline, NaN unless all were run; and each of them."""
    shapes = [shape for each, shape in study.plan.cells if each == engine and shape in HEADLINE]
    ratios = {shape: against(study, engine, shape, opponent, tried=tried).ratio for shape in shapes}
    return geometric_mean(list(ratios.values())) if len(ratios) == len(HEADLINE) else math.nan, ratios


def _each(ratios: dict[str, float]) -> str:
    return ", ".join(f"{shape} {ratio:.2f}" for shape, ratio in ratios.items())


def _goodput(study: Study, opponent: Opponent) -> Line:
    mean, ratios = _mean_ratio(study, "A100", opponent)
    claim = f"batch goodput at equal interactive P95 over {opponent.name}, geometric mean over {', '.join(HEADLINE)}"
    measured = f"{mean:.3f} ({_each(ratios)})"
    if opponent.whole:
        whole, ratios = _mean_ratio(study, "A100", opponent, tried=True)
        measured += f"; over whole slots alone, as they can be set, {whole:.3f} ({_each(ratios)})"
    return _line(claim, f"at least {opponent.bound:g}", measured, mean, lambda value: value >= opponent.bound)


def _worst_shape(study: Study, shapes: Sequence[str]) -> Line:
    ratios = {shape: against(study, "A100", shape, OPPONENTS[-1]).ratio for shape in shapes}
    known = {shape: ratio for shape, ratio in ratios.items() if not math.isnan(ratio)}
    worst = min(known, key=lambda shape: known[shape], default="")
    value = known.get(worst, math.nan)
    claim = "the same over the best fixed total on each shape that was run"
    return _line(claim, "none below 0.9", f"worst {value:.3f} ({worst}); {_each(known)}", value, lambda low: low >= 0.9)


def _kept(study: Study, shapes: Iterable[str]) -> Line:
    kept = {
        f"{shape} at {arm.candidate.setting}": arm.p95_over_target
        for shape in shapes
        for arm in study.of("A100", shape, OURS)
    }
    low = min(kept, key=lambda name: kept[name], default="")
    high = max(kept, key=lambda name: kept[name], default="")
    off = [name for name, value in kept.items() if not 0.97 <= value <= 1.03]
    claim = f"P95 / target, mean over instances, at each target on {', '.join(_KEPT)}"
    if not kept:
        return Line(claim, "0.97 to 1.03", "not run", None)
    measured = f"{kept[low]:.3f} ({low}) to {kept[high]:.3f} ({high}); outside: {', '.join(off) or 'none'}"
    return Line(claim, "0.97 to 1.03", measured, not off)


def _kept_elsewhere(study: Study, shapes: Sequence[str]) -> Line:
    claim = "the same on the other shapes (sparse: the mean over targets too, as an instance has only 90 calls)"
    kept: dict[str, float] = {}
    for shape in shapes:
        values = {arm.candidate.setting: arm.p95_over_target for arm in study.of("A100", shape, OURS)}
        if shape == "sparse" and values:
            kept["sparse"] = fmean(values.values())
        else:
            kept |= {f"{shape} at {setting}": value for setting, value in values.items()}
    if not kept:
        return Line(claim, "at most 1.1", "not run", None)
    high = max(kept, key=lambda name: kept[name])
    return Line(claim, "at most 1.1", f"highest {kept[high]:.3f} ({high})", kept[high] <= 1.1)


def _tail(study: Study, shapes: Sequence[str]) -> Line:
    ratios = {shape: against(study, "A100", shape, OPPONENTS[-1]).p99_ratio for shape in shapes}
    known = {shape: ratio for shape, ratio in ratios.items() if not math.isnan(ratio)}
    value = max(known.values(), default=math.nan)
    claim = "interactive P99 at equal P95 over that of the best fixed total, on each shape that was run"
    return _line(claim, "at most 1.06", f"highest {value:.3f}; {_each(known)}", value, lambda high: high <= 1.06)


def _same_on_the_h100(study: Study, opponent: Opponent) -> Line:
    a100, _ = _mean_ratio(study, "A100", opponent)
    h100, ratios = _mean_ratio(study, "H100", opponent)
    claim = f"H100 with four times the traffic, over {opponent.name}"
    bound = f"at least 0.95 of the A100's {a100:.3f}" if not math.isnan(a100) else "at least 0.95 of the A100's"
    measured = f"{h100:.3f}, that is {h100 / a100:.3f} of it ({_each(ratios)})"
    return _line(claim, bound, measured, h100 / a100, lambda share: share >= 1 - _H100_MARGIN)


def _bursts(study: Study) -> Line:
    bursts = list(chain.from_iterable(run.bursts for arm in study.of("A100", "burst", OURS) for run in arm.runs))
    back, gone = ([getattr(burst, name) for burst in bursts] for name in ("recovered", "yielded"))
    mean = fmean(back) if back else math.nan
    never = sum(math.isinf(seconds) for seconds in gone)
    yielding = fmean([seconds for seconds in gone if math.isfinite(seconds)] or [math.inf])
    claim = "seconds from the end of a burst to 80 % of the batch throughput before it, mean over bursts and targets"
    measured = (
        f"{mean:.1f} s over {len(back)} bursts; a quarter of batch had given way {yielding:.1f} s after the begin"
        f" (in {never} of them never)"
    )
    return _line(claim, "at most 30 s", measured, mean, lambda seconds: seconds <= 30)


def _starts(study: Study) -> Line:
    room = study.plan.room
    bound = max(1, (room.batch_max - room.batch_min) // 8)
    runs = [run for arm in study.arms if arm.candidate.family == OURS for run in arm.runs]
    added = max((run.most_added for run in runs), default=-1)
    starts = max((run.most_starts for run in runs), default=-1)
    claim = "batch calls that are added at one instant (a loop pass, or several), at most, in all runs"
    measured = f"{added} ({starts} starts, of which some in the place of calls that ended)"
    return Line(claim, f"at most {bound}, an eighth of the range", measured, added <= bound)


def _cold_start(study: Study) -> Line:
    seconds = study.cold_start
    return Line(
        "seconds from a cold start without interactive traffic until batch_max calls run",
        "at most 60 s", f"{seconds:.1f} s", seconds <= 60,
    )  # fmt: skip
