"""Which control law gives batch work most, at the same interactive latency? A ranking without favour.

    python examples/compare_policies.py --plot pareto.png --json pareto.json    two and a half minutes of one core
    python examples/compare_policies.py --full                                  everything, hours

Every law is a curve, not a point: it runs at many settings, on the same simulated calls, and the best of its settings
counts at each interactive P95, in hindsight. AdaptivePolicy, which learns its setting, is shown at the targets it was
given. What was to be reached is printed with what was measured, and so is every arm that is ahead anywhere.
Simulated: good for ranking policies, not for absolute GPU figures.

Recorded shapes (chat, lmsys) need the files AzureLLMInferenceTrace_conv.csv and lmsys_arena_vtc.csv in --traces;
without them they are left out, and it says so.

Exit status: 0, or 1 if a line that was run is missed in a run long enough to judge (4 instances of 30 minutes, every
setting), 2 for input that cannot be used.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import TraceError, comparison
from llm_traffic_scheduler.simulation.arguments import Parser, missing_matplotlib, output_file, picture, whole
from llm_traffic_scheduler.simulation.progress import progress_bar

TRACES: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
SECONDS_PER_MINUTE: Final = 0.05  # of a core for a simulated one: 118 runs of 4 minutes took 22 s
ARMS: Final = {
    "all": None,
    "headline": tuple(family for opponent in comparison.OPPONENTS for family in opponent.families),
    "ours": (),
}
SHORT: Final = ("steady", "cv3", "chat", "burst")


def minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 24 * 60:
        raise argparse.ArgumentTypeError(f"must be a number of minutes from 1 to 1440, got {text!r}")
    return value


def names(known: Sequence[str], text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


def shapes(text: str) -> tuple[str, ...]:
    return names(tuple(comparison.SHAPES), text)


def engines(text: str) -> tuple[str, ...]:
    return names(tuple(comparison.ENGINES), text)


def parse(arguments: Sequence[str] | None) -> tuple[Parser, argparse.Namespace]:
    stories = "\n".join(f"  {shape.name:10}{shape.story}" for shape in comparison.SHAPES.values())
    parser = Parser(
        description=__doc__, epilog=f"shapes:\n{stories}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--full", action="store_true", help="ten instances of 30 minutes, all shapes and settings, and the H100 model")
    add("--shapes", type=shapes, metavar="A,B", help=f"some of the shapes below ({','.join(SHORT)}; --full: all)")
    add("--seeds", type=whole(1), metavar="N", help="instances of each shape (1; --full: 10); figures to quote need 4")
    add("--minutes", type=minutes, metavar="M", help="length of an instance (10; --full: 30)")
    add("--all-settings", action="store_true", help="not only every second setting of each sweep (--full: all)")
    add("--arms", choices=ARMS, default="all", help="headline: those that a line to reach is about; ours: no others")
    add("--engines", type=engines, metavar="A,B", help="A100, H100, or both with a comma (A100; --full: both)")
    add("--max-concurrency", type=whole(1), default=128, metavar="N", help="the cap (128)")
    add("--batch-max", type=whole(1), default=64, metavar="N", help="batch calls at a time, at most (64)")
    add("--traces", type=Path, metavar="DIR", help="recorded traffic (../shared/traces, if it is there)")
    add("--jobs", type=whole(1), metavar="N", help="processes (one per core)")
    add("--json", type=output_file, metavar="FILE", help="write every run of every arm as JSON")
    add("--plot", type=picture, metavar="FILE.png", help="draw P95 against goodput; needs matplotlib")
    options = parser.parse_args(arguments)
    if options.batch_max >= options.max_concurrency:
        parser.error(f"--batch-max ({options.batch_max}) must be below --max-concurrency ({options.max_concurrency})")
    if options.traces and not options.traces.is_dir():
        parser.error(f"--traces: {options.traces} is not a directory")
    if options.plot and (message := missing_matplotlib()):
        parser.error(message)
    return parser, options


def plan(options: argparse.Namespace) -> comparison.Plan:
    full = options.full
    traces = options.traces or (TRACES if TRACES.is_dir() else None)
    wanted = options.shapes or (tuple(comparison.SHAPES) if full else SHORT)
    there, missing = comparison.shapes_in(traces)
    for name in wanted:
        if name in missing:
            print(f"left out: {name}, for want of {missing[name].trace} in {traces or '--traces'}", flush=True)
    return comparison.Plan(
        shapes=tuple(name for name in wanted if name in there),
        seeds=options.seeds or (10 if full else 1),
        span=60 * (options.minutes or (30 if full else 10)),
        engines=options.engines or (tuple(comparison.ENGINES) if full else ("A100",)),
        thin=not (full or options.all_settings),
        families=ARMS[options.arms],
        room=comparison.Room(options.max_concurrency, options.batch_max),
        traces=traces,
        jobs=options.jobs,
    )


def announcement(chosen: comparison.Plan) -> str:
    """How much there is to wait for, as nothing else is heard of it where stderr is not a terminal."""
    length = chosen.span / 60
    core = chosen.most_runs * length * SECONDS_PER_MINUTE / 60
    lasts = (
        f"roughly {core:,.0f} minutes" if core >= 1.5 else "roughly a minute" if core > 0.5 else "less than a minute"
    )
    at_most = "at most " if chosen.seeds > 1 else ""
    return f"{at_most}{chosen.most_runs:,} runs of {length:g} simulated minutes: {lasts} of one core"


def main(arguments: Sequence[str] | None = None) -> int:
    parser, options = parse(arguments)
    try:
        chosen = plan(options)
        if not chosen.cells:
            parser.error("nothing to run: no shape is left (the H100 model runs steady, cv3 and chat)")
        print(announcement(chosen), file=sys.stderr, flush=True)
        return show(chosen, options)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BrokenProcessPool:
        parser.error("a process of the comparison was killed, or out of memory: --jobs 1 needs least")
    except (TraceError, ConfigError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


def show(chosen: comparison.Plan, options: argparse.Namespace) -> int:
    result = comparison.study(chosen, progress_bar)
    lines = comparison.reach(result)
    print(comparison.study_text(result, lines), flush=True)
    if options.json:
        options.json.write_text(json.dumps(comparison.study_json(result, lines)) + "\n", encoding="utf-8")
    if options.plot:
        from llm_traffic_scheduler.simulation.comparison.picture import draw_study

        draw_study(result, options.plot)
    return int(chosen.quotable and any(line.passed is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
