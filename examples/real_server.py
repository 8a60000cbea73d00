"""Interactive chat beside an endless batch backlog, on a real LLM server: llama.cpp's, with 8 slots, on this machine.

    pip install '.[httpx,simulation]' xllamacpp gguf
    python examples/real_server.py --plot real.png          half an hour: six runs of each arm, in alternation
    python examples/real_server.py --quick                  half a minute, to see that it works; judges nothing
    python examples/real_server.py --model FILE.gguf        with a model that writes real text

The server needs no GPU: its tiny model has random weights, its text is nonsense, its timing is real. Two interactive
calls per second of 24 tokens beside batch calls of 96: with no scheduler, with a semaphore, with static caps on batch,
and with this scheduler, whose target is twice the P95 to first token that a first run without batch shows. What was to
be reached is printed with what was measured; judged are only runs as long, and as many, as the figures to quote need.

Exit status: 0, or 1 if a line that was judged is missed, 2 for input or a server that cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_server import llama_server, model_file

from llm_traffic_scheduler import AdaptivePolicy, TrafficScheduler
from llm_traffic_scheduler.simulation.arguments import (
    Parser,
    above_zero,
    output_file,
    picture,
    whole,
)
from llm_traffic_scheduler.simulation.layout import paragraph

if TYPE_CHECKING:
    from real_load import Arm, Run

__all__ = ["Measured", "Verdict", "main", "reach", "table"]

INSTALL: Final = "pip install '.[httpx,simulation]' xllamacpp gguf"
SLOTS: Final = 8
CAPS: Final = (1, 2, 4, 8)
NONE, UNSCHEDULED, STATIC, OURS, DEFAULT = (
    "no batch at all",
    "no scheduler",
    "static cap of",
    "this scheduler, ttft_target",
    "this scheduler, no target",
)
OF_THE_FLOOD, OF_THE_BEST_CAP, KEPT = 1 / 20, 1.2, 0.9


class Effort(NamedTuple):
    """Seconds that count in a run, runs of each arm, and batch calls that want to run at a time."""

    seconds: float
    rounds: int
    backlog: int


FULL: Final = Effort(20.0, 6, 64)  # what is less is not judged
QUICK: Final = Effort(2.0, 1, 16)


@dataclass
class Measured:
    """All runs of one arm. Latencies in seconds; a figure is the median of the runs' own."""

    name: str
    runs: list[Run] = field(default_factory=list)

    def first_token(self, share: float) -> float:
        """The nearest rank of `share`."""
        return median(run.first_token(share) for run in self.runs)

    @property
    def p95(self) -> float:
        return self.first_token(0.95)

    @property
    def batch_rate(self) -> float:
        """Batch tokens per second."""
        return median(run.batch_rate for run in self.runs)


@dataclass(frozen=True)
class Verdict:
    """What was to be reached, what was measured, and whether it was; None: not judged."""

    claim: str
    bound: str
    measured: str
    passed: bool | None

    def __str__(self) -> str:
        word = {True: "ok", False: "MISSED", None: "not judged"}[self.passed]
        return "\n".join(paragraph(f"{self.claim}: {self.bound}; measured {self.measured}", f"{word:12}"))


def arms(target: float, backlog: int, quick: bool) -> Iterator[Arm]:
    """Who shares the server, and how; one scheduler serves all runs of its arm, as it would serve a day."""
    from real_load import Arm

    learnt = TrafficScheduler(max_concurrency=SLOTS, policy=AdaptivePolicy(ttft_target=target))
    yield Arm(NONE, 0)
    yield Arm(f"{UNSCHEDULED}, {backlog} batch calls", backlog)
    yield Arm(f"semaphore of {SLOTS}", backlog, semaphore=SLOTS)
    for cap in CAPS[:1] if quick else CAPS:
        yield Arm(f"{STATIC} {cap}", cap)
    if not quick:
        yield Arm(DEFAULT, backlog, scheduler=TrafficScheduler(max_concurrency=SLOTS))
    yield Arm(f"{OURS} {target * 1e3:.0f} ms", backlog, scheduler=learnt)


async def measure(url: str, options: argparse.Namespace) -> tuple[list[Measured], list[float]]:
    """Every arm in each round, each round beginning with another one; and the machine's load after each."""
    from real_load import Arm, run

    target = options.target
    if target is None:
        alone = await run(url, Arm(NONE, 0), options.seconds, seed=0)
        target = 2 * alone.first_token(0.95)
    chosen = list(arms(target, options.backlog, options.quick))
    results, loads = {arm.name: Measured(arm.name) for arm in chosen}, list[float]()
    for number in range(options.rounds):
        first = number % len(chosen)
        for arm in (*chosen[first:], *chosen[:first]):
            results[arm.name].runs.append(await run(url, arm, options.seconds, seed=number + 1))
        loads.append(os.getloadavg()[0])
        print(f"round {number + 1} of {options.rounds}, load {loads[-1]:.1f}", file=sys.stderr, flush=True)
    return list(results.values()), loads


def _of(results: Sequence[Measured], name: str) -> Measured:
    return next(arm for arm in results if arm.name.startswith(name))


def table(results: Sequence[Measured]) -> str:
    """In Markdown."""
    flood = _of(results, UNSCHEDULED).batch_rate  # 0 where the machine had other things to do
    lines = ["| arm | first token P50 | P95 | P95, lowest and highest run | batch tokens/s | share of unscheduled |"]
    lines.append("|---|---|---|---|---|---|")
    for arm in results:
        p95s = [run.first_token(0.95) * 1e3 for run in arm.runs]
        cells = [arm.name, f"{arm.first_token(0.5) * 1e3:,.0f} ms", f"{arm.p95 * 1e3:,.0f} ms"]
        share = f"{arm.batch_rate / flood:.0%}" if flood else "-"
        cells += [f"{min(p95s):,.0f} to {max(p95s):,.0f} ms", f"{arm.batch_rate:,.0f}", share]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reach(results: Sequence[Measured], judged: bool) -> list[Verdict]:
    """The three clauses of what was to be reached."""
    flood, ours = _of(results, UNSCHEDULED), _of(results, OURS)
    keeping = [arm for arm in results if arm.name.startswith(STATIC) and arm.batch_rate >= KEPT * flood.batch_rate]
    best = min(keeping, key=lambda arm: arm.p95, default=None)
    of_the_flood, kept = ours.p95 / flood.p95, ours.batch_rate / (flood.batch_rate or nan)
    lines = [
        Verdict(
            f"interactive P95 to first token, as a share of that with {flood.name}",
            f"at most 1/{1 / OF_THE_FLOOD:.0f}",
            f"1/{1 / of_the_flood:.0f} ({ours.p95 * 1e3:,.0f} ms of {flood.p95 * 1e3:,.0f} ms)",
            of_the_flood <= OF_THE_FLOOD if judged else None,
        )
    ]
    claim = f"the same, as a multiple of the static cap's with the lowest P95 of those that keep {KEPT:.0%} of batch"
    if best is None:
        lines.append(Verdict(claim, f"at most {OF_THE_BEST_CAP:g}", "no static cap keeps that", None))
    else:
        multiple = ours.p95 / best.p95
        measured = f"{multiple:.2f} ({ours.p95 * 1e3:.0f} ms, {best.name} {best.p95 * 1e3:.0f} ms)"
        passed = multiple <= OF_THE_BEST_CAP if judged else None
        lines.append(Verdict(claim, f"at most {OF_THE_BEST_CAP:g}", measured, passed))
    rates = f"{kept:.3f} ({ours.batch_rate:,.0f} of {flood.batch_rate:,.0f} tokens/s)"
    claim = "batch tokens per second, as a share of the unscheduled ones"
    return [*lines, Verdict(claim, f"at least {KEPT:g}", rates, kept >= KEPT if judged else None)]


def parse(arguments: Sequence[str] | None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    seconds, rounds, backlog = (f"({full:g}; --quick: {quick:g})" for full, quick in zip(FULL, QUICK, strict=True))
    add("--quick", action="store_true", help="one short run of five arms; judges nothing")
    add("--seconds", type=above_zero, metavar="S", help=f"that count in a run {seconds}")
    add("--rounds", type=whole(1), metavar="N", help=f"runs of each arm {rounds}")
    add("--backlog", type=whole(1), metavar="N", help=f"batch calls that want to run at a time {backlog}")
    add("--target", type=above_zero, metavar="SECONDS", help="ttft_target (left out: twice the P95 without batch)")
    add("--model", type=model_file, metavar="FILE.gguf", help="in place of random weights")
    add("--plot", type=picture, metavar="FILE.png", help="draw it; needs matplotlib")
    add("--json", type=output_file, metavar="FILE", help="write every run")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    options.seconds = options.seconds or effort.seconds
    options.rounds = options.rounds or effort.rounds
    options.backlog = options.backlog or effort.backlog
    needed = ["httpx", "xllamacpp", *([] if options.model else ["gguf"]), *(["matplotlib"] if options.plot else [])]
    if absent := [name for name in needed if importlib.util.find_spec(name) is None]:
        parser.error(f"it needs {', '.join(absent)}: {INSTALL}")
    return parser, options


def as_json(results: Sequence[Measured], verdicts: Sequence[Verdict]) -> dict[str, object]:
    runs = {
        arm.name: [{"first_tokens": run.first_tokens, "batch_tokens_per_second": run.batch_rate} for run in arm.runs]
        for arm in results
    }
    return {"arms": runs, "reach": [vars(verdict) for verdict in verdicts]}


def show(results: Sequence[Measured], loads: Sequence[float], options: argparse.Namespace) -> int:
    load = f"load {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores"
    calls = f"{options.rounds} x {options.seconds:g} s of each arm, {load}"
    print(f"\nllama.cpp's server, {SLOTS} slots, {options.model or 'a tiny model of random weights'}; {calls}\n")
    print(table(results))
    judged = options.seconds >= FULL.seconds and options.rounds >= FULL.rounds and options.backlog >= FULL.backlog
    verdicts = reach(results, judged)
    print("\nWhat was to be reached\n" + "\n".join(map(str, verdicts)), flush=True)
    if options.json:
        options.json.write_text(json.dumps(as_json(results, verdicts)) + "\n", encoding="utf-8")
    if options.plot:
        from real_load import RATE
        from real_picture import draw

        calls = f"{RATE:g} interactive calls per second beside an endless batch backlog"
        draw(results, options.plot, title=f"{calls} on llama.cpp's server, {SLOTS} slots (measured)")
    return int(any(verdict.passed is False for verdict in verdicts))


def main(arguments: Sequence[str] | None = None) -> int:
    parser, options = parse(arguments)
    import httpx

    try:
        with llama_server(options.model, slots=SLOTS) as url:
            results, loads = asyncio.run(measure(url, options))
        return show(results, loads, options)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (httpx.HTTPError, OSError, RuntimeError) as fault:
        parser.error(str(fault) or type(fault).__name__)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
