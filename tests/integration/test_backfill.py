"""The story of `examples/backfill.py`: every document is embedded, whatever failed, and the chat is quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "backfill.py"


def test_the_backfill_shows_progress_tries_again_what_failed_and_disturbs_nobody() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)

    lines = ran.stdout.splitlines()
    rounds = [line for line in lines if "embedded" in line]
    assert lines[0].endswith("500 of 2000 documents")
    assert not rounds[0].startswith("2000")
    assert rounds[-1] == "2000 embedded, 0 failed"
    assert lines[-1] == "nobody in the chat waited longer than 0.3 s for an answer"
    assert ran.stderr == ""
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 80
