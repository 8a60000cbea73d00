"""No case of the catalogue is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scenarios.catalogue import CATALOGUE

TEST = re.compile(r"^(?:async )?def test_(b\d+)_", re.MULTILINE)


def _tested() -> set[str]:
    return {
        found.upper()
        for file in Path(__file__).parent.glob("test_*.py")
        for found in TEST.findall(file.read_text(encoding="utf-8"))
    }


def test_the_catalogue_has_each_id_once() -> None:
    assert len({case.id for case in CATALOGUE}) == len(CATALOGUE) == 105


def test_each_case_has_a_test_or_says_what_it_waits_for() -> None:
    assert [case.id for case in CATALOGUE if not case.here and not case.waits] == []


def test_the_cases_that_are_said_to_be_here_are() -> None:
    assert _tested() == {case.id for case in CATALOGUE if case.here}
