"""The bundled simulation as a stranger runs it: a script, its output, its files, its exit status."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler import simulation

SCRIPT = Path(__file__).parents[2] / "examples" / "simulate.py"
SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
TRACE_ROWS = [f"{number * 0.5},{600 + number % 7 * 100},{20 + number % 5 * 10}" for number in range(120)]


def simulate(
    *arguments: str | Path, python: Sequence[str] = (str(SCRIPT),), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONIOENCODING": "utf-8", **(env or {})},
        timeout=100,
        check=False,
    )


def without(module: str) -> Sequence[str]:
    """Arguments for Python that run the script as if `module` were not installed."""
    run = f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv[0] = {str(SCRIPT)!r}"
    return "-c", f"{run}; runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "monday.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *TRACE_ROWS]) + "\n")
    return path


def test_without_arguments_both_scenarios_pass_in_real_time_within_a_minute(tmp_path: Path) -> None:
    start = time.monotonic()

    done = simulate("--json", tmp_path / "out.json")

    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 60
    assert done.stdout.count("\npass  (") == 3
    for title in ("As first told", "The same, sooner", "At the peak", "Verdict on this scheduler"):
        assert f"\n{title}\n{'=' * len(title)}\n" in done.stdout
    assert "All arms are equal for interactive calls" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["passed"] is True
    assert [len(scenario["arms"]) for scenario in content["scenarios"]] == [4, 4, 4]
    peak = content["scenarios"][2]["arms"][-1]
    assert peak["interactive"]["p95"] <= 0.5
    assert min(peak["timeline"]["batch_limit"]) <= 3


def test_a_replay_reports_every_arm_and_writes_json(trace: Path, tmp_path: Path) -> None:
    batch = tmp_path / "archive.csv"
    batch.write_text("num_prefill_tokens,num_decode_tokens\n3000,100\n2000,150\n")

    done = simulate("--trace", trace, "--batch", batch, "--json", tmp_path / "out.json")

    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads((tmp_path / "out.json").read_text())
    names = [arm["name"] for arm in content["arms"]]
    assert names[:4] == ["no batch at all", "no scheduler", "semaphore of 128", "priority with fixed split (64)"]
    assert names[5] == "this scheduler"
    assert all(name in done.stdout for name in names)
    assert "monday.csv at speed 1: 120 calls in 60 s" in done.stdout
    assert "lengths of archive.csv" in done.stdout
    ours = content["arms"][5]
    assert ours["interactive"]["count"] == content["interactive_calls"] == 120
    assert ours["peak_at_server"] <= 128
    assert content["setup"]["interactive_p95_threshold"] == pytest.approx(
        2.5 * content["arms"][0]["interactive"]["p95"]
    )
    assert len(set(map(len, ours["timeline"].values()))) == 1


def test_until_counts_simulated_time_after_speed(trace: Path) -> None:
    done = simulate("--trace", trace, "--speed", "0.5", "--until", "10")

    assert "monday.csv at speed 0.5: 11 calls in 10 s" in done.stdout


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs the extra [simulation]")
@pytest.mark.slow
def test_plot_writes_a_picture(trace: Path, tmp_path: Path) -> None:
    done = simulate("--trace", trace, "--until", "20", "--plot", tmp_path / "out.png")

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_names_the_extra_before_anything_runs(trace: Path, tmp_path: Path) -> None:
    done = simulate("--trace", trace, "--plot", tmp_path / "out.png", python=without("matplotlib"))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "simulate.py: --plot needs matplotlib: pip install 'llm-traffic-scheduler[simulation]'\n"


@pytest.mark.slow
def test_a_replay_needs_neither_matplotlib_nor_tqdm(trace: Path) -> None:
    for module in ("matplotlib", "tqdm"):
        done = simulate("--trace", trace, "--until", "5", python=without(module))

        assert (done.returncode, done.stderr) == (0, "")


def test_an_input_is_never_overwritten(trace: Path) -> None:
    before = trace.read_text()

    assert_refused(simulate("--trace", trace, "--json", trace), "is an input and would be overwritten")
    assert trace.read_text() == before


@pytest.mark.slow
def test_a_terminal_without_block_characters_gets_ascii(trace: Path) -> None:
    done = simulate("--trace", trace, "--until", "5", env={"PYTHONIOENCODING": "ascii"})

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "batch limit 1 to 64" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("python, said", [((str(SCRIPT),), "replaying"), (without("tqdm"), "pip install")])
@pytest.mark.slow
def test_a_terminal_sees_progress_or_what_to_install(trace: Path, python: Sequence[str], said: str) -> None:
    if said == "replaying":
        pytest.importorskip("tqdm")
    import termios

    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}

    with subprocess.Popen(
        [sys.executable, *python, "--trace", str(trace)], stdout=subprocess.DEVNULL, stderr=theirs, env=env
    ) as running:
        os.close(theirs)
        heard = b""
        # The terminal ends with an error (Linux) or with nothing (others) once the script has closed it.
        while chunk := _read(ours):
            heard += chunk
    os.close(ours)

    assert running.returncode == 0
    assert said in heard.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize(
    "content, fragment",
    [
        ("", "row 1: empty file"),
        ("when,tokens\n1,2\n", "row 1: unknown columns when, tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n", "row 1: no calls below the header"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,-1\n", "row 2: output_tokens must be a whole number"),
        ("arrival_s,prompt_tokens,output_tokens\n0,NaN,1\n", "row 2: prompt_tokens must be a whole number"),
        ("arrival_s,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n", "row 3: arrivals must not go back in time"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,999999\n", "call 1 of the traffic: 1000000 tokens never fit"),
    ],
)
@pytest.mark.slow
def test_a_bad_trace_is_one_line_and_status_2(tmp_path: Path, content: str, fragment: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)

    assert_refused(simulate("--trace", path), fragment)


@pytest.mark.parametrize(
    "arguments, fragment",
    [
        (["--trace", "missing.csv"], "missing.csv: cannot be read: No such file or directory"),
        (["--trace", "{trace}", "--batch", "missing.csv"], "missing.csv: cannot be read"),
        (["--trace", "{trace}", "--speed", "0"], "argument --speed: must be a finite number above 0, got '0'"),
        (["--trace", "{trace}", "--speed", "-1"], "argument --speed: must be a finite number above 0, got '-1'"),
        (["--trace", "{trace}", "--speed", "nan"], "argument --speed: must be a finite number above 0, got 'nan'"),
        (["--trace", "{trace}", "--speed", "fast"], "argument --speed: must be a finite number above 0, got 'fast'"),
        (["--trace", "{trace}", "--until", "inf"], "argument --until: must be a finite number above 0, got 'inf'"),
        (["--trace", "{trace}", "--json", "no/such/out.json"], "argument --json: cannot write"),
        (["--trace", "{trace}", "--plot", "out.txt"], "argument --plot: must end in .png, .svg, .pdf, got 'out.txt'"),
        (["--speed", "0.5"], "--speed goes with --trace FILE"),
        (["--batch", "{trace}"], "--batch goes with --trace FILE"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
@pytest.mark.slow
def test_bad_arguments_are_one_line_and_status_2(trace: Path, arguments: Sequence[str], fragment: str) -> None:
    assert_refused(simulate(*(argument.format(trace=trace) for argument in arguments)), fragment)


def assert_refused(done: subprocess.CompletedProcess[str], fragment: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert fragment in done.stderr
    assert done.stderr.startswith("simulate.py: ")
    assert done.stderr.count("\n") == 1


def test_a_failed_criterion_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load_script()
    monkeypatch.setattr(simulation, "SCENARIOS", simulation.SCENARIOS[:1])
    failing = [simulation.Criterion("claim", False, "evidence")]
    monkeypatch.setattr(simulation, "judge", lambda runs: failing)

    assert main.main([]) == 1
    assert "FAIL  (1) claim: evidence" in capsys.readouterr().out


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("simulate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
