"""The comparison as one picture: what batch gets for what interactive calls pay, a panel for each shape.

Floor: fourth. Beside `simulation.plot` the only room that imports matplotlib; it loads when it is named.
Colours: those of Okabe and Ito, which colour-blind readers can tell apart; markers and dashes tell them apart in grey.
"""

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ..plot import INK, tidy
from .families import LITERAL, LITERAL_SWEPT, OURS, STATIC, TOTAL
from .instances import ENGINES
from .study import Study
from .text import GOOD_FOR

__all__ = ["draw_study"]

_LEAST, _MOST = 1.0, 2.4  # the P95s shown, as multiples of no batch
_COLUMNS: Final = 3
_LEGEND_COLUMNS: Final = {1: 2, 2: 4, 3: 7}  # names side by side, by the panels that are


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    marker: str
    dashes: str = "-"
    width: float = 1.6
    size: float = 4.5

    def line(self) -> dict[str, Any]:
        """As matplotlib's arguments."""
        return {"color": self.colour, "lw": self.width, "ls": self.dashes, "marker": self.marker, "ms": self.size}


_STYLES: Final = {
    LITERAL: _Style("#D55E00", "v"),
    LITERAL_SWEPT: _Style("#E69F00", "^", "--"),
    STATIC: _Style("#CC79A7", "s"),
    TOTAL: _Style("#009E73", "D", "--"),
    "AIMD": _Style("#56B4E9", "x", ":"),
    "scavenger": _Style("#7f7f7f", "+", ":"),
    OURS: _Style("#0072B2", "o", width=2.8, size=7),
}
_OFF: Final = ("no scheduler", "semaphore", "priority only")


def draw_study(study: Study, path: str | Path) -> None:
    """Write the picture; the suffix of `path` chooses the format."""
    cells = study.plan.cells
    columns = min(_COLUMNS, len(cells))
    rows = math.ceil(len(cells) / columns)
    figure = Figure(figsize=(5.2 * columns, 4.1 * rows + 1.1), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (engine, shape) in zip(panels.flat, cells, strict=False):
        _draw_panel(axes, study, engine, shape)
    for axes in list(panels.flat)[len(cells) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("batch goodput, tokens/s")
    for column in range(columns):
        last = max(row for row in range(rows) if row * columns + column < len(cells))
        panels[last, column].set_xlabel("interactive P95, multiple of no batch")
    title = f"Further left and higher is better. {GOOD_FOR} Means over {study.plan.instances}."
    figure.suptitle(textwrap.fill(title, 52 * columns), x=0.01, ha="left", color=INK)
    handles = [_handle(family) for family in _STYLES if family in study.families()]
    figure.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS[columns], frameon=False)
    figure.savefig(path, dpi=110)


def _draw_panel(axes: Axes, study: Study, engine: str, shape: str) -> None:
    highest = 1.0
    for family, curve in study.curves(engine, shape).items():
        shown = [point for point in curve.front if point.p95 <= _MOST]
        # The line goes on to the first point outside, so that it leaves the picture where the curve does.
        line = curve.front[: len(shown) + 1]
        look = _STYLES[family].line()
        axes.plot([p.p95 for p in line], [p.goodput for p in line], zorder=4 if family == OURS else 3, **look)
        highest = max([highest, *(point.goodput for point in shown)])
    axes.set_xlim(_LEAST, _MOST)
    axes.set_ylim(0, highest * 1.08)
    times = ENGINES[engine][1]
    axes.set_title(f"{shape}, {engine}" + (f" with {times:g} x the traffic" if times != 1 else ""), loc="left")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    tidy(axes)
    arms = (arm for arm in study.of(engine, shape, *_OFF) if arm.point.p95 > _MOST)
    off = [f"{arm.candidate.family}: {arm.point.p95:.1f} x" for arm in arms]
    if off:
        note = axes.text(0.98, 0.03, "\n".join(("outside, to the right", *off)), fontsize=8, color=INK)
        note.set(transform=axes.transAxes, ha="right", va="bottom")


def _handle(family: str) -> Line2D:
    return Line2D([], [], label=family, **_STYLES[family].line())
