"""The story of `examples/explain.py`: an operator reads what is wrong, what would move it and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test starts a Python of its own, with all that the command imports

SCRIPT = Path(__file__).parents[2] / "examples" / "explain.py"


def test_the_story_shows_trouble_its_end_and_how_the_limit_moved() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)

    trouble, _, rest = ran.stdout.partition("--- 16.0 minutes")
    later, _, history = rest.partition("--- how the limit moved")
    assert "what runs is not stopped" in trouble
    assert "no batch call has started or ended for 150 s" in trouble
    assert "what runs is not stopped" not in later
    assert "batch limit: it rises to 3 with a rate below 14/s" in later
    assert [line.split()[1] for line in history.splitlines()[1:3]] == ["6", "1"]
    assert ran.stderr.count("scheduler 'gateway': no batch call has started or ended for 60 s") == 1
    assert all(len(said.strip().splitlines()) <= 12 for said in (trouble, later))


@pytest.mark.skipif(os.name != "posix", reason="needs pipes that break")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_leaves_early_hears_no_traceback(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    with os.fdopen(writing, "w") as closed:
        ran = subprocess.run(
            [sys.executable, SCRIPT],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )

    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr
    assert ran.returncode == 0
