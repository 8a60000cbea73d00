"""The comparison for programs."""

from __future__ import annotations

import json
import math

from llm_traffic_scheduler.simulation.comparison import reach, study_json
from tests.unit.simulation.comparison.made_up import arm, figures, made_up_study


def test_everything_is_there_and_nothing_that_json_does_not_know() -> None:
    study = made_up_study(arm("AIMD", figures(math.inf, 100.0), shape="chat"), cold_start=math.inf)

    content = json.loads(json.dumps(study_json(study, reach(study)), allow_nan=False))

    assert content["note"] == "Simulated: good for ranking policies, not for absolute GPU figures."
    assert content["plan"] | {"instances": 1, "span": 600.0, "batch_max": 64} == content["plan"]
    assert content["plan"]["left_out"] == []
    assert len(content["reach"]) == len(reach(study))
    assert [ratio["shape"] for ratio in content["ratios"]] == ["steady", "cv3", "chat"]
    assert len(content["arms"]) == len(study.arms)
    assert content["cold_start"] is None
    assert content["arms"][-1]["runs"][0]["p95"] is None


def test_ratios_say_where_they_were_taken() -> None:
    ratio = study_json(made_up_study(), ())["ratios"]
    assert isinstance(ratio, list)
    split = ratio[0]["adaptive"]["the best static split"]

    assert round(split["goodput_at_equal_p95"], 6) == 2.0
    assert (split["at"][0], split["at"][-1], len(split["goodput"])) == (1.15, 1.8, 14)
