"""The README's comparison, cell by cell, against what the probes find.

The table stands between two markers in README.md; where it is wrong or missing, the failure prints the right one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler.testing import run_virtual
from tests.comparison import IN_VIRTUAL_TIME
from tests.contestants import CAP, CONTESTANTS, AcrossProcesses, Contestant, Lacks

Probe: TypeAlias = Callable[[type[Contestant]], Coroutine[object, object, bool] | bool]

ROOT: Final = Path(__file__).parents[2]
BEGIN: Final = "<!-- comparison:begin -->"
END: Final = "<!-- comparison:end -->"
HEAD: Final = ["behaviour", *(each.title for each in CONTESTANTS)]


async def standard_library_only(contestant: type[Contestant]) -> bool:
    """is part of the standard library, or twenty lines of it"""
    used = {type(part).__module__.partition(".")[0] for part in vars(contestant(CAP)).values()}
    return used <= sys.stdlib_module_names


def spans_processes(contestant: type[Contestant]) -> bool:
    """one limit over several processes"""
    return _shared_with_a_child()[contestant.title]


@cache
def _shared_with_a_child() -> dict[str, bool]:
    """Asked in a process of its own, so that the test run's threads stay out of the forks."""
    paths = [str(ROOT), str(Path(llm_traffic_scheduler.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.contestants"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers: dict[str, bool] = json.loads(done.stdout)
    return answers


ROWS: Final[tuple[Probe, ...]] = (*IN_VIRTUAL_TIME, standard_library_only, spans_processes)
NEEDS: Final[dict[Probe, bool]] = {spans_processes: hasattr(os, "fork")}
"""Whether this machine has what a probe takes."""


def answer(probe: Probe, contestant: type[Contestant]) -> bool:
    try:
        outcome = probe(contestant)
        return outcome if isinstance(outcome, bool) else run_virtual(outcome)
    except Lacks:
        return False


def label(probe: Probe) -> str:
    assert probe.__doc__
    return probe.__doc__


@cache
def found(probe: Probe) -> list[str]:
    """The row's cells, its label first; `?` where this machine cannot ask."""
    if not NEEDS.get(probe, True):
        return [label(probe), *("?" for _ in CONTESTANTS)]
    return [label(probe), *("yes" if answer(probe, contestant) else "no" for contestant in CONTESTANTS)]


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def right_table() -> str:
    rows = [HEAD, ["---", *(":---:" for _ in CONTESTANTS)], *(found(probe) for probe in ROWS)]
    return "\n".join([BEGIN, *map(line, rows), END])


def shown() -> list[list[str]]:
    """The cells of the README's table, its head first; none if the file or a marker is missing."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    table = text.partition(BEGIN)[2].partition(END)
    rows = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in table[0].split("\n") if row.strip()]
    return [*rows[:1], *rows[2:]] if table[1] else []


def test_the_table_in_the_readme_has_these_contestants_and_these_rows() -> None:
    labels = [cells[0] for cells in shown()]

    complete = shown()[:1] == [HEAD] and labels[1:] == [label(probe) for probe in ROWS]
    assert complete, f"README.md needs this table:\n{right_table()}"


@pytest.mark.parametrize("probe", ROWS, ids=label)
def test_each_cell_says_what_the_probe_finds(probe: Probe) -> None:
    if not NEEDS.get(probe, True):
        pytest.skip("cannot be asked here: it takes a system that forks")
    cells = found(probe)

    said = cells in shown()
    assert said, f"README.md needs this line in its comparison:\n{line(cells)}"


@pytest.mark.skipif(not NEEDS[spans_processes], reason="this system has no fork")
def test_a_limit_that_processes_share_would_get_its_yes() -> None:
    assert spans_processes(AcrossProcesses)
