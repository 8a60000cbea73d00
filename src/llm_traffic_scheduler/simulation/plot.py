"""A run as one picture: over time on the left, the arms' latencies on the right.

Floor: fourth. Beside `comparison.picture` the only room that imports matplotlib; it loads when it is named.
Colours: those of Okabe and Ito, which colour-blind readers can tell apart; an arm keeps its colour in every panel.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .arms import OURS
from .layout import rounded
from .recording import ArmRun, CallRecord, Latency
from .replay import Replay
from .results import as_arm
from .scenarios import BATCH_MAX, BATCH_MIN, ScenarioRun
from .what_if import Answer

INK: Final = "#333333"
_BATCH: Final = "#9ecae1"
_INTERACTIVE: Final = "#08306b"
_FAULT: Final = "#fbdcd0"
_BINS: Final = 120
_TITLE_COLUMNS: Final = 132
_NOTE_COLUMNS: Final = 64  # below a panel on the right
_LETTER: Final = 0.0135  # of a panel's width
_LABEL_GAP: Final = 0.05  # of a panel's height, between the names of two points
_MANY_SAMPLES: Final = 1000
_MANY_CALLS: Final = 1000  # from here on the tail is worth a logarithmic axis


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    width: float
    dashes: str = "-"


# Arms that do the same draw the same line: the wide one goes under, the dashed one over it.
_STYLES: Final = (
    ("no batch", _Style("#7f7f7f", 1.4, ":")),
    ("no scheduler", _Style("#D55E00", 3.6)),
    ("semaphore", _Style("#E69F00", 1.4, "--")),
    ("priority", _Style("#009E73", 4.4)),
    ("fixed split", _Style("#CC79A7", 1.6, "--")),
    (OURS, _Style("#0072B2", 2.0)),
)


@dataclass(frozen=True, slots=True)
class _Limits:
    low: int
    high: int
    p95_threshold: float
    fault: tuple[float, float] | None = None


def draw_replay(result: Replay, path: str | Path) -> None:
    """Write the picture of a replay; the suffix of `path` chooses the format."""
    arms = (result.alone, *result.arms)
    setup = result.setup
    title = f"{len(result.traffic):,} recorded interactive calls beside an endless batch backlog, {setup.engine.name}"
    figure, timeline, side = _canvas(f"{title} (simulated)", 2)
    _draw_timeline(timeline, arms, _Limits(setup.batch_min, setup.batch_max, result.p95_threshold))
    _draw_distribution(side[0], arms, result.p95_threshold)
    side[0].set_title("how long interactive calls take", loc="left")
    _draw_trade_off(side[1], [(arm, result.batch_rates(arm)[1]) for arm in arms])
    _finish(figure, arms, path)


def draw_answer(answer: Answer, path: str | Path) -> None:
    """Write the picture of a what-if, with the fault's time; calls that failed or never ended take for ever."""
    runs = {"no batch at all": answer.alone, **answer.arms}
    arms = [as_arm(name, run) for name, run in runs.items()]
    question, target = answer.question, answer.target
    calls = f"{len(answer.alone.arrivals):,} interactive calls beside an endless batch backlog"
    title = f"{rounded(answer.policy)}: {calls}"
    figure, timeline, side = _canvas(f"{title} (simulated)", 2)
    _draw_timeline(timeline, arms, _Limits(question.batch_min, question.batch_max, target, question.fault))
    _draw_distribution(side[0], arms, target)
    side[0].set_title("how long interactive calls take", loc="left")
    _draw_trade_off(side[1], [(arm, run.goodput) for arm, run in zip(arms, runs.values(), strict=True)])
    _finish(figure, arms, path)


def draw_scenarios(runs: Sequence[ScenarioRun], path: str | Path) -> None:
    """Write the picture of the scenarios: over time the last one, distributions of all."""
    figure, timeline, side = _canvas(f"{runs[-1].scenario.name}: {runs[-1].scenario.story}", len(runs))
    last = runs[-1]
    _draw_timeline(timeline, last.arms, _Limits(BATCH_MIN, BATCH_MAX, last.scenario.p95_threshold))
    for axes, run in zip(side, runs, strict=True):
        _draw_distribution(axes, run.arms, run.scenario.p95_threshold)
        axes.set_title(run.scenario.name, loc="left")
    _finish(figure, last.arms, path)


def _canvas(title: str, side_panels: int) -> tuple[Figure, list[Axes], list[Axes]]:
    figure = Figure(figsize=(15, 10), layout="constrained")
    figure.suptitle(textwrap.fill(title, _TITLE_COLUMNS), fontsize=14, x=0.01, ha="left", color=INK)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.7, 1), wspace=0.03)[0]
    timeline = list(left.subplots(4, 1, sharex=True, height_ratios=(1.6, 1, 1, 1)))
    side = list(right.subplots(side_panels, 1, squeeze=False)[:, 0])
    for axes in (*timeline, *side):
        tidy(axes)
    return figure, timeline, side


def tidy(axes: Axes) -> None:
    """A panel with a pale grid under its curves, and two sides in place of four."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_timeline(panels: Sequence[Axes], arms: Sequence[ArmRun], limits: _Limits) -> None:
    latency, running, limit, pressure = panels
    ours = arms[-1]
    end = max(sample.time for sample in ours.samples)
    unit, unit_name = _time_unit(end)
    _draw_p95(latency, arms, limits.p95_threshold, end, unit)
    _draw_running(running, ours, unit)
    steered = [(sample.time / unit, sample.steering) for sample in ours.samples if sample.steering]
    times = [time for time, _ in steered]
    _trace_and_mean(limit, times, [steering.batch_limit for _, steering in steered], _style(ours).colour)
    limit.set_ylim(0, limits.high * 1.08)
    limit.set_title(f"batch limit, {limits.low} to {limits.high}", loc="left")
    limit.set_ylabel("calls")
    _trace_and_mean(pressure, times, [steering.pressure for _, steering in steered], _style(ours).colour)
    _threshold(pressure.axhline, 1)
    pressure.set_ylim(bottom=0)
    pressure.set_title("pressure: 1 is at the threshold", loc="left")
    pressure.set_ylabel("pressure")
    pressure.set_xlabel(f"time ({unit_name})")
    pressure.set_xlim(0, end / unit)
    if limits.fault:
        _draw_fault(panels, (limits.fault[0], min(limits.fault[1], end)), unit)


def _draw_p95(axes: Axes, arms: Sequence[ArmRun], p95_threshold: float, end: float, unit: float) -> None:
    """P95 of each stretch of time; a gap where no call came, and above all others a line for what is infinite."""
    curves = [p95_over_time(arm.of_kind("interactive"), end) for arm in arms]
    never = 2 * max([p95_threshold, *(value for curve in curves for value in curve if math.isfinite(value))])
    edges = [part * end / _BINS / unit for part in range(_BINS + 1)]
    for arm, curve in zip(arms, curves, strict=True):
        style, values = _style(arm), [never if value == math.inf else value for value in curve]
        # No line from a call to the next one: nothing was measured between them.
        axes.stairs(values, edges, baseline=None, color=style.colour, lw=style.width, ls=style.dashes)
    _threshold(axes.axhline, p95_threshold)
    axes.set_yscale("log")
    if any(math.inf in curve for curve in curves):
        axes.set_ylim(top=1.4 * never)
        note = axes.text(1.01, never, "never", fontsize=9, color=INK)
        note.set(transform=axes.get_yaxis_transform(), va="center")
    _label_seconds(axes.yaxis, *axes.get_ylim())
    axes.set_ylabel("P95 by time of arrival")
    axes.set_title("interactive latency", loc="left")


def _draw_fault(panels: Sequence[Axes], fault: tuple[float, float], unit: float) -> None:
    """The time in which a fault held, behind all that was measured."""
    for axes in panels:
        axes.axvspan(fault[0] / unit, fault[1] / unit, color=_FAULT, lw=0, zorder=0)
    note = panels[0].text(sum(fault) / 2 / unit, 1.0, "fault", fontsize=9, color=INK)
    note.set(transform=panels[0].get_xaxis_transform(), ha="center", va="bottom")


def _draw_running(axes: Axes, arm: ArmRun, unit: float) -> None:
    times = [sample.time / unit for sample in arm.samples]
    batch = [float(sample.batch) for sample in arm.samples]
    interactive = [float(sample.interactive) for sample in arm.samples]
    if len(times) > _MANY_SAMPLES:
        (times, batch), (_, interactive) = _means(times, batch), _means(times, interactive)
    colours, labels = (_BATCH, _INTERACTIVE), ("batch", "interactive")
    axes.stackplot(times, batch, interactive, colors=colours, labels=labels, step="mid", linewidth=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderaxespad=0.1)
    axes.set_title(f"calls at the server, {arm.name}", loc="left")
    axes.set_ylabel("calls")


def _trace_and_mean(axes: Axes, times: Sequence[float], values: Sequence[float], colour: str) -> None:
    """Few samples as they are; many as a pale trace with their mean over it."""
    many = len(times) > _MANY_SAMPLES
    axes.step(times, values, where="mid", color=colour, lw=0.8 if many else 1.6, alpha=0.35 if many else 1)
    if many:
        axes.plot(*_means(times, values), color=colour, lw=1.6)


def _means(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of `_BINS` equal parts of the samples."""
    bounds = [round(part * len(times) / _BINS) for part in range(_BINS + 1)]
    parts = [slice(low, high) for low, high in pairwise(bounds)]
    return [fmean(times[part]) for part in parts], [fmean(values[part]) for part in parts]


def _draw_distribution(axes: Axes, arms: Sequence[ArmRun], p95_threshold: float) -> None:
    """The share of interactive calls that take longer, over the time they take; what never ended stays above zero."""
    latencies = [sorted(call.latency for call in arm.of_kind("interactive")) for arm in arms]
    count = max([1, *map(len, latencies)])
    longest = max([p95_threshold, *(seconds for each in latencies for seconds in each if seconds < math.inf)])
    for arm, each in zip(arms, latencies, strict=True):
        style, (steps, longer) = _style(arm), taking_longer(each, 2 * longest)
        axes.step(steps, longer, where="pre", color=style.colour, lw=style.width, ls=style.dashes)
    _threshold(axes.axvline, p95_threshold)
    axes.set_xscale("log")
    _label_seconds(axes.xaxis, *axes.get_xlim())
    if count >= _MANY_CALLS:
        axes.set_yscale("log")
        axes.set_ylim(max(100 / count, 0.1), 130)
        axes.axhline(5, color=INK, lw=0.8, ls=(0, (1, 2)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_xlabel("end-to-end latency")
    axes.set_ylabel("calls that take longer")


def taking_longer(latencies: Sequence[float], end: float) -> tuple[list[float], list[float]]:
    """Seconds, and the per cent of calls that take at least so long; up to `end` for calls that take for ever.

    `latencies` in ascending order.
    """
    ended = [seconds for seconds in latencies if seconds < math.inf]
    longer = [100 * (1 - rank / len(latencies)) for rank in range(len(ended) + 1)] if latencies else []
    last = [end] if len(ended) < len(latencies) else ended[-1:]
    return [*ended, *last], longer


def _draw_trade_off(axes: Axes, rates: Iterable[tuple[ArmRun, float]]) -> None:
    points = [(arm, arm.interactive.p95, tokens) for arm, tokens in rates]
    shown = [point for point in points if point[1] < math.inf]
    for arm, p95, tokens in shown:
        axes.scatter(p95, tokens, s=120, color=_style(arm).colour, zorder=3, edgecolor="white")
    axes.set_xscale("log")
    axes.margins(x=0.1)
    most = max([1.0, *(tokens for _, _, tokens in points)])
    axes.set_ylim(-0.08 * most, 1.08 * most)
    _label_seconds(axes.xaxis, *axes.get_xlim())
    _name_points(axes, shown)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    # Who has no place on this axis would else seem not to have run at all.
    absent = [f"{arm.name} ({tokens:,.0f} tokens/s)" for arm, p95, tokens in points if p95 == math.inf]
    never = textwrap.wrap(f"P95 never: {', '.join(absent)}", _NOTE_COLUMNS) if absent else []
    axes.set_xlabel("\n".join(("interactive P95", *never)))
    axes.set_ylabel("batch tokens per second")
    axes.set_title("what it costs: further left and higher is better", loc="left")


def _name_points(axes: Axes, points: Iterable[tuple[ArmRun, float, float]]) -> None:
    """The arm's name beside each point, on the side with more room; lower where it would strike the next point."""
    to_panel = axes.transData + axes.transAxes.inverted()
    free = -math.inf
    found = ((arm, to_panel.transform((p95, tokens))) for arm, p95, tokens in points)
    places = sorted(((arm, float(x), float(y)) for arm, (x, y) in found), key=lambda place: place[2])
    for arm, x, y in places:
        side, anchor = (0.025, "left") if x < 0.5 else (-0.025, "right")
        end = x + math.copysign(_LETTER * len(arm.name), side) + side
        struck = any(min(x, end) < at < max(x, end) and 0 <= up - y < _LABEL_GAP for _, at, up in places)
        free = max(free + _LABEL_GAP, y - _LABEL_GAP if struck else y)
        note = axes.text(x + side, free, arm.name, fontsize=9, color=_style(arm).colour)
        note.set(transform=axes.transAxes, ha=anchor, va="center")


def _finish(figure: Figure, arms: Sequence[ArmRun], path: str | Path) -> None:
    handles = [Line2D([], [], color=(s := _style(arm)).colour, lw=s.width, ls=s.dashes, label=arm.name) for arm in arms]
    handles.append(Line2D([], [], color=INK, lw=1, ls=(0, (4, 3)), label="threshold"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=110)


def _threshold(line: Callable[..., object], value: float) -> None:
    line(value, color=INK, lw=1, ls=(0, (4, 3)))


def _label_seconds(axis: Axis, low: float, high: float) -> None:
    """Labels on powers of ten, and between them where the axis spans few."""
    factor = high / low
    few, some, many = (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    subs = many if factor < 8 else some if factor < 100 else few if factor < 1000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g} s" if value >= 1 else f"{value * 1e3:g} ms"))
    axis.set_minor_formatter(NullFormatter())


def _style(arm: ArmRun) -> _Style:
    return next(style for prefix, style in _STYLES if arm.name.startswith(prefix))


def p95_over_time(calls: Iterable[CallRecord], end: float) -> list[float]:
    """P95 of the calls that came in each of `_BINS` equal parts of the time; NaN where none came."""
    bins: list[list[float]] = [[] for _ in range(_BINS)]
    for call in calls:
        bins[min(_BINS - 1, int(call.arrived / end * _BINS))].append(call.latency)
    return [Latency.of(part).p95 if part else math.nan for part in bins]


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds > 5 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds > 300 else (1.0, "seconds")
