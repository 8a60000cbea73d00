"""A progress bar where somebody watches, silence elsewhere, and no failure where tqdm is missing."""

from __future__ import annotations

import io
import sys

import pytest

from llm_traffic_scheduler.simulation.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_nobody_watches_nothing_is_said_and_tqdm_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setitem(sys.modules, "tqdm", None)  # importing it would fail

    with progress_bar("replaying") as step:
        step(0.4)

    assert stderr.getvalue() == ""


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)

    with progress_bar("replaying") as step:
        step(1.0)

    assert "replaying   0 %" in stderr.getvalue()


def test_without_tqdm_a_terminal_is_told_what_to_install_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setitem(sys.modules, "tqdm", None)

    with progress_bar("replaying") as step:
        step(1.0)

    assert stderr.getvalue() == ("no progress bar without tqdm: pip install 'llm-traffic-scheduler[simulation]'\n")
