"""The picture of a comparison: drawn for any number of shapes, with or without arms that lie outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.simulation.comparison.made_up import SHAPES, made_up_study

pytestmark = pytest.mark.slow  # each draws a picture

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("shapes", [SHAPES[:1], SHAPES[:2], SHAPES])
def test_the_legend_is_inside_the_picture(shapes: tuple[str, ...], tmp_path: Path) -> None:
    from llm_traffic_scheduler.simulation.comparison.picture import draw_study

    draw_study(made_up_study(shapes=shapes), tmp_path / "pareto.svg")

    drawn = (tmp_path / "pareto.svg").read_text()
    legend = drawn.partition('<g id="legend_1">')[2]
    edges = [float(x) for x in re.findall(r'<path d="M (-?[\d.]+) [\d.]+ \nL', legend)]  # where its lines begin
    assert len(edges) >= 6
    assert min(edges) >= 0


@pytest.mark.parametrize("shapes", [SHAPES[:1], SHAPES, (*SHAPES, "burst")])
def test_there_is_a_panel_for_each_shape(shapes: tuple[str, ...], tmp_path: Path) -> None:
    from llm_traffic_scheduler.simulation.comparison.picture import draw_study

    draw_study(made_up_study(shapes=shapes), tmp_path / "pareto.svg")

    drawn = (tmp_path / "pareto.svg").read_text()
    assert all(f"<!-- {shape}, A100 -->" in drawn for shape in shapes)
    assert drawn.count("<!-- no scheduler: 12.0 x -->") == len(shapes)
    assert "<!-- adaptive -->" in drawn
    assert "not for absolute GPU figures" in drawn.replace("\n", " ")
