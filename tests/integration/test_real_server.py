"""examples/real_server.py: what it says of runs, how it refuses, and one small measurement on llama.cpp's server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import llama_server
import pytest

httpx = pytest.importorskip("httpx", reason="httpx is not installed")

import real_load  # noqa: E402  # it needs what is looked for above
import real_server  # noqa: E402
from real_load import Run  # noqa: E402
from real_server import Measured, Verdict, reach, table  # noqa: E402

lacks = llama_server.missing()
needs_llama = pytest.mark.skipif(lacks is not None, reason=lacks or "")


def measured(name: str, first_token: float, batch_rate: float, calls: int = 20) -> Measured:
    """Three runs, of which the one in the middle is that."""
    runs = [Run((first_token * factor,) * calls, batch_rate * factor) for factor in (0.5, 1.0, 4.0)]
    return Measured(name, runs)


def results(*, ours: float = 0.05, ours_rate: float = 750.0) -> list[Measured]:
    return [
        measured("no batch at all", 0.02, 0.0),
        measured("no scheduler, 64 batch calls", 6.0, 800.0),
        measured("static cap of 1", 0.045, 700.0),
        measured("static cap of 2", 0.05, 730.0),
        measured("static cap of 4", 0.2, 790.0),
        measured("this scheduler, no target", 1.0, 800.0),
        measured("this scheduler, ttft_target 40 ms", ours, ours_rate),
    ]


def passed(verdicts: Sequence[Verdict]) -> list[bool | None]:
    return [verdict.passed for verdict in verdicts]


def test_each_clause_is_judged_by_medians_against_the_best_cap_that_keeps_batch_going() -> None:
    assert passed(reach(results(), judged=True)) == [True, True, True]
    assert passed(reach(results(ours=0.061), judged=True)) == [True, False, True]
    assert passed(reach(results(ours=0.31), judged=True)) == [False, False, True]
    assert passed(reach(results(ours_rate=719.0), judged=True)) == [True, True, False]
    assert "static cap of 2 50 ms" in reach(results(), judged=True)[1].measured


def test_what_is_too_short_or_has_no_opponent_is_not_judged() -> None:
    alone = [arm for arm in results() if not arm.name.startswith("static")]

    assert passed(reach(results(ours=9.0, ours_rate=0.0), judged=False)) == [None] * 3
    assert passed(reach(alone, judged=True)) == [True, None, True]
    assert str(reach(results(ours=9.0), judged=True)[0]).startswith("MISSED ")


def test_the_table_has_medians_and_the_share_of_what_nobody_schedules() -> None:
    lines = table(results()).splitlines()

    assert len({line.count("|") for line in lines}) == 1
    assert lines[4] == "| static cap of 1 | 45 ms | 45 ms | 22 to 180 ms | 700 | 88% |"


def test_a_run_in_which_nobody_got_anywhere_is_shown_all_the_same() -> None:
    stood_still = results()
    stood_still[1] = measured("no scheduler, 64 batch calls", 6.0, 0.0)

    assert table(stood_still).splitlines()[4].endswith("| 700 | - |")
    assert passed(reach(stood_still, judged=True)) == [True, True, False]


def test_as_many_calls_come_as_the_rate_says_whatever_the_seed() -> None:
    for seed in range(20):
        times = real_load.arrivals(20.0, seed)

        assert times == sorted(times)
        assert sum(at >= real_load.LEAD for at in times) == 40
        assert times[-1] <= real_load.LEAD + 20.0


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        real_server.main(list(arguments))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--rounds", "0"], "must be a whole number, at least 1, got '0'"),
        (["--seconds", "nan"], "must be a finite number above 0, got 'nan'"),
        (["--target", "-1"], "must be a finite number above 0, got '-1'"),
        (["--plot", "real.txt"], "must end in .png, .svg, .pdf"),
        (["--model", "no/such.gguf"], "cannot read 'no/such.gguf': No such file"),
        (["--model", __file__], "must be a model in the format GGUF"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: Sequence[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    "absent, arguments",
    [
        (["xllamacpp"], []),
        (["httpx", "xllamacpp", "gguf", "matplotlib"], ["--plot", "real.png"]),
        (["httpx", "xllamacpp"], ["--model", "a.gguf"]),
    ],
)
def test_all_that_is_missing_is_named_at_once_with_the_command_that_installs_it(
    absent: list[str],
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.gguf").write_bytes(b"GGUF")
    for each in ("httpx", "xllamacpp", "gguf", "matplotlib"):
        monkeypatch.setitem(sys.modules, each, None if each in absent else sys)

    said = refusal(capsys, *arguments)

    assert f"it needs {', '.join(absent)}: pip install '.[httpx,simulation]' xllamacpp gguf\n" in said


@pytest.mark.slow
@needs_llama
def test_a_model_that_llama_cannot_load_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing else")

    assert "the server did not become ready" in refusal(capsys, "--quick", "--model", str(broken))


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_server_that_is_gone_is_an_error_and_no_call_is_left_running() -> None:
    with pytest.raises(httpx.HTTPError):
        await real_load.run("http://127.0.0.1:1", real_load.Arm("nobody listens", 2), 0.1, seed=1)

    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.slow
@needs_llama
def test_a_small_measurement_on_llama_counts_every_call_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(real_load, "LEAD", 0.5)
    monkeypatch.setattr(real_load, "BATCH_TOKENS", 16)
    files = ["--json", str(tmp_path / "real.json"), "--plot", str(tmp_path / "real.png")]

    status = real_server.main(["--quick", "--seconds", "0.5", "--backlog", "9", "--target", "0.05", *files])

    said, content = capsys.readouterr().out, json.loads((tmp_path / "real.json").read_text())
    assert status == 0
    assert said.count("not judged") == 3
    rates = {name: runs[0]["batch_tokens_per_second"] for name, runs in content["arms"].items()}
    assert rates.pop("no batch at all") == 0
    assert max(rates.values()) > 0
    assert all(len(runs[0]["first_tokens"]) == 1 for runs in content["arms"].values())
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
