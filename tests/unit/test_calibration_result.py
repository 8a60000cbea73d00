"""A result is a table and a recommendation for people, and arguments for the constructor or an error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_traffic_scheduler import Calibration, CalibrationPoint, ConfigError

POINTS = (
    CalibrationPoint(rate=0.5, seconds=40.0, calls=20, latencies=(0.25,) * 20, mean_unfinished=0.125, max_unfinished=2),
    CalibrationPoint(
        rate=10.0, seconds=2.0, calls=20, failures=10, latencies=(1.5,) * 10, mean_unfinished=7.5, max_unfinished=12
    ),
)
WHOLE = Calibration(
    interactive_rps_threshold=100 / 3,
    interactive_p95_threshold=0.5,
    max_concurrency=8,
    points=POINTS,
    reasons=("because of this", "and because of that, " * 10),
    calls=41,
)
PART = Calibration(
    interactive_rps_threshold=None,
    interactive_p95_threshold=0.5,
    max_concurrency=None,
    points=(),
    reasons=("no bend seen", "add rates"),
    calls=21,
)


def test_a_whole_result_is_the_arguments_of_a_scheduler() -> None:
    assert WHOLE.complete
    assert WHOLE.arguments() == {
        "max_concurrency": 8,
        "interactive_rps_threshold": 100 / 3,
        "interactive_p95_threshold": 0.5,
    }


def test_a_result_with_a_gap_is_no_arguments_and_says_which_and_why() -> None:
    said = "found no max_concurrency, interactive_rps_threshold: no bend seen; add rates"

    assert not PART.complete
    with pytest.raises(ConfigError, match=said):
        PART.arguments()


@pytest.mark.parametrize("name", ["max_concurrency", "interactive_rps_threshold", "interactive_p95_threshold"])
def test_each_missing_value_makes_it_incomplete(name: str) -> None:
    part = replace(WHOLE, **{name: None})  # type: ignore[arg-type]

    assert not part.complete
    with pytest.raises(ConfigError, match=f"found no {name}: because of this"):
        part.arguments()


def test_text_shows_the_curve_the_call_and_the_reasons() -> None:
    text = WHOLE.text()

    assert text.splitlines()[:10] == [
        "calls/s  achieved  calls  failed     P50     P95     P99  mean unfinished  most",
        "    0.5       0.5     20       0  0.25 s  0.25 s  0.25 s              0.1     2",
        "     10        10     20      10   1.5 s       -       -              7.5    12",
        "",
        "TrafficScheduler(",
        "    max_concurrency=8,",
        "    interactive_rps_threshold=33.3,",
        "    interactive_p95_threshold=0.5,",
        ")",
        "",
    ]
    assert "- because of this\n- and because" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "not found" not in text


def test_text_of_a_result_with_gaps_names_them() -> None:
    assert PART.text() == (
        "found: interactive_p95_threshold=0.5\nnot found: max_concurrency, interactive_rps_threshold\n\n"
        "- no bend seen\n- add rates"
    )
