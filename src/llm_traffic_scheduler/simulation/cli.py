"""The command line: which of three things is asked for, its output, its exit status.

Floor: fourth. `python -m llm_traffic_scheduler.simulation`, and examples/simulate.py.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_traffic_scheduler import ConfigError, simulation

from .asking import batch_of, question_of, trace_of
from .layout import plain
from .options import parse
from .progress import progress_bar

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, prog: str) -> int:
    """Do what `arguments` say (None: those of the process) and return the exit status; bad input exits with 2."""
    parser, options = parse(arguments, prog)
    try:
        if options.what_if:
            passed = _show_what_if(options)
        else:
            passed = _show_replay(options) if options.trace else _show_scenarios(options)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (simulation.TraceError, ConfigError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    return 0 if passed else 1


def _show_scenarios(options: argparse.Namespace) -> bool:
    _say("Two scenarios and a variant in real time; every arm gets the same calls and has a server of its own.")
    runs = []
    for scenario in simulation.SCENARIOS:
        with progress_bar(scenario.name) as progress:
            run = asyncio.run(simulation.run_scenario(scenario, progress=progress))
        _say(simulation.scenario_text(run))
        runs.append(run)
    criteria = simulation.judge(runs)
    _say(simulation.verdict_text(criteria))
    _say("\nThe same on recorded traffic, where the limit has more to do: --trace FILE")
    _write_json(options.json, simulation.scenarios_json(runs, criteria))
    if options.plot:
        from .plot import draw_scenarios

        draw_scenarios(runs, options.plot)
    return all(criterion.passed for criterion in criteria)


def _show_replay(options: argparse.Namespace) -> bool:
    traffic, source = trace_of(options)
    lengths, batch_source = batch_of(options)
    with progress_bar("replaying") as progress:
        result = simulation.replay(traffic, lengths, progress=progress)
    _say(simulation.replay_text(result, source, batch_source))
    _write_json(options.json, simulation.replay_json(result, source, batch_source))
    if options.plot:
        from .plot import draw_replay

        draw_replay(result, options.plot)
    return result.ours.peak_at_server <= result.setup.max_concurrency


def _show_what_if(options: argparse.Namespace) -> bool:
    question, sources = question_of(options)
    with progress_bar("simulating") as progress:
        answer = simulation.what_if(question, progress=progress)
    _say(simulation.answer_text(answer, sources))
    _write_json(options.json, simulation.answer_json(answer, sources))
    if options.plot:
        from .plot import draw_answer

        draw_answer(answer, options.plot)
    return answer.cap_kept


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        print(plain(text).encode("ascii", "replace").decode(), flush=True)


def _write_json(path: Path | None, content: Mapping[str, object]) -> None:
    if path:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
