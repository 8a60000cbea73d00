"""Every arm on every instance: the same study from any number of processes; scouting leaves out only who is far off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from llm_traffic_scheduler.simulation.comparison.curves import Point
from llm_traffic_scheduler.simulation.comparison.families import OURS, STATIC, Candidate, Room, candidates
from llm_traffic_scheduler.simulation.comparison.study import ArmResult, Plan, Study, scouted, study
from tests.unit.simulation.comparison.made_up import ALONE, arm, figures, made_up_study

PLAN = Plan(shapes=("steady",), seeds=2, span=20.0, engines=("A100",), room=Room(16, 8), jobs=1)
FEW = tuple(
    candidate
    for candidate in candidates()
    if (candidate.family, candidate.setting) in {(STATIC, "1"), (STATIC, "4"), (OURS, "1.4 x"), ("no scheduler", "")}
)


@contextlib.contextmanager
def silent(label: str) -> Iterator[Callable[[float], None]]:
    yield lambda share: None


@pytest.fixture(scope="module")
def small() -> Study:
    return study(PLAN, silent, arms=FEW)


def test_every_arm_runs_beside_the_same_traffic_without_batch(small: Study) -> None:
    assert [result.candidate for result in small.arms] == list(FEW)
    assert len({result.alone for result in small.arms}) == 1
    assert all(len(result.alone) == PLAN.seeds for result in small.arms)
    assert [result.complete for result in small.arms if result.candidate.family != STATIC] == [True, True]
    assert all({run.calls for run in result.runs} <= {run.calls for run in result.alone} for result in small.arms)


@pytest.mark.slow
def test_the_same_plan_gives_the_same_study_with_more_processes(small: Study) -> None:
    assert study(replace(PLAN, jobs=2), silent, arms=FEW).arms == small.arms


def test_progress_is_heard_for_each_part() -> None:
    heard: list[str] = []

    @contextlib.contextmanager
    def watch(label: str) -> Iterator[Callable[[float], None]]:
        heard.append(label)
        yield lambda share: None

    study(replace(PLAN, seeds=1), watch, arms=FEW[-1:])
    study(PLAN, watch, arms=FEW[-1:])

    assert heard == ["without batch", "first instances", "without batch", "first instances", "further instances"]


@pytest.mark.slow
def test_a_plan_knows_how_many_runs_it_makes_at_most() -> None:
    heard: list[float] = []

    @contextlib.contextmanager
    def watch(label: str) -> Iterator[Callable[[float], None]]:
        yield heard.append

    plan = replace(PLAN, seeds=1, span=5.0, thin=True)
    study(plan, watch)

    assert plan.most_runs == len(heard)
    assert replace(plan, seeds=3, shapes=("steady", "cv3")).most_runs == 6 * plan.most_runs


def test_a_point_is_a_mean_of_ratios_on_the_same_instance() -> None:
    result = ArmResult(
        "A100", "steady", FEW[0], (figures(3.0, 100, 8.0), figures(2.0, 300, 2.0)), (ALONE, figures(4.0, 0, 4.0))
    )

    assert result.point == Point(p95=(3.0 + 0.5) / 2, goodput=200.0, p99=(4.0 + 0.5) / 2)


def test_an_arm_that_did_not_run_everywhere_is_on_no_curve() -> None:
    there = made_up_study(arm("fixed total", figures(1.5, 9000), instances=2))

    assert there.curve("A100", "steady", "fixed total").goodput_at(2.0) == 1000


def test_the_literal_law_with_batch_max_swept_has_the_given_one_too() -> None:
    swept = arm("literal law, batch_max too", figures(1.5, 5000))
    curves = made_up_study(swept, arm("literal law", figures(1.2, 4000))).curves("A100", "steady")

    assert [point.goodput for point in curves["literal law, batch_max too"].front] == [500, 4000, 5000]
    assert curves["literal law"].goodput_at(1.5) == 4000


def test_the_h100_runs_the_shapes_of_the_headline_only() -> None:
    assert Plan(shapes=("steady", "burst"), engines=("A100", "H100")).cells == (
        ("A100", "steady"), ("A100", "burst"), ("H100", "steady"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes, expected", [({}, True), ({"seeds": 3}, False), ({"span": 1799.0}, False), ({"thin": True}, False)]
)
def test_figures_to_quote_come_from_four_instances_of_half_an_hour(changes: dict[str, object], expected: bool) -> None:
    assert Plan(**{"seeds": 4, **changes}).quotable is expected  # type: ignore[arg-type]


def scouts(**points: tuple[float, float]) -> set[str]:
    arms = {Candidate("family", name, FEW[0].build): Point(*point) for name, point in points.items()}
    return {candidate.setting for candidate in scouted(arms)}


def test_who_is_near_the_best_of_the_family_runs_on() -> None:
    assert scouts(best=(1.2, 100), near=(1.2, 91), far=(1.2, 89)) == {"best", "near"}
    assert scouts(best=(1.2, 100), dear=(1.7, 95)) == {"best", "dear"}


def test_who_is_far_above_the_p95s_that_count_does_not_but_for_the_next_point_of_the_curve() -> None:
    assert scouts(low=(1.2, 100), next=(2.9, 200), high=(4.0, 300)) == {"low", "next"}
    assert scouts(low=(1.2, 100), near=(2.3, 200), high=(4.0, 300)) == {"low", "near"}


def test_a_family_that_reaches_none_of_them_goes_on_with_its_lowest() -> None:
    assert scouts(lowest=(3.0, 100), near=(3.8, 110), high=(9.0, 300)) == {"lowest", "near"}
