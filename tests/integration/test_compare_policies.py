"""The comparison of control laws as a stranger runs it: a script, its output, its files, its exit status."""

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

SCRIPT = Path(__file__).parents[2] / "examples" / "compare_policies.py"
SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def compare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONIOENCODING": "utf-8"},
        timeout=300,
        check=False,
    )


def test_a_short_run_prints_every_line_to_reach_and_writes_its_files(tmp_path: Path) -> None:
    picture: list[str | Path] = ["--plot", tmp_path / "pareto.png"] if HAS_MATPLOTLIB else []

    done = compare(
        "--shapes", "sparse,chat", "--minutes", "1", "--traces", tmp_path, "--json", tmp_path / "out.json", *picture
    )

    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("74 runs of 1 simulated minutes: less than a minute of one core")
    assert f"left out: chat, for want of AzureLLMInferenceTrace_conv.csv in {tmp_path}" in done.stdout
    text = " ".join(done.stdout.split())
    assert "good for ranking policies, not for absolute GPU figures" in text
    assert "Short form: 1 instance of 1 minute, every second setting" in text
    content = json.loads((tmp_path / "out.json").read_text())
    assert {arm["shape"] for arm in content["arms"]} == {"sparse"}
    assert len(content["reach"]) == text.count("; measured ") == 15
    assert not HAS_MATPLOTLIB or (tmp_path / "pareto.png").stat().st_size > 10_000


def test_help_names_every_shape_and_option_and_what_figures_are_good_for() -> None:
    done = compare("--help")

    assert done.returncode == 0
    for word in ["steady", "lmsys", "--full", "--arms", "--seeds", "--jobs", "--traces"]:
        assert word in done.stdout
    assert "not for absolute GPU figures" in done.stdout


@pytest.mark.parametrize(
    "arms, families",
    [
        ("headline", {"static split", "fixed total", "literal law", "literal law, batch_max too", "adaptive"}),
        ("ours", {"adaptive"}),
    ],
)
def test_fewer_arms_are_run_where_fewer_are_asked_for(arms: str, families: set[str], tmp_path: Path) -> None:
    done = compare("--shapes", "sparse", "--minutes", "1", "--arms", arms, "--json", tmp_path / "out.json")

    assert done.returncode == 0
    assert "Left out: no scheduler, semaphore, priority only, batch_min, " in done.stdout
    assert {arm["family"] for arm in json.loads((tmp_path / "out.json").read_text())["arms"]} == families


def test_a_trace_that_is_none_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text("when,what\n")

    done = compare("--shapes", "chat", "--minutes", "1", "--jobs", "2", "--traces", tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    announced, refused = done.stderr.splitlines()
    assert "runs of 1 simulated minutes" in announced
    assert "AzureLLMInferenceTrace_conv.csv, row 1: unknown columns" in refused


def test_who_reads_no_further_ends_the_comparison_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--shapes", "chat", "--traces", str(SCRIPT.parent)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        timeout=300,
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--shapes", "steady,round"), "unknown: round; there are steady, cv3, chat"),
        (("--seeds", "0"), "must be a whole number, at least 1, got '0'"),
        (("--minutes", "nan"), "must be a number of minutes from 1 to 1440, got 'nan'"),
        (("--traces", "nowhere"), "nowhere is not a directory"),
        (("--batch-max", "128"), "--batch-max (128) must be below --max-concurrency (128)"),
        (("--engines", "H100", "--shapes", "burst"), "nothing to run: no shape is left"),
        (("--plot", "pareto.txt"), "must end in .png, .svg, .pdf"),
        (("--json", "no/such/dir.json"), "cannot write 'no/such/dir.json'"),
    ],
)
def test_input_that_cannot_be_used_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = compare(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
