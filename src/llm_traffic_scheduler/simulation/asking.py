"""From what was typed to the question it asks, and where its traffic, batch and backend come from.

Floor: fourth. Reads traces.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from llm_traffic_scheduler import ConfigError, LimitPolicy

from .backend import Backend
from .choices import BACKENDS, FAULTS, POLICIES, SHAPES, Aims, Drawn, Traffic
from .replay import builtin_lengths, paced
from .traces import CallLength, RecordedCall, read_lengths, read_trace
from .what_if import Question

__all__ = ["BUILTIN", "batch_of", "question_of", "trace_of"]

BUILTIN: Final = "built-in lengths (prompts of 1000 to 4000 tokens, answers of 100 to 500, uniform)"
_CHAT: Final = (
    "built-in lengths (lognormal, with median and P95 of recorded chat: prompts 1020, 4083, answers 129, 451)"
)
_TARGET_FACTOR: Final = 1.5
_THRESHOLD_FACTOR: Final = 2.5


def trace_of(options: argparse.Namespace) -> tuple[tuple[RecordedCall, ...], str]:
    """The trace as it is to be replayed, and its name.

    Raises: `TraceError`, as for `read_trace`.
    """
    speed = options.speed or 1.0
    traffic = paced(read_trace(options.trace), speed=speed, until=options.until)
    return traffic, f"{Path(options.trace).name} at speed {speed:g}"


def batch_of(options: argparse.Namespace) -> tuple[tuple[CallLength, ...], str]:
    """The lengths of batch calls, and where they are from.

    Raises: `TraceError`, as for `read_lengths`.
    """
    if options.batch:
        return read_lengths(options.batch), f"lengths of {Path(options.batch).name}"
    return builtin_lengths(), BUILTIN


def question_of(options: argparse.Namespace) -> tuple[Question, list[str]]:
    """The question, and in words what it is about.

    Raises: `TraceError` for a file that cannot be used, `ConfigError` for a shape that cannot be, or for a fault after
    the end.
    """
    traffic, span, source = _traffic(options)
    batch, batch_source = batch_of(options)
    choice, seed = BACKENDS[options.backend or "a100"], options.seed or 0
    healthy = partial(choice.make, seed)
    held = _fault_time(options, span)
    backend, fault = _with_fault(options, healthy, held)
    question = Question(
        interactive=traffic,
        span=span,
        batch=batch,
        policy=partial(_policy, options),
        target=partial(_target, options),
        backend=backend,
        healthy=healthy,
        fault=held,
        most_tokens=choice.most_tokens,
        max_concurrency=_or(options.max_concurrency, 128),
        batch_max=_or(options.batch_max, 64),
        batch_min=_or(options.batch_min, 1),
        window=options.window or 10.0,
    )
    sources = [
        f"Interactive: {source}.",
        f"Batch: {question.backlog} calls submitted at all times; {batch_source}.",
        f"Backend: {choice.about}.",
        *([fault] if fault else []),
    ]
    return question, sources


def _traffic(options: argparse.Namespace) -> tuple[Traffic, float, str]:
    traffic: Traffic
    if options.trace:
        traffic, name = trace_of(options)
        span = traffic[-1].arrival
    else:
        about, make = SHAPES[options.shape]
        drawn = Drawn(rate=options.rate, span=options.span or 600.0, seed=options.seed or 0, cv=options.cv or 3.0)
        traffic, span = make(drawn), drawn.span
        name = f"{options.shape} ({about}), seed {drawn.seed}, {_CHAT}"
    if isinstance(traffic, tuple):
        rate = f", {len(traffic) / span:.2g} per second" if span else ""
        name = f"{name}: {len(traffic):,} calls in {span:,.0f} s{rate}"
    return traffic, span, name


def _fault_time(options: argparse.Namespace, span: float) -> tuple[float, float] | None:
    if options.fault is None:
        return None
    name, start, until = options.fault
    if start is None:
        start, until = 0.5 * span, 0.6 * span
    if not start < span:
        # Said of a fault that nobody meets, its figures would be read as if all had survived it.
        raise ConfigError(
            f"--fault {name} begins at {start:g} s, but the simulated time ends at {span:g} s: let it begin before that"
        )
    return start, until


def _with_fault(
    options: argparse.Namespace, healthy: Callable[[], Backend], held: tuple[float, float] | None
) -> tuple[Callable[[], Backend], str]:
    if held is None:
        return healthy, ""
    about, make = FAULTS[options.fault[0]]
    start, until = held
    text = f"Fault from {start:g} s to {until:g} s, not in the pass without batch: {about}."
    return lambda: make(healthy(), start=start, until=until), text


def _policy(options: argparse.Namespace, p95_alone: float) -> LimitPolicy:
    threshold = options.p95_threshold
    if options.policy == "pressure" and threshold is None and options.rps_threshold is None:
        threshold = _times(_THRESHOLD_FACTOR, p95_alone)
    aims = Aims(
        p95_target=_target(options, p95_alone),
        p95_threshold=threshold,
        rps_threshold=options.rps_threshold,
        limit=options.limit or 1,
    )
    return POLICIES[options.policy or "adaptive"][1](aims)


def _target(options: argparse.Namespace, p95_alone: float) -> float:
    factor = _THRESHOLD_FACTOR if options.policy == "pressure" else _TARGET_FACTOR
    return float(options.p95_target or options.p95_threshold or _times(factor, p95_alone))


def _times(factor: float, p95_alone: float) -> float:
    if not 0 < p95_alone < math.inf:
        raise ConfigError(
            "without batch there is no interactive P95 to take a target from: none ended, or more than 5 % did not;"
            " give --p95-target SECONDS"
        )
    return factor * p95_alone


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
