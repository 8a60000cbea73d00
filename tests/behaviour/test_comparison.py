"""The README's comparison, cell by cell, against what the probes find.

The table stands between two markers in README.md; where it is wrong or missing, the failure prints the right one.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Final

import pytest

from llm_traffic_scheduler.testing import run_virtual
from tests.comparison import ROOT, ROWS, Probe, runs_on_trio, spans_processes
from tests.contestants import CONTESTANTS, AcrossProcesses, Contestant, Lacks

BEGIN: Final = "<!-- comparison:begin -->"
END: Final = "<!-- comparison:end -->"
HEAD: Final = ["behaviour", *(each.title for each in CONTESTANTS)]


NEEDS: Final[dict[Probe, bool]] = {
    runs_on_trio: importlib.util.find_spec("trio") is not None,
    spans_processes: hasattr(os, "fork"),
}
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
        pytest.skip("cannot be asked here: it takes trio, or a system that forks")
    cells = found(probe)

    said = cells in shown()
    assert said, f"README.md needs this line in its comparison:\n{line(cells)}"


@pytest.mark.skipif(not NEEDS[spans_processes], reason="this system has no fork")
def test_a_limit_that_processes_share_would_get_its_yes() -> None:
    assert spans_processes(AcrossProcesses)
