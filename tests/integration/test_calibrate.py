"""examples/calibrate.py as a stranger runs it, against a real server on the loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import llm_traffic_scheduler
from tests.openai_server import openai_server

SCRIPT = Path(__file__).parents[2] / "examples" / "calibrate.py"
SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

needs_httpx = pytest.mark.skipif(importlib.util.find_spec("httpx") is None, reason="needs the extra [httpx]")


def calibrate(
    url: str, *arguments: str | Path, python: Sequence[str] = (str(SCRIPT),), **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "--url", url, "--model", "tiny", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", **env},
        timeout=60,
        check=False,
    )


def without(module: str) -> Sequence[str]:
    """Arguments for Python that run the script as if `module` were not installed."""
    run = f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv[0] = {str(SCRIPT)!r}"
    return "-c", f"{run}; runpy.run_path(sys.argv[0], run_name='__main__')"


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("calibrate.py: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


@needs_httpx
def test_the_knee_of_eight_slots_is_found_and_the_curve_written_and_drawn(tmp_path: Path) -> None:
    files: list[str | Path] = ["--json", tmp_path / "out.json"]
    files += ["--plot", tmp_path / "curve.png"] if HAS_MATPLOTLIB else []
    with openai_server(slots=8, seconds=0.1) as server:
        done = calibrate(server.url, "--rates", "20,40,120", "--seconds", "1", "--max-tokens", "5", *files)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{server.url}: this will send at most 181 calls\n")
    content = json.loads((tmp_path / "out.json").read_text())
    assert 20 <= content["interactive_rps_threshold"] <= 80  # eight slots of 0.1 s bear 80 a second
    assert 3 <= content["max_concurrency"] <= 16
    assert content["interactive_p95_threshold"] >= 0.2
    assert server.seen == content["calls"] == 1 + sum(point["calls"] for point in content["points"])
    assert server.requests[0]["max_tokens"] == 5
    assert all(f"{name}=" in done.stdout for name in ("max_concurrency", "interactive_rps_threshold"))
    if HAS_MATPLOTLIB:
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@needs_httpx
def test_a_throttling_server_is_left_in_peace_and_its_retry_after_is_told() -> None:
    with openai_server(seconds=0.01, throttle_after=31) as server:
        done = calibrate(server.url, "--rates", "60,120", "--seconds", "0.5")

    assert done.returncode == 0, done.stdout
    assert "the backend throttled at 120 calls/s" in done.stdout
    assert "retry after 7 s" in done.stdout
    assert "interactive_rps_threshold=60.0" in done.stdout
    assert server.seen < 31 + 20


@needs_httpx
def test_a_server_that_throttles_the_first_call_gets_no_second() -> None:
    with openai_server(throttle_after=0) as server:
        done = calibrate(server.url, "--seconds", "5")

    assert (done.returncode, server.seen) == (1, 1)
    assert "nothing else was sent" in done.stdout


@needs_httpx
def test_the_key_goes_from_the_environment_to_the_server_and_nowhere_else() -> None:
    with openai_server(key="sesame", seconds=0.01) as server:
        refused = calibrate(server.url, "--seconds", "5")
        done = calibrate(server.url, "--api-key-env", "MY_KEY", "--rates", "40", "--seconds", "0.5", MY_KEY="sesame")
        unset = calibrate(server.url, "--api-key-env", "NO_SUCH_KEY")

    assert_refused(refused, "answered 401", "--api-key-env")
    assert done.returncode == 1
    assert "no bend seen up to 40 calls/s" in done.stdout
    assert "sesame" not in done.stdout + done.stderr
    assert_refused(unset, "NO_SUCH_KEY", "not set")


@needs_httpx
def test_what_is_no_openai_server_is_one_line_and_status_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert_refused(calibrate(f"http://127.0.0.1:{taken.getsockname()[1]}/v1"), "cannot be reached")
    assert_refused(calibrate("127.0.0.1/v1"), "cannot be reached", "http")
    with openai_server() as server:
        assert_refused(calibrate(server.url.removesuffix("/v1")), "answered 404", "/v1")
    with openai_server(body=b"<html>welcome</html>") as server:
        assert_refused(calibrate(server.url), "did not answer in JSON")
    with openai_server(body=b'{"detail": "no model"}') as server:
        assert_refused(calibrate(server.url), "no chat completion", "no model")


@needs_httpx
def test_a_budget_that_does_not_suffice_is_told_before_anything_is_sent() -> None:
    with openai_server() as server:
        done = calibrate(server.url, "--rates", "1,2", "--seconds", "20", "--max-calls", "50")

    assert_refused(done, "max_calls must be at least 61", "got 50")
    assert (done.stdout, server.seen) == ("", 0)


@pytest.mark.parametrize("module, extra", [("httpx", "httpx"), ("matplotlib", "simulation")])
def test_what_is_missing_is_named_with_the_command_that_installs_it(module: str, extra: str, tmp_path: Path) -> None:
    if module == "matplotlib" and importlib.util.find_spec("httpx") is None:
        pytest.skip("needs the extra [httpx]")

    done = calibrate("http://127.0.0.1:1/v1", "--plot", tmp_path / "curve.png", python=without(module))

    assert_refused(done, f"needs {module}: pip install 'llm-traffic-scheduler[{extra}]'")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--rates", "1,two"], "must be a finite number above 0, got 'two'"),
        (["--rates", "1,nan"], "must be a finite number above 0, got 'nan'"),
        (["--max-calls", "0"], "must be a whole number of at least 1, got '0'"),
        (["--plot", "curve.txt"], "must end in .png, .svg, .pdf"),
        (["--json", "no/such/directory/out.json"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: Sequence[str], said: str) -> None:
    assert_refused(calibrate("http://127.0.0.1:1/v1", *arguments), said)
