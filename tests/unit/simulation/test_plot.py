"""A picture shows what the table says: calls that failed or never ended are in it, and nothing is made up between."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm_traffic_scheduler import PressurePolicy
from llm_traffic_scheduler.simulation import (
    Answer,
    CallLength,
    FailingFast,
    Question,
    SimpleServer,
    steady,
    what_if,
)
from llm_traffic_scheduler.simulation.recording import CallRecord

pytestmark = pytest.mark.slow  # each draws a picture

pytest.importorskip("matplotlib")

FAULT = (30.0, 60.0)


def answered(share: tuple[float, float] | None = FAULT) -> Answer:
    """Every call of the fault's time fails: a quarter of all."""

    def failing() -> FailingFast:
        return FailingFast(SimpleServer(), start=FAULT[0], until=FAULT[1])

    question = Question(
        interactive=steady(rate=1.0, span=120.0, seed=1),
        span=120.0,
        batch=[CallLength(1500, 150)],
        policy=lambda p95: PressurePolicy(p95_threshold=2.5 * p95),
        target=lambda p95: 2.5 * p95,
        backend=failing if share else SimpleServer,
        healthy=SimpleServer,
        fault=share,
        max_concurrency=48,
        batch_max=24,
        backlog=40,
    )
    return what_if(question)


def drawn(answer: Answer, path: Path) -> str:
    from llm_traffic_scheduler.simulation.plot import draw_answer

    draw_answer(answer, path / "out.svg")
    return (path / "out.svg").read_text()


def test_an_arm_whose_p95_is_infinite_is_named_beside_the_points_with_its_tokens(tmp_path: Path) -> None:
    answer = answered()

    text = drawn(answer, tmp_path)

    assert math.isinf(answer.ours.interactive.p95)
    assert "<!-- P95 never: no scheduler" in text
    assert f"({answer.ours.goodput:,.0f} tokens/s)" in text
    assert text.count("<!-- this scheduler -->") == 1  # the legend's, no point's
    assert text.count("<!-- no batch at all -->") == 2


def test_an_infinite_p95_has_a_line_of_its_own_and_a_fault_is_marked(tmp_path: Path) -> None:
    text = drawn(answered(), tmp_path)

    assert text.count("<!-- never -->") == 1
    assert text.count("<!-- fault -->") == 1


def test_where_all_goes_well_every_point_has_its_name_and_nothing_is_never(tmp_path: Path) -> None:
    answer = answered(None)

    text = drawn(answer, tmp_path)

    assert "never" not in text.lower()
    assert "<!-- fault -->" not in text
    assert all(text.count(f"<!-- {name} -->") == 2 for name in ("no batch at all", *answer.arms))


def test_a_run_in_which_nothing_ended_is_drawn(tmp_path: Path) -> None:
    answer = answered()
    lost = replace(answer.alone, latencies=(math.inf,) * len(answer.alone.latencies))

    text = drawn(replace(answer, alone=lost, arms={**answer.arms, "no scheduler": lost}), tmp_path)

    assert "<!-- P95 never: no batch at all" in text


def test_a_long_title_has_short_numbers_and_fits(tmp_path: Path) -> None:
    answer = replace(
        answered(), policy="PressurePolicy(rps_threshold=None, p95_threshold=20.907311361251573)" + "x" * 30
    )

    text = drawn(answer, tmp_path)

    assert "p95_threshold=20.9)" in text
    assert max(map(len, re.findall(r"<!-- (.*) -->", text))) <= 132


def test_the_share_that_takes_longer_stays_above_zero_where_calls_never_end() -> None:
    from llm_traffic_scheduler.simulation.plot import taking_longer

    assert taking_longer([1.0, 2.0, math.inf, math.inf], 9.0) == ([1.0, 2.0, 9.0], [100.0, 75.0, 50.0])
    assert taking_longer([1.0, 2.0], 9.0) == ([1.0, 2.0, 2.0], [100.0, 50.0, 0.0])
    assert taking_longer([math.inf], 9.0) == ([9.0], [100.0])


def test_p95_over_time_is_infinite_where_calls_never_end_and_has_gaps_where_none_came() -> None:
    from llm_traffic_scheduler.simulation.plot import p95_over_time

    calls = [CallRecord("interactive", 0.5, 2.5), CallRecord("interactive", 10.5, math.inf)]

    curve = p95_over_time(calls, 120.0)

    assert (curve[0], curve[10]) == (2.0, math.inf)
    assert sum(map(math.isnan, curve)) == 118
