"""What is said of a comparison, worked out from its figures."""

from __future__ import annotations

from dataclasses import replace

from llm_traffic_scheduler.simulation.comparison import study_text
from llm_traffic_scheduler.simulation.comparison.families import STATIC
from llm_traffic_scheduler.simulation.comparison.reach import OPPONENTS, reach
from llm_traffic_scheduler.simulation.comparison.study import Study
from tests.unit.simulation.comparison.made_up import SHAPES, curve_of, made_up_study


def text_of(study: Study) -> str:
    return " ".join(study_text(study, reach(study)).split())


def test_it_says_what_the_figures_are_good_for_and_that_a_short_run_is_one() -> None:
    text = text_of(made_up_study())

    assert "Simulated: good for ranking policies, not for absolute GPU figures." in text
    assert "Short form: 1 instance of 10 minutes, every second setting." in text


def test_a_run_that_may_be_quoted_is_not_called_short() -> None:
    study = made_up_study()
    plan = type(study.plan)(shapes=SHAPES, seeds=4, engines=("A100",))

    text = text_of(Study(plan, study.arms, study.cold_start))

    assert "Short form" not in text
    assert "4 instances of 30 minutes of each shape" in text


def test_a_run_of_some_arms_names_those_that_it_leaves_out_for_they_could_be_ahead() -> None:
    study = made_up_study()
    plan = replace(study.plan, families=tuple(family for opponent in OPPONENTS for family in opponent.families))

    text = text_of(Study(plan, study.arms, study.cold_start))

    assert "Left out: no scheduler, semaphore, priority only, batch_min, AIMD, scavenger." in text
    assert "Left out" not in text_of(study)


def test_each_shape_has_a_table_with_every_family() -> None:
    text = text_of(made_up_study())

    assert "static split 575 650 750 900 1.00 x" in text
    assert "adaptive 1,150 1,300 1,500 1,800 1.00 x" in text
    assert "no scheduler 9,000 at 12.00 x the P95, 1.00 x the P99" in text


def test_the_headline_has_goodput_and_p99_for_each_shape() -> None:
    assert "best static split 2.00 (1.00) 2.00 (1.00) 2.00 (1.00)" in text_of(made_up_study())


def test_every_line_to_reach_is_there_with_its_bound_and_its_mark() -> None:
    study = made_up_study()
    text = text_of(study)

    for line in reach(study):
        mark = {True: "pass", False: "MISS", None: "-"}[line.passed]
        assert f"{mark} {line.claim}: {line.bound}; measured {line.measured}" in text


def test_how_each_law_steers_is_shown_at_its_setting_nearest_to_one_p95() -> None:
    text = text_of(made_up_study())

    assert "static split, 1 x 1.00 x 1.0 2.0 50.0 0" in text
    assert "literal law, 1 x 1.00 x 1.0 2.0 50.0 0 literal law, 1 x 1.00 x" in text


def test_losses_are_said_and_so_is_that_there_are_none() -> None:
    ahead = curve_of(STATIC, 1100, 2200, shape="chat")

    assert "Nowhere, in these runs." in text_of(made_up_study())
    assert "* static split: chat on A100 at 1.15 to 1.8 x (by up to 10 %)" in text_of(made_up_study(*ahead))


def test_lines_fit_a_terminal_of_a_hundred_columns() -> None:
    study = made_up_study(shapes=(*SHAPES, "square", "burst", "sparse", "diurnal", "agents"))

    assert max(map(len, study_text(study, reach(study)).splitlines())) <= 100
