"""The same results for programs: plain dictionaries that go into JSON as they are.

Floor: fourth. Pure. Seconds and tokens throughout; names as in the text report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from .recording import ArmRun
from .replay import Replay
from .run_texts import batch_done, replay_remarks, scenario_remarks
from .scenarios import BATCH_MAX, BATCH_MIN, SLOTS, ScenarioRun
from .verdict import Criterion

Json = Mapping[str, object]


def scenarios_json(runs: Sequence[ScenarioRun], criteria: Sequence[Criterion]) -> Json:
    """All scenarios with all arms, and the verdict."""
    return {
        "passed": all(criterion.passed for criterion in criteria),
        "criteria": [asdict(criterion) for criterion in criteria],
        "setup": {
            "server_slots": SLOTS,
            "max_concurrency": SLOTS,
            "batch_max_concurrency": BATCH_MAX,
            "batch_min_concurrency": BATCH_MIN,
        },
        "scenarios": [
            {
                **asdict(run.scenario),
                "arms": [{**_arm(arm), "batch_done": batch_done(arm)} for arm in run.arms],
                "remarks": scenario_remarks(run),
            }
            for run in runs
        ],
    }


def replay_json(result: Replay, source: str, batch_source: str) -> Json:
    """A replay with all its arms; the first is the traffic without any batch work."""
    alone = result.alone.interactive
    return {
        "interactive_source": source,
        "batch_source": batch_source,
        "interactive_calls": len(result.traffic),
        "span": result.span,
        "setup": {**asdict(result.setup), "interactive_p95_threshold": result.p95_threshold},
        "threshold_kept": result.ours.interactive.p95 <= result.p95_threshold,
        "arms": [
            {
                **_arm(arm),
                "interactive_over_no_batch": {
                    name: getattr(arm.interactive, name) / getattr(alone, name) for name in ("p50", "p95", "p99")
                },
                "batch_calls_per_minute": result.batch_rates(arm)[0],
                "batch_tokens_per_second": result.batch_rates(arm)[1],
            }
            for arm in (result.alone, *result.arms)
        ],
        "remarks": replay_remarks(result),
    }


def _arm(arm: ArmRun) -> dict[str, object]:
    limits = [limit for _, limit in arm.limits]
    pressures = [round(sample.steering.pressure, 4) for sample in arm.samples if sample.steering]
    return {
        "name": arm.name,
        "interactive": asdict(arm.interactive),
        "batch_calls_ended": len(arm.of_kind("batch")),
        "peak_at_server": arm.peak_at_server,
        "timeline": {
            "time": [round(sample.time, 3) for sample in arm.samples],
            "interactive": [sample.interactive for sample in arm.samples],
            "batch": [sample.batch for sample in arm.samples],
            **({"batch_limit": limits, "pressure": pressures} if limits else {}),
        },
    }
