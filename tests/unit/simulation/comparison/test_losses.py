"""Where others are ahead of ours: all of it is said."""

from __future__ import annotations

import math

from llm_traffic_scheduler.simulation.comparison.families import STATIC
from llm_traffic_scheduler.simulation.comparison.losses import Loss, losses
from tests.unit.simulation.comparison.made_up import arm, curve_of, figures, made_up_study


def test_nobody_ahead_is_no_loss() -> None:
    assert losses(made_up_study()) == ()


def test_a_family_that_is_ahead_somewhere_is_named_with_where_and_by_how_much() -> None:
    study = made_up_study(arm(STATIC, figures(1.5, 1800), shape="cv3"))

    [loss] = losses(study)

    # Ours has 1500 at 1.5 x; the straight lines to 1.5 x from (1, 500) and on from there at 1800.
    assert (loss.engine, loss.shape, loss.family, loss.p95s) == ("A100", "cv3", STATIC, (1.35, 1.75))
    assert round(loss.most, 3) == 1.2


def test_a_p95_that_ours_does_not_reach_is_a_loss_of_its_own() -> None:
    study = made_up_study(shapes=("steady",), kept=1.3)

    first, *others = losses(study)

    assert first == Loss("A100", "steady", "static split", (1.15, 1.25), math.inf)
    assert {loss.most for loss in others} == {math.inf}


def test_half_a_per_cent_is_neither_a_win_nor_a_loss() -> None:
    assert losses(made_up_study(*curve_of(STATIC, 1004, 2008))) == ()
    assert len(losses(made_up_study(*curve_of(STATIC, 1006, 2012)))) == 1
