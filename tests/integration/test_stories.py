"""The stories of `examples/`: each runs by itself, as its first lines say, and shows what it is for."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STORIES = ["agent", "backfill", "evaluation", "gateway", "openai_sdk", "rag", "worker"]
ON_THE_SERVER = ("openai", "starlette", "uvicorn")

with_an_sdk = pytest.mark.slow  # it starts a Python that imports an SDK, which takes seconds


def told(story: str, *arguments: str, needs: tuple[str, ...] = ()) -> list[str]:
    """The lines that a story prints; skips where a library that it is about is missing."""
    for library in needs:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{story}.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def with_the_library() -> dict[str, str]:
    """The environment of a process that finds the library wherever it runs, and nothing of this directory."""
    return {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_short_and_says_how_to_run_it(story: str) -> None:
    text = (EXAMPLES / f"{story}.py").read_text(encoding="utf-8")

    assert len(text.splitlines()) < 80
    assert f"python examples/{story}.py" in text.split('"""')[1]


@pytest.mark.parametrize("story", STORIES)
def test_a_story_refuses_arguments_that_it_does_not_know(story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [story, "--bogus"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{story}.py"), run_name="__main__")

    assert ended.value.code not in (0, None)


@pytest.mark.parametrize("story, argument", [("gateway", "--demo"), ("openai_sdk", "")])
def test_a_copied_story_says_that_its_helper_is_in_the_checkout(story: str, argument: str, tmp_path: Path) -> None:
    for library in ("fastapi", *ON_THE_SERVER):
        pytest.importorskip(library, reason=f"{library} is not installed")
    shutil.copy(EXAMPLES / f"{story}.py", tmp_path)
    command = [sys.executable, f"{story}.py", *argument.split()]

    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=with_the_library())

    assert ran.returncode == 1
    assert re.fullmatch(r"\w+ is not .* in a checkout\n", ran.stderr)


@pytest.mark.parametrize("story, missing", [("gateway", "fastapi"), ("openai_sdk", "openai")])
def test_a_story_says_what_to_install(story: str, missing: str) -> None:
    without = f"""
import runpy, sys
sys.path.insert(0, {str(EXAMPLES)!r})
sys.modules[{missing!r}] = None
runpy.run_module({story!r})
"""

    ran = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)

    assert ran.returncode == 1
    assert re.fullmatch(rf"{missing} is not installed: pip install .*\b{missing}\b.*\n", ran.stderr)


@with_an_sdk
def test_the_gateway_pauses_its_evaluation_at_sigterm_and_ends_every_stream() -> None:
    evaluation, at_sigterm, chat, late, batch, ended = told(
        "gateway", "--demo", needs=("fastapi", "httpx", *ON_THE_SERVER)
    )

    assert re.match("evaluation: .* was closed", evaluation)
    streams, calls = numbers(at_sigterm)
    assert streams >= 1
    assert chat.startswith("chat      3 of 3 people read their answer to its end")
    assert late.endswith("after the signal: refused")
    started, later = numbers(batch)
    assert started >= max(calls, 1)
    assert later == 0
    assert numbers(ended) == [started, 0]


def test_agents_that_give_their_slot_up_for_tools_are_done_sooner() -> None:
    _, kept, given_up = told("agent")

    assert numbers(kept)[:2] == [12, 96]
    assert numbers(given_up)[:2] == [12, 42]


@with_an_sdk
def test_the_openai_sdk_waits_for_its_turn_and_people_overtake_summaries() -> None:
    unmarked, marked, calls = told("openai_sdk", needs=ON_THE_SERVER)

    assert numbers(marked)[0] < numbers(unmarked)[0] <= 20
    assert calls == "22 interactive calls, 20 batch calls, never more than 4 at the server"


def test_a_tenant_who_asks_for_much_does_not_keep_the_other_waiting() -> None:
    _, acme, birds = told("rag")

    assert numbers(acme)[0::3] == [60, 200]
    assert numbers(birds)[0::3] == [8, 200]
    assert numbers(birds)[2] <= 2.5 < numbers(acme)[2]


def test_an_evaluation_that_is_batch_is_not_noticed_and_not_counted_as_chat() -> None:
    _, unmarked, marked = told("evaluation")

    assert numbers(unmarked)[2:] == [480, 0]
    assert numbers(marked)[2:] == [80, 400]
    assert numbers(marked)[1] == numbers(unmarked)[1]
    assert numbers(marked)[0] < 3 < numbers(unmarked)[0]


def test_a_synchronous_worker_never_runs_more_than_the_cap_and_does_every_task() -> None:
    overtaken, at_once = told("worker")

    summaries, replies, done = numbers(overtaken)
    assert (summaries, replies) == (40, 10)
    assert done < summaries
    assert 1 <= numbers(at_once)[1] <= 4
