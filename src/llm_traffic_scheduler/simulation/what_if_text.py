"""What a policy would have done, in text for a terminal of 100 columns, and for programs.

Floor: fourth. Pure: results in, text out. What it says is worked out from the numbers, whomever they speak for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from .layout import bars, change, few_calls, paragraph, rounded, table_line, title
from .results import RunResult
from .what_if import Answer

__all__ = ["answer_json", "answer_remarks", "answer_text"]

_LOST: Final = "more than 5 % of the interactive calls fail or never end"
_WIDE: Final = 100  # from here on a column has no room for a fraction, and nobody needs it
_WIDTHS: Final = (30, 8, 8, 8, 9, 7, 7, 8, 9, 6)


def answer_text(answer: Answer, sources: Sequence[str]) -> str:
    """The rules (`sources` first: where traffic, batch and backend are from), a table of the arms, and what to see."""
    question = answer.question
    rules = (
        *sources,
        "Simulated: good for ranking policies, not for absolute figures.",
        f"This scheduler: {rounded(answer.policy)}, cap {question.max_concurrency}, batch {question.batch_min} to"
        f" {question.batch_max}, window {question.window:g} s. Judged by interactive calls within"
        f" {answer.target:.2f} s; those that fail or do not end are misses.",
    )
    return "\n".join(
        (
            title("What this policy would have done"),
            *(text for rule in rules for text in paragraph(rule, "", hang=2)),
            "",
            table_line(("", "interactive latency", "multiple of no batch", "within", "batch", "peak"), _heads(_WIDTHS)),
            table_line(("", *("P50", "P95", "P99") * 2, "target", "tokens/s", "calls"), _WIDTHS),
            *(table_line(_row(answer, name, run), _WIDTHS) for name, run in _all(answer).items()),
            "",
            bars(answer.ours.limits, question.batch_min, question.batch_max),
            *(text for remark in answer_remarks(answer) for text in paragraph(remark, "* ")),
        )
    )


def answer_remarks(answer: Answer) -> list[str]:
    """What the table says, in words: the target, the gain and its price, and the fixed split at the mean."""
    ours, unscheduled = answer.ours, answer.arms["no scheduler"]
    p95, alone, target = ours.interactive.p95, answer.alone.interactive.p95, answer.target
    name, hindsight = list(answer.arms.items())[-2]
    remarks = [
        *few_calls(min(len(run.latencies) for run in _all(answer).values())),
        f"{_judged(p95, target)}; {_share(ours.within(target))} of the calls are within."
        + _losses(ours)
        + f" Never more than {ours.peak_at_server} calls at the backend, cap {answer.question.max_concurrency}.",
        f"Against no scheduler: {_gain(p95, unscheduled.interactive.p95, alone)}, and"
        f" {_price(ours.goodput, unscheduled.goodput)}.",
        *_batch_losses(answer),
    ]
    if math.isfinite(p95) and math.isfinite(hindsight.interactive.p95):
        remarks.append(
            f"The {name} has, beside this scheduler,"
            f" {change(hindsight.interactive.p95, p95, 'higher', 'lower')} P95 and"
            f" {change(hindsight.goodput, ours.goodput, 'more', 'fewer')} batch tokens; nobody has its number"
            " beforehand."
        )
    if alone > target:
        already = f"P95 is {_seconds(alone)}" if math.isfinite(alone) else _LOST
        remarks.append(f"Without any batch work {already} already: no policy keeps {target:.1f} s.")
    if answer.alone.peak_at_server > answer.question.max_concurrency:
        remarks.append(
            f"Without any batch work up to {answer.alone.peak_at_server:,} interactive calls are at the backend at"
            " once, more than the cap: at times this traffic alone is too much for it. A lower --speed or --rate gives"
            " a fairer picture."
        )
    return remarks


def answer_json(answer: Answer, sources: Sequence[str]) -> Mapping[str, object]:
    """The same for programs: seconds and tokens throughout; what never ended is null."""
    question = answer.question
    return {
        "sources": list(sources),
        "policy": answer.policy,
        "target": answer.target,
        "span": question.span,
        "setup": {
            "max_concurrency": question.max_concurrency,
            "batch_max_concurrency": question.batch_max,
            "batch_min_concurrency": question.batch_min,
            "window": question.window,
            "backlog": question.backlog,
        },
        "arms": [_arm(answer, name, run) for name, run in _all(answer).items()],
        "remarks": answer_remarks(answer),
    }


def _all(answer: Answer) -> dict[str, RunResult]:
    return {"no batch at all": answer.alone, **answer.arms}


def _arm(answer: Answer, name: str, run: RunResult) -> dict[str, object]:
    interactive, alone = asdict(run.interactive), asdict(answer.alone.interactive)
    quantiles = ("p50", "p95", "p99")
    return {
        "name": name,
        "interactive": {key: _finite(value) for key, value in interactive.items()},
        "interactive_over_no_batch": {key: _finite(_ratio(interactive[key], alone[key])) for key in quantiles},
        "first_token": asdict(run.first_token),
        "within_target": run.within(answer.target),
        "failed": run.failed,
        "unfinished": run.unfinished,
        "batch_tokens_per_second": run.goodput,
        "batch_failed": run.batch_failed,
        "peak_at_server": run.peak_at_server,
        "timeline": {
            "time": [round(sample.time, 3) for sample in run.samples],
            "interactive": [sample.interactive for sample in run.samples],
            "batch": [sample.batch for sample in run.samples],
            **({"batch_limit": [limit for _, limit in run.limits]} if run.limits else {}),
        },
    }


def _row(answer: Answer, name: str, run: RunResult) -> tuple[str, ...]:
    ours, alone = run.interactive, answer.alone.interactive
    pairs = ((ours.p50, alone.p50), (ours.p95, alone.p95), (ours.p99, alone.p99))
    return (
        name,
        *(_seconds(value) for value, _ in pairs),
        *(_multiple(value, reference) for value, reference in pairs),
        _share(run.within(answer.target)),
        f"{run.goodput:,.0f}",
        f"{run.peak_at_server:,}",
    )


def _heads(widths: Sequence[int]) -> tuple[int, ...]:
    """Widths of the line above: one for the three latencies, one for the three multiples."""
    return widths[0], sum(widths[1:4]), sum(widths[4:7]), *widths[7:]


def _judged(p95: float, target: float) -> str:
    if not math.isfinite(p95):
        return f"With this scheduler {_LOST}, so that P95 is over the {target:.1f} s it is judged by"
    kept = "within" if p95 <= target else "over"
    return f"Interactive P95 with this scheduler is {_seconds(p95)}, {kept} the {target:.1f} s it is judged by"


def _gain(ours: float, unscheduled: float, alone: float) -> str:
    """Both P95s as multiples of the one without batch, as far as they are finite."""
    if math.inf == ours == unscheduled:
        return f"with and without it {_LOST}"
    if not math.isfinite(unscheduled):
        return f"P95 is {_p95(ours, alone)}, where without a scheduler {_LOST}"
    if not math.isfinite(ours):
        return f"{_LOST}, where without a scheduler P95 is {_p95(unscheduled, alone)}"
    if not 0 < alone < math.inf:
        return f"P95 is {_seconds(ours)} in place of {_seconds(unscheduled)}"
    return f"P95 is {_multiple(ours, alone)} in place of {_multiple(unscheduled, alone)} what it is without batch"


def _p95(value: float, alone: float) -> str:
    return f"{_multiple(value, alone)} what it is without batch" if 0 < alone < math.inf else _seconds(value)


def _price(ours: float, unscheduled: float) -> str:
    if not unscheduled:
        return f"batch gets {ours:,.0f} tokens/s in place of none"
    return f"batch gets {ours / unscheduled:.2f} x its tokens"


def _losses(run: RunResult) -> str:
    parts = [f"{count:,} {what}" for count, what in ((run.failed, "failed"), (run.unfinished, "never ended")) if count]
    return f" {' and '.join(parts)}." if parts else ""


def _batch_losses(answer: Answer) -> list[str]:
    """Arms in which batch calls failed: their tokens per second alone would look as if nothing had."""
    failed = [
        f"{run.batch_failed:,} of {run.batch_failed + len(run.batch):,} with {name}"
        for name, run in answer.arms.items()
        if run.batch_failed
    ]
    return [f"Batch calls that failed, their tokens not counted: {', '.join(failed)}."] if failed else []


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference and math.isfinite(reference) else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    if value < 1:
        return f"{value * 1e3:,.0f} ms"
    return f"{value:,.1f} s" if value < _WIDE else f"{value:,.0f} s"


def _multiple(value: float, reference: float) -> str:
    ratio = _ratio(value, reference)
    if not math.isfinite(ratio):
        return "-"
    return f"{ratio:,.1f} x" if ratio < _WIDE else f"{ratio:,.0f} x"


def _share(value: float) -> str:
    # Rounded down: 100 % means all of them.
    return f"{math.floor(1000 * value + 1e-9) / 10:.1f} %"
