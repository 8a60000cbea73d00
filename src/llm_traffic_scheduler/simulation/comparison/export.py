"""The whole comparison for programs: every run of every arm, the curves, the ratios and the lines to reach.

Floor: fourth. Pure. Seconds, tokens, calls; what is infinite or was not measured is null.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from .families import OURS
from .losses import losses
from .reach import OPPONENTS, Line, against
from .study import ArmResult, Study
from .text import GOOD_FOR

__all__ = ["study_json"]


def study_json(study: Study, lines: Sequence[Line]) -> Mapping[str, object]:
    """Plain dictionaries that go into JSON as they are."""
    plan = study.plan
    content = {
        "note": GOOD_FOR,
        "plan": {
            "shapes": list(plan.shapes),
            "engines": list(plan.engines),
            "instances": plan.seeds,
            "span": plan.span,
            "every_second_setting": plan.thin,
            "left_out": list(plan.left_out),
            **asdict(plan.room),
        },
        "reach": [asdict(line) for line in lines],
        "ratios": [_ratio(study, engine, shape) for engine, shape in plan.cells],
        "losses": [asdict(loss) for loss in losses(study)],
        "cold_start": study.cold_start,
        "arms": [_arm(arm) for arm in study.arms],
    }
    return {name: _plain(value) for name, value in content.items()}


def _ratio(study: Study, engine: str, shape: str) -> dict[str, object]:
    ratios = {}
    for opponent in OPPONENTS:
        result = against(study, engine, shape, opponent)
        ratios[opponent.name] = {
            "goodput_at_equal_p95": result.ratio,
            "p99_at_equal_p95": result.p99_ratio,
            "at": list(result.p95s),
            "goodput": list(result.goodput),
        }
    return {"engine": engine, "shape": shape, OURS: ratios}


def _arm(arm: ArmResult) -> dict[str, object]:
    return {
        "engine": arm.engine,
        "shape": arm.shape,
        "family": arm.candidate.family,
        "setting": arm.candidate.setting,
        "target": arm.candidate.target,
        "ran_on_all_instances": arm.complete,
        "over_no_batch": asdict(arm.point),
        "runs": [asdict(run) for run in arm.runs],
        "without_batch": [asdict(run) for run in arm.alone],
    }


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
