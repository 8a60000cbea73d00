"""What can be typed, what it means together, and what is refused in one line.

Floor: fourth. Reads no files; writes none.
"""

import argparse
import contextlib
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .arguments import Parser, above_zero, missing_matplotlib, output_file, picture, whole
from .choices import BACKENDS, FAULTS, POLICIES, SHAPES

__all__ = ["parse"]

_ABOUT: Final = """\
What a policy would have done to your traffic: how long interactive calls take, and how much batch work
is done, beside the same traffic without batch, no scheduler, a semaphore, a fixed split between the two
kinds, and the fixed split at the policy's mean, which nobody knows beforehand. The backend is simulated;
with a trace or a shape the clock is too.

without arguments: two small scenarios and a verdict, in real time, about 20 seconds
--trace FILE and no option of the group "policy" below (--speed, --until, --batch, --json and --plot may come with
  it): a replay of the pressure law, its threshold 2.5 x the P95 that a first pass measures without batch
--trace FILE and any option of the group "policy": a what-if, what that policy would have done; where --policy is left
  out, that is adaptive
--shape NAME: always a what-if"""
_FILES: Final = """\
columns of --trace, told apart by the header; more columns do no harm:
  TIMESTAMP, ContextTokens, GeneratedTokens      as in Azure's public traces of LLM inference
  arrival_s, prompt_tokens, output_tokens        and, if there, client
columns of --batch: num_prefill_tokens, num_decode_tokens, or those of a trace, whose arrivals do not matter"""
_EXAMPLES: Final = """\
examples:
  {prog} --trace monday.csv --policy adaptive --p95-target 12
  {prog} --trace monday.csv --speed 0.5 --until 600 --policy pressure --p95-threshold 8
  {prog} --shape burst --rate 1 --span 1200 --policy aimd --p95-target 6 --plot bursts.png
  {prog} --shape steady --backend hosted --fault retry-after:200-260

exit status: 0, or 1 if a criterion fails (with traffic: if the cap is broken), 2 for input that cannot be used"""


def parse(arguments: Sequence[str] | None, prog: str) -> tuple[Parser, argparse.Namespace]:
    """The options, checked as far as can be without reading a file. `what_if` says whether a policy is asked about."""
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    given = {action.dest for action in parser._actions if getattr(options, action.dest, None) is not None}
    about_policies = given & {action.dest for action in _group(parser, "policy")._group_actions}
    options.what_if = bool(options.shape or about_policies)
    if message := _nonsense(options, given):
        parser.error(message)
    return parser, options


def _parser(prog: str) -> Parser:
    formatter = argparse.RawDescriptionHelpFormatter
    usage = f"{prog} [--trace FILE | --shape NAME] [options]"
    parser = Parser(prog=prog, usage=usage, description=_ABOUT, epilog=_more(prog), formatter_class=formatter)
    _add_traffic(parser.add_argument_group("traffic"))
    _add_policy(parser.add_argument_group("policy"))
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=output_file, metavar="FILE", help="write all results as JSON")
    out.add_argument("--plot", type=picture, metavar="FILE.png", help="draw a picture; needs matplotlib")
    return parser


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", metavar="FILE", help="recorded traffic, CSV: replayed as interactive calls")
    group.add_argument("--shape", choices=SHAPES, metavar="NAME", help="made-up traffic; names below")
    group.add_argument("--batch", metavar="FILE", help="CSV with the lengths of batch calls; left out: built-in ones")
    group.add_argument("--speed", type=above_zero, metavar="X", help="0.5 halves the arrival rate of a trace (1)")
    group.add_argument("--until", type=above_zero, metavar="SECONDS", help="cut a trace at this simulated time")
    group.add_argument(
        "--rate",
        type=above_zero,
        metavar="X",
        help="calls per second of a shape on average (2; burst: 1.5, sparse: 0.05)",
    )
    group.add_argument("--span", type=above_zero, metavar="SECONDS", help="how long a shape lasts (600)")
    group.add_argument(
        "--seed", type=whole(0), metavar="N", help="of the random numbers of a shape or --backend hosted (0)"
    )
    group.add_argument("--cv", type=above_zero, metavar="X", help="of the gaps of --shape gamma: 1 is Poisson (3)")


def _add_policy(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policy", choices=POLICIES, metavar="NAME", help="names below; left out: adaptive in a what-if (above)"
    )
    group.add_argument(
        "--p95-target",
        type=above_zero,
        metavar="SECONDS",
        help="what interactive P95 is judged by; adaptive and aimd steer by it (1.5 x the P95 without batch; for"
        " pressure its threshold)",
    )
    group.add_argument(
        "--p95-threshold",
        type=above_zero,
        metavar="SECONDS",
        help="of the pressure law (2.5 x the P95 without batch, unless --rps-threshold is given)",
    )
    group.add_argument("--rps-threshold", type=above_zero, metavar="X", help="of the pressure law, calls per second")
    group.add_argument("--limit", type=whole(1), metavar="N", help="of the policies fixed and total")
    group.add_argument("--backend", choices=BACKENDS, metavar="NAME", help="names below (a100)")
    group.add_argument("--max-concurrency", type=whole(2), metavar="N", help="calls at the backend, at most (128)")
    group.add_argument("--batch-max", type=whole(1), metavar="N", help="batch calls, at most (64)")
    group.add_argument("--batch-min", type=whole(1), metavar="N", help="batch calls, even at the peak (1)")
    group.add_argument("--window", type=above_zero, metavar="SECONDS", help="over which P95 is taken (10)")
    group.add_argument(
        "--fault",
        type=_fault,
        metavar="NAME[:FROM-UNTIL]",
        help="what goes wrong, names below, and when, in seconds (from half of the time on for a tenth of it)",
    )


def _nonsense(options: argparse.Namespace, given: set[str]) -> str | None:
    """Why these options do not go together; None if they do."""
    policy = options.policy or "adaptive"
    return (
        _mixed_sources(options, given)
        or _wrong_policy(given, policy)
        or next(filter(None, (_overwritten(options, output) for output in (options.json, options.plot))), None)
        or (missing_matplotlib() if options.plot else None)
    )


def _mixed_sources(options: argparse.Namespace, given: set[str]) -> str | None:
    if options.trace and options.shape:
        return "--trace and --shape do not go together: one traffic at a time"
    for name in ("speed", "until"):
        if name in given and not options.trace:
            return f"--{name} goes with --trace FILE"
    for name in ("rate", "span", "cv"):
        if name in given and not options.shape:
            return f"--{name} goes with --shape NAME"
    if options.seed is not None and not options.shape and options.backend != "hosted":
        return "--seed goes with --shape NAME or --backend hosted"
    if options.cv is not None and options.shape != "gamma":
        return "--cv goes with --shape gamma"
    if not options.trace and not options.shape and (needless := sorted(given - {"json", "plot", "help"})):
        return f"--{needless[0].replace('_', '-')} goes with --trace FILE or --shape NAME"
    return None


def _wrong_policy(given: set[str], policy: str) -> str | None:
    if "limit" in given and policy not in ("fixed", "total"):
        return f"--limit goes with --policy fixed or total, not {policy}"
    if "limit" not in given and policy in ("fixed", "total"):
        return f"--policy {policy} needs --limit N"
    for name in ("p95_threshold", "rps_threshold"):
        if name in given and policy != "pressure":
            return f"--{name.replace('_', '-')} goes with --policy pressure, not {policy}"
    return None


def _overwritten(options: argparse.Namespace, output: Path | None) -> str | None:
    inputs = [name for name in (options.trace, options.batch) if name]
    if output and any(output.exists() and output.samefile(name) for name in inputs):
        return f"{output} is an input and would be overwritten"
    return None


def _group(parser: Parser, name: str) -> argparse._ArgumentGroup:
    return next(group for group in parser._action_groups if group.title == name)


def _more(prog: str) -> str:
    """What comes after the options: the names that they take, examples, and files."""
    backends = {name: choice.about for name, choice in BACKENDS.items()}
    tables = {
        "shapes": {name: about for name, (about, _) in SHAPES.items()},
        "policies": {name: about for name, (about, _) in POLICIES.items()},
        "backends, simulated": backends,
        "faults": {name: about for name, (about, _) in FAULTS.items()},
    }
    lines = [f"{title}:\n" + "\n".join(_entry(*entry) for entry in table.items()) for title, table in tables.items()]
    return "\n\n".join((*lines, _FILES, _EXAMPLES.replace("{prog}", prog)))


def _entry(name: str, about: str) -> str:
    return textwrap.fill(about, 100, initial_indent=f"  {name:<14}", subsequent_indent=" " * 16)


def _fault(text: str) -> tuple[str, float | None, float | None]:
    """The name of a fault, and from when to when it holds, if that is said."""
    name, colon, times = text.partition(":")
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(FAULTS)}, got {name!r}")
    if not colon:
        return name, None, None
    with contextlib.suppress(ValueError):
        start, until = map(float, times.split("-"))
        if 0 <= start < until < math.inf:
            return name, start, until
    raise argparse.ArgumentTypeError(f"times must be two numbers such as {name}:300-360, got {times!r}")
