"""`python -m llm_traffic_scheduler.simulation` as a stranger runs it on traffic of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import llm_traffic_scheduler

pytestmark = pytest.mark.slow  # each test starts a Python of its own, with all that the command imports

SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
PROGRAM = "python -m llm_traffic_scheduler.simulation"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llm_traffic_scheduler.simulation", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONIOENCODING": "utf-8"},
        timeout=100,
        check=False,
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [f"{number * 0.5},{600 + number % 7 * 100},{20 + number % 5 * 10}" for number in range(120)]
    path = tmp_path / "monday.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def test_a_trace_a_policy_and_a_target_are_all_it_takes(trace: Path, tmp_path: Path) -> None:
    done = run("--trace", trace, "--policy", "adaptive", "--p95-target", "12", "--json", tmp_path / "out.json")

    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["policy"], content["target"]) == ("AdaptivePolicy(p95_target=12)", 12.0)
    names = [arm["name"] for arm in content["arms"]]
    assert names[:4] == ["no batch at all", "no scheduler", "semaphore of 128", "priority with fixed split (64)"]
    assert names[4].startswith("fixed split at our mean (")
    assert names[5:] == ["this scheduler"]
    assert all(name in done.stdout for name in names)
    assert "monday.csv at speed 1: 120 calls in 60 s" in done.stdout
    assert "batch limit 1 to 64  " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs the extra [simulation]")
def test_a_shape_with_a_fault_is_drawn_too_though_calls_never_end(tmp_path: Path) -> None:
    done = run(
        "--shape", "burst", "--rate", "1", "--span", "120", "--backend", "simple", "--fault", "failing:30-60",
        "--policy", "scavenger", "--plot", tmp_path / "out.png",
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "Fault from 30 s to 60 s" in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--trace", "missing.csv", "--policy", "adaptive"], "missing.csv: cannot be read: No such file or directory"),
        (["--trace", "{trace}", "--batch-max", "128"], "batch_max_concurrency must be below max_concurrency (128)"),
        (["--trace", "{trace}", "--batch-min", "65"], "batch_min_concurrency"),
        (["--shape", "sparse", "--span", "5"], "no call comes in this span: raise the rate, or span"),
        (["--shape", "steady", "--rate", "1e9"], "about 600,000,000,000 calls are too many"),
        (["--shape", "steady", "--fault", "hung:9-8"], "argument --fault: times must be two numbers"),
        (["--shape", "steady", "--span", "60", "--fault", "hung:300-360"], "the simulated time ends at 60 s"),
        (["--trace", "{trace}", "--fault", "hung:300-360"], "the simulated time ends at 59.5 s"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(trace: Path, arguments: list[str], message: str) -> None:
    done = run(*(argument.format(trace=trace) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{PROGRAM}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_trace_too_long_for_the_backend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,20000,1\n")

    done = run("--trace", path, "--backend", "cpu")

    assert done.returncode == 2
    assert "call 1 of the traffic: 20001 tokens never fit the simulated backend (at most 15999 tokens)" in done.stderr


def test_a_trace_of_one_call_has_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "lone.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,200,1\n")

    done = run("--trace", path, "--policy", "adaptive")

    assert (done.returncode, done.stderr) == (0, "")
    assert "1 calls in 0 s" in done.stdout


def test_help_is_for_strangers() -> None:
    done = run("--help")

    assert done.returncode == 0
    assert f"usage: {PROGRAM} [--trace FILE | --shape NAME] [options]" in done.stdout
    assert f"{PROGRAM} --trace monday.csv --policy adaptive --p95-target 12" in done.stdout
