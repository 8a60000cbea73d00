"""What the scheduler does, on made-up traffic in real time or on recorded traffic in virtual time.

    python examples/simulate.py                                   about 20 seconds, all arms side by side
    python examples/simulate.py --trace traffic.csv --speed 0.5   hours of traffic in half a minute

Columns of --trace, told apart by the header; more columns do no harm:
    TIMESTAMP, ContextTokens, GeneratedTokens      as in Azure's public traces of LLM inference
    arrival_s, prompt_tokens, output_tokens        and, if there, client
Columns of --batch: num_prefill_tokens, num_decode_tokens, or those of a trace, whose arrivals do not matter.

Exit status: 0, or 1 if a criterion fails (a replay: if the cap is broken), 2 for input that cannot be used.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from llm_traffic_scheduler import simulation
from llm_traffic_scheduler.simulation.progress import progress_bar

PICTURES: Final = (".png", ".svg", ".pdf")
BUILTIN: Final = "built-in lengths (prompts of 1000 to 4000 tokens, answers of 100 to 500, uniform)"


class Parser(argparse.ArgumentParser):
    """One line for bad input, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def above_zero(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"must be a finite number above 0, got {text!r}")


def output_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: no such directory, or not a file that may be written")
    return path


def picture(text: str) -> Path:
    path = output_file(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(PICTURES)}, got {text!r}")
    return path


def parse(arguments: Sequence[str] | None) -> tuple[Parser, argparse.Namespace]:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", metavar="FILE", help="recorded traffic, CSV: replayed as interactive calls")
    parser.add_argument("--batch", metavar="FILE", help="CSV with the lengths of batch calls; left out: built-in ones")
    parser.add_argument("--speed", type=above_zero, metavar="X", help="0.5 halves the arrival rate (1)")
    parser.add_argument("--until", type=above_zero, metavar="SECONDS", help="cut the trace at this simulated time")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="draw a picture; needs matplotlib")
    options = parser.parse_args(arguments)
    needless = [name for name in ("batch", "speed", "until") if getattr(options, name) is not None]
    if needless and not options.trace:
        parser.error(f"--{needless[0]} goes with --trace FILE")
    for output in filter(None, (options.json, options.plot)):
        if any(output.exists() and output.samefile(name) for name in (options.trace, options.batch) if name):
            parser.error(f"{output} is an input and would be overwritten")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'llm-traffic-scheduler[simulation]'")
    return parser, options


def show_scenarios(options: argparse.Namespace) -> bool:
    print("Two scenarios and a variant in real time; every arm gets the same calls and has a server of its own.")
    runs = []
    for scenario in simulation.SCENARIOS:
        with progress_bar(scenario.name) as progress:
            run = asyncio.run(simulation.run_scenario(scenario, progress=progress))
        say(simulation.scenario_text(run))
        runs.append(run)
    criteria = simulation.judge(runs)
    say(simulation.verdict_text(criteria))
    say("\nThe same on recorded traffic, where the limit has more to do: --trace FILE")
    write_json(options.json, simulation.scenarios_json(runs, criteria))
    if options.plot:
        from llm_traffic_scheduler.simulation.plot import draw_scenarios

        draw_scenarios(runs, options.plot)
    return all(criterion.passed for criterion in criteria)


def show_replay(options: argparse.Namespace) -> bool:
    speed = options.speed or 1.0
    traffic = simulation.paced(simulation.read_trace(options.trace), speed=speed, until=options.until)
    lengths = simulation.read_lengths(options.batch) if options.batch else simulation.builtin_lengths()
    source = f"{Path(options.trace).name} at speed {speed:g}"
    batch_source = f"lengths of {Path(options.batch).name}" if options.batch else BUILTIN
    with progress_bar("replaying") as progress:
        result = simulation.replay(traffic, lengths, progress=progress)
    say(simulation.replay_text(result, source, batch_source))
    write_json(options.json, simulation.replay_json(result, source, batch_source))
    if options.plot:
        from llm_traffic_scheduler.simulation.plot import draw_replay

        draw_replay(result, options.plot)
    return result.ours.peak_at_server <= result.setup.max_concurrency


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        print(simulation.plain(text).encode("ascii", "replace").decode(), flush=True)


def write_json(path: Path | None, content: Mapping[str, object]) -> None:
    if path:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser, options = parse(arguments)
    try:
        passed = show_replay(options) if options.trace else show_scenarios(options)
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (simulation.TraceError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
