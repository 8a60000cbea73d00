"""The picture of `real_server.py`: how long people wait for the first token, and what that costs batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from llm_traffic_scheduler.simulation.plot import INK, taking_longer, tidy

if TYPE_CHECKING:
    from real_server import Measured

__all__ = ["draw"]


class _Style(NamedTuple):
    colour: str
    dashes: str
    width: float
    size: float


# As in the other pictures: an arm keeps its colour in every panel.
_STYLES: Final = {
    "no batch": _Style("#7f7f7f", ":", 1.6, 60),
    "no scheduler": _Style("#D55E00", "-", 3.2, 60),
    "semaphore": _Style("#E69F00", "--", 1.6, 60),
    "static cap": _Style("#CC79A7", "-", 1.2, 60),
    "this scheduler, no": _Style("#009E73", "--", 1.8, 60),
    "this scheduler": _Style("#0072B2", "-", 2.8, 130),
}


def draw(results: Sequence[Measured], path: str | Path, *, title: str) -> None:
    """Write the picture; the suffix of `path` chooses the format."""
    figure = Figure(figsize=(15, 6.4), layout="constrained")
    figure.suptitle(title, fontsize=14, x=0.01, ha="left", color=INK)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    for axes in (left, right):
        tidy(axes)
        axes.set_xscale("log")
    _draw_distribution(left, results)
    _draw_trade_off(right, results)
    handles = []
    for name in dict.fromkeys(_named(arm.name) for arm in results):
        style = _style(name)
        handles.append(Line2D([], [], color=style.colour, ls=style.dashes, lw=style.width, marker="o", label=name))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)


def _draw_distribution(axes: Axes, results: Sequence[Measured]) -> None:
    """The share of interactive calls that wait longer for their first token, all runs together."""
    least = 100.0
    for arm in results:
        style, waits = _style(arm.name), sorted(wait for run in arm.runs for wait in run.first_tokens)
        least = min(least, 100 / len(waits))
        seconds, longer = taking_longer(waits, waits[-1])
        axes.step(seconds, longer, where="pre", color=style.colour, lw=style.width, ls=style.dashes)
    axes.axhline(5, color=INK, lw=0.8, ls=(0, (1, 2)))
    axes.set_yscale("log")
    axes.set_ylim(least * 0.8, 130)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    _label_seconds(axes.xaxis, *axes.get_xlim())
    axes.set_title("how long calls wait for the first token, pooled over runs; dotted: P95", loc="left")
    axes.set_xlabel("time to first token")
    axes.set_ylabel("calls that wait longer")


def _draw_trade_off(axes: Axes, results: Sequence[Measured]) -> None:
    """The medians as large points, the runs as small ones."""
    caps = [arm for arm in results if arm.name.startswith("static cap")]
    axes.plot([arm.p95 for arm in caps], [arm.batch_rate for arm in caps], color=_style("static cap").colour, lw=1)
    for arm in results:
        style = _style(arm.name)
        p95s, rates = [run.first_token(0.95) for run in arm.runs], [run.batch_rate for run in arm.runs]
        axes.scatter(p95s, rates, s=12, color=style.colour, alpha=0.4, lw=0)
        axes.scatter(arm.p95, arm.batch_rate, s=style.size, color=style.colour, edgecolor="white", zorder=3)
        note = arm.name.removeprefix("static cap of ") if arm in caps else ""
        axes.annotate(
            note, (arm.p95, arm.batch_rate), (0, 9), textcoords="offset points", ha="center", color=style.colour
        )
    axes.set_ylim(bottom=-0.04 * max(arm.batch_rate for arm in results))
    _label_seconds(axes.xaxis, *axes.get_xlim())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_title("what it costs: further left and higher is better; small: single runs", loc="left")
    axes.set_xlabel("interactive P95 to first token")
    axes.set_ylabel("batch tokens per second")


def _named(name: str) -> str:
    """As the legend says it: all static caps are one."""
    return "static cap (number beside it)" if name.startswith("static cap") else name


def _style(name: str) -> _Style:
    return next(style for prefix, style in _STYLES.items() if name.startswith(prefix))


def _label_seconds(axis: Axis, low: float, high: float) -> None:
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g} s" if value >= 1 else f"{value * 1e3:g} ms"))
    axis.set_minor_formatter(NullFormatter())
