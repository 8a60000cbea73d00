"""What is typed is taken or refused in one line that says what was there."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from llm_traffic_scheduler.simulation.arguments import Parser, above_zero, output_file, picture, whole


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "many", ""])
def test_what_is_no_finite_number_above_zero_is_refused(text: str) -> None:
    assert above_zero("1e-3") == 0.001
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a finite number above 0, got '{text}'"):
        above_zero(text)


@pytest.mark.parametrize("text", ["1", "2.0", "two"])
def test_a_whole_number_begins_where_it_is_told_to(text: str) -> None:
    assert whole(2)("2") == 2
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a whole number, at least 2, got '{text}'"):
        whole(2)(text)


def test_a_file_that_cannot_be_written_is_refused_before_the_work_is_done(tmp_path: Path) -> None:
    assert output_file(f"{tmp_path}/new.json") == tmp_path / "new.json"
    for wrong in (tmp_path, tmp_path / "missing" / "new.json"):
        with pytest.raises(argparse.ArgumentTypeError, match="cannot write"):
            output_file(str(wrong))


def test_a_picture_has_the_suffix_of_one(tmp_path: Path) -> None:
    assert picture(f"{tmp_path}/new.PNG") == tmp_path / "new.PNG"
    with pytest.raises(argparse.ArgumentTypeError, match=r"must end in \.png, \.svg, \.pdf, got "):
        picture(f"{tmp_path}/new.json")


def test_bad_input_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Parser(prog="story.py").error("no such thing")

    assert ended.value.code == 2
    assert capsys.readouterr().err == "story.py: no such thing\n"
