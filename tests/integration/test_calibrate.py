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

pytestmark = pytest.mark.slow  # each test starts a Python of its own, with all that the command imports

SCRIPT = Path(__file__).parents[2] / "examples" / "calibrate.py"
SOURCES = Path(llm_traffic_scheduler.__file__).parents[1]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None

needs_httpx = pytest.mark.skipif(importlib.util.find_spec("httpx") is None, reason="needs the extra [httpx]")


def calibrate(url: str, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--url", url, "--model", "tiny", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONIOENCODING": "utf-8", "NO_PROXY": "*", **env},
        timeout=60,
        check=False,
    )


def refusal(capsys: pytest.CaptureFixture[str], url: str, *arguments: str | Path) -> str:
    """What the script says on stderr when it refuses; in this process, which saves a start of Python for each."""
    spec = importlib.util.spec_from_file_location("calibrate_story", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    story = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(story)
    with pytest.raises(SystemExit) as ended:
        story.main(["--url", url, "--model", "tiny", *map(str, arguments)])
    assert ended.value.code == 2
    return capsys.readouterr().err


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
    with openai_server(slots=8, seconds=0.2) as server:
        done = calibrate(server.url, "--rates", "10,60", "--seconds", "3", "--max-tokens", "5", *files)

    said = " ".join(done.stdout.split())
    if "this process is the bottleneck" in said or "too short for a queue" in said:
        pytest.skip("this machine is too busy to measure anything in real time")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.startswith(f"{server.url}: this will send at most 211 calls\n")
    content = json.loads((tmp_path / "out.json").read_text())
    assert 9 <= content["interactive_rps_threshold"] <= 40  # eight slots of 0.2 s bear 40 a second
    assert 3 <= content["max_concurrency"] <= 16
    assert content["interactive_p95_threshold"] >= 0.4
    assert server.seen == content["calls"] == 1 + sum(point["calls"] for point in content["points"])
    assert server.requests[0]["max_tokens"] == 5
    assert all(f"{name}=" in done.stdout for name in ("max_concurrency", "interactive_rps_threshold"))
    if HAS_MATPLOTLIB:
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@needs_httpx
def test_a_throttling_server_is_left_in_peace_and_its_retry_after_is_told(tmp_path: Path) -> None:
    with openai_server(seconds=0.01, throttle_after=11) as server:
        done = calibrate(server.url, "--rates", "20,40", "--seconds", "1.5", "--json", tmp_path / "out.json")

    assert done.returncode == 1
    assert "the backend throttled at 20 calls/s" in done.stdout
    assert "retry after 7 s" in done.stdout
    [point] = json.loads((tmp_path / "out.json").read_text())["points"]
    assert point["throttled"] == server.seen - 11 > 0
    assert server.seen < 31


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
        done = calibrate(server.url, "--api-key-env", "MY_KEY", "--rates", "30", "--seconds", "1", MY_KEY="sesame")

    assert_refused(refused, "answered 401", "--api-key-env")
    assert server.seen == 31
    assert "sesame" not in done.stdout + done.stderr


@needs_httpx
def test_a_server_that_is_not_there_is_one_line_and_status_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert_refused(calibrate(f"http://127.0.0.1:{taken.getsockname()[1]}/v1"), "cannot be reached")


@needs_httpx
def test_what_is_no_openai_server_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    said = [refusal(capsys, "127.0.0.1/v1")]
    with openai_server() as server:
        said.append(refusal(capsys, server.url.removesuffix("/v1")))
    with openai_server(body=b"<html>welcome</html>") as server:
        said.append(refusal(capsys, server.url))
    with openai_server(body=b'{"detail": "no model"}') as server:
        said.append(refusal(capsys, server.url))

    parts = ["cannot be reached: Request URL", "answered 404: is --url right", "did not answer in JSON", "no model"]
    for line, part in zip(said, parts, strict=True):
        assert part in line
        assert line.count("\n") == 1


@needs_httpx
def test_who_reads_no_further_ends_the_calibration_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)

    with openai_server(slots=8, seconds=0.01) as server:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--url", server.url, "--model", "tiny", "--rates", "10", "--seconds", "1"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "NO_PROXY": "*"},
            timeout=120,
            check=False,
        )
    os.close(writer)

    assert (done.returncode, done.stderr, server.seen) == (1, "", 0)


@needs_httpx
def test_a_budget_that_does_not_suffice_is_told_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with openai_server() as server:
        said = refusal(capsys, server.url, "--rates", "1,2", "--seconds", "20", "--max-calls", "50")

    assert "max_calls must be at least 61" in said
    assert server.seen == 0


@pytest.mark.parametrize("module, extra", [("httpx", "httpx"), ("matplotlib", "simulation")])
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    module: str, extra: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if module == "matplotlib":
        pytest.importorskip("httpx", reason="needs the extra [httpx]")
    monkeypatch.setitem(sys.modules, module, None)

    said = refusal(capsys, "http://127.0.0.1:1/v1", "--plot", tmp_path / "curve.png")

    assert said.endswith(f"needs {module}: pip install 'llm-traffic-scheduler[{extra}]'\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--rates", "1,two"], "must be a finite number above 0, got 'two'"),
        (["--rates", "1,nan"], "must be a finite number above 0, got 'nan'"),
        (["--max-calls", "0"], "must be a whole number, at least 1, got '0'"),
        (["--plot", "curve.txt"], "must end in .png, .svg, .pdf"),
        (["--json", "no/such/directory/out.json"], "cannot write"),
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY, which is not set"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: Sequence[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "http://127.0.0.1:1/v1", *arguments)

    assert part in said
    assert said.count("\n") == 1
