"""What can be typed, what it means together, and what is refused in one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_traffic_scheduler.simulation.choices import BACKENDS, FAULTS, POLICIES, SHAPES
from llm_traffic_scheduler.simulation.options import parse


def parsed(*arguments: str) -> argparse.Namespace:
    return parse(arguments, "program")[1]


@pytest.mark.parametrize(
    "arguments, what_if",
    [
        ([], False),
        (["--trace", "monday.csv"], False),
        (["--trace", "monday.csv", "--speed", "0.5", "--until", "10", "--batch", "b.csv"], False),
        (["--trace", "monday.csv", "--policy", "pressure"], True),
        (["--trace", "monday.csv", "--p95-target", "12"], True),
        (["--trace", "monday.csv", "--backend", "h100"], True),
        (["--trace", "monday.csv", "--fault", "hung"], True),
        (["--trace", "monday.csv", "--batch-min", "2"], True),
        (["--shape", "steady"], True),
    ],
)
def test_a_shape_or_anything_on_policies_asks_what_if(arguments: Sequence[str], what_if: bool) -> None:
    assert parsed(*arguments).what_if is what_if


@pytest.mark.parametrize(
    "text, fault",
    [
        ("hung", ("hung", None, None)),
        ("429:10-20.5", ("429", 10.0, 20.5)),
        ("retry-after:0-1", ("retry-after", 0.0, 1.0)),
    ],
)
def test_a_fault_may_say_when(text: str, fault: tuple[str, float | None, float | None]) -> None:
    assert parsed("--shape", "steady", "--fault", text).fault == fault


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--trace", "a.csv", "--shape", "steady"], "--trace and --shape do not go together: one traffic at a time"),
        (["--shape", "steady", "--speed", "2"], "--speed goes with --trace FILE"),
        (["--shape", "steady", "--until", "2"], "--until goes with --trace FILE"),
        (["--trace", "a.csv", "--rate", "2"], "--rate goes with --shape NAME"),
        (["--trace", "a.csv", "--span", "2"], "--span goes with --shape NAME"),
        (["--trace", "a.csv", "--seed", "2"], "--seed goes with --shape NAME or --backend hosted"),
        (["--shape", "steady", "--cv", "2"], "--cv goes with --shape gamma"),
        (["--policy", "adaptive"], "--policy goes with --trace FILE or --shape NAME"),
        (["--p95-target", "2"], "--p95-target goes with --trace FILE or --shape NAME"),
        (["--shape", "steady", "--policy", "total"], "--policy total needs --limit N"),
        (["--shape", "steady", "--policy", "fixed"], "--policy fixed needs --limit N"),
        (["--shape", "steady", "--limit", "3"], "--limit goes with --policy fixed or total, not adaptive"),
        (
            ["--shape", "steady", "--p95-threshold", "3"],
            "--p95-threshold goes with --policy pressure, not adaptive",
        ),
        (
            ["--shape", "steady", "--policy", "aimd", "--rps-threshold", "3"],
            "--rps-threshold goes with --policy pressure, not aimd",
        ),
        (["--shape", "steady", "--seed", "-1"], "argument --seed: must be a whole number, at least 0, got '-1'"),
        (["--shape", "steady", "--batch-max", "1.5"], "argument --batch-max: must be a whole number, at least 1"),
        (
            ["--shape", "steady", "--max-concurrency", "1"],
            "argument --max-concurrency: must be a whole number, at least 2",
        ),
        (["--shape", "steady", "--fault", "fire"], "argument --fault: must be one of hung, timeouts, failing, 429"),
        (
            ["--shape", "steady", "--fault", "hung:9"],
            "argument --fault: times must be two numbers such as hung:300-360",
        ),
        (["--shape", "steady", "--fault", "hung:9-8"], "argument --fault: times must be two numbers"),
        (["--shape", "round"], "argument --shape: invalid choice: 'round'"),
        (["--shape", "steady", "--policy", "luck"], "argument --policy: invalid choice: 'luck'"),
        (["--shape", "steady", "--backend", "quantum"], "argument --backend: invalid choice: 'quantum'"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_status_2(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed(*arguments)

    said = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said.startswith(f"program: {message}")
    assert said.count("\n") == 1


def test_a_hosted_backend_takes_a_seed_with_a_trace() -> None:
    assert parsed("--trace", "a.csv", "--backend", "hosted", "--seed", "3").seed == 3


def test_help_names_every_choice_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed("--help")

    said = capsys.readouterr().out
    assert exit_.value.code == 0
    for name in (*SHAPES, *POLICIES, *BACKENDS, *FAULTS):
        assert f"\n  {name:<14}" in said
    assert "program --trace monday.csv --policy adaptive --p95-target 12" in said


def test_help_says_which_options_are_a_replay_and_which_a_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")

    said = " ".join(capsys.readouterr().out.split())
    assert "(adaptive)" not in said
    assert "names below; left out: adaptive in a what-if" in said
    replay = ("--speed", "0.5", "--until", "9", "--batch", "b.csv", "--json", "j.json", "--plot", "p.png")
    assert not parsed("--trace", "monday.csv", *replay).what_if
    assert all(
        option in said.partition("a replay of the pressure law")[0] for option in replay if option.startswith("--")
    )


def test_outputs_are_checked_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--json", str(tmp_path))

    assert "argument --json: cannot write" in capsys.readouterr().err
