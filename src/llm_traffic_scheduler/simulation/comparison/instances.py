"""The traffic that laws are compared on: ten shapes, as many instances of each as there are seeds.

Floor: fourth. Reads traces, if there are any.
Rates are those at which the A100 model is busy but not full without batch; the H100 model gets four times as much.
A seed fixes arrivals, lengths and the order of batch calls, so every arm sees the same (common random numbers). Of
recorded traffic there is only so much: its instances are four cuts, and from the fifth seed on they come again beside
another order of batch calls.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from ..batching_server import A100, H100, BatchingServer, Engine
from ..replay import builtin_lengths, paced
from ..runner import Clients, Workload
from ..shapes import Agents, burst, diurnal, gamma_gaps, sparse, square, steady
from ..traces import CallLength, RecordedCall, read_trace

__all__ = ["BURST", "ENGINES", "HEADLINE", "SHAPES", "Instance", "Shape", "shapes_in"]

ENGINES: Final[Mapping[str, tuple[Engine, float]]] = {"A100": (A100, 1.0), "H100": (H100, 4.0)}
"""By name: the engine, and its traffic as a multiple of the A100's."""

HEADLINE: Final = ("steady", "cv3", "chat")
_CUTS: Final = 4

Traffic = tuple[RecordedCall, ...] | Clients


@dataclass(frozen=True, slots=True)
class _Bursts:
    """When the shape `burst` bursts, in seconds: at the end of each `every`, for `length`."""

    every: float = 60.0
    length: float = 15.0

    def times(self, span: float) -> tuple[tuple[float, float], ...]:
        """Begin and end of each burst that is followed by calm within the span."""
        count = int(span / self.every)
        ends = [(number + 1) * self.every for number in range(count)]
        return tuple((end - self.length, end) for end in ends if end + self.every - self.length <= span)


BURST: Final = _Bursts()


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a shape; a small value, for other processes to build the workload from.

    `span` in seconds; `traces`: the directory with recorded traffic, None if there is none.
    """

    shape: str
    seed: int
    span: float
    engine: str = "A100"
    traces: Path | None = None

    @property
    def traffic(self) -> float:
        """The rate as a multiple of the A100's."""
        return ENGINES[self.engine][1]

    def workload(self, *, backlog: int) -> Workload:
        """The calls, the engine and the batch job."""
        interactive, span = _traffic(self)
        engine, _ = ENGINES[self.engine]
        return Workload(
            interactive=interactive,
            span=span,
            batch=_batch(self.seed),
            backlog=backlog,
            backend=partial(BatchingServer, engine),
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kind of traffic is called, what it is, and how an instance of it is made."""

    name: str
    story: str
    make: Callable[[Instance], tuple[Traffic, float]]
    trace: str | None = None  # the file it comes from


def shapes_in(traces: Path | None) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The shapes that can be run with the traces in this directory, and those that lack theirs."""
    there = {
        name: shape
        for name, shape in SHAPES.items()
        if shape.trace is None or (traces is not None and (traces / shape.trace).is_file())
    }
    return there, {name: shape for name, shape in SHAPES.items() if name not in there}


def _steady(instance: Instance) -> tuple[Traffic, float]:
    return steady(rate=2.5 * instance.traffic, span=instance.span, seed=instance.seed), instance.span


def _gamma(cv: float, instance: Instance) -> tuple[Traffic, float]:
    return gamma_gaps(rate=2.5 * instance.traffic, cv=cv, span=instance.span, seed=instance.seed), instance.span


def _square(instance: Instance) -> tuple[Traffic, float]:
    times, span = instance.traffic, instance.span
    return square(low=1.0 * times, high=4.0 * times, period=30.0, span=span, seed=instance.seed), span


def _burst(instance: Instance) -> tuple[Traffic, float]:
    times, span = instance.traffic, instance.span
    every, length = BURST.every, BURST.length
    return burst(low=0.3 * times, high=5.0 * times, every=every, length=length, span=span, seed=instance.seed), span


def _sparse(instance: Instance) -> tuple[Traffic, float]:
    return sparse(gap=20.0 / instance.traffic, span=instance.span, seed=instance.seed), instance.span


def _diurnal(instance: Instance) -> tuple[Traffic, float]:
    times, span = instance.traffic, instance.span
    return diurnal(low=0.5 * times, high=4.0 * times, day=span, span=span, seed=instance.seed), span


def _agents(instance: Instance) -> tuple[Traffic, float]:
    return Agents(number=round(24 * instance.traffic), think=6.0, seed=instance.seed), instance.span


def _chat(instance: Instance) -> tuple[Traffic, float]:
    return _cut(instance, "AzureLLMInferenceTrace_conv.csv", 0.5)


def _lmsys(instance: Instance) -> tuple[Traffic, float]:
    return _cut(instance, "lmsys_arena_vtc.csv", 1.0)


def _cut(instance: Instance, file: str, speed: float) -> tuple[Traffic, float]:
    """A part of the trace, `span` long or all there is; cuts are spread evenly over the trace."""
    assert instance.traces is not None
    calls = paced(_trace(instance.traces / file), speed=speed * instance.traffic)
    whole = calls[-1].arrival
    span = min(instance.span, whole)
    begin = (whole - span) * (instance.seed % _CUTS) / (_CUTS - 1)
    cut = [call for call in calls if begin <= call.arrival <= begin + span]
    return tuple(RecordedCall(call.arrival - begin, call.length, call.client) for call in cut), span


SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("steady", "Poisson arrivals, 2.5 calls/s", _steady),
        Shape("cv3", "gamma gaps with a CV of 3, 2.5 calls/s", partial(_gamma, 3.0)),
        Shape("chat", "recorded chat (Azure), half speed", _chat, "AzureLLMInferenceTrace_conv.csv"),
        Shape("square", "15 s of 1 call/s, 15 s of 4 calls/s, in turns", _square),
        Shape("burst", "0.3 calls/s, and 5 calls/s in the last 15 s of each minute", _burst),
        Shape("sparse", "one call every 20 s", _sparse),
        Shape("diurnal", "a day in one run, 0.5 to 4 calls/s", _diurnal),
        Shape("cv5", "gamma gaps with a CV of 5, 2.5 calls/s", partial(_gamma, 5.0)),
        Shape("agents", "24 agents that wait for each answer and think for 6 s", _agents),
        Shape("lmsys", "recorded arena traffic (LMSYS), 10 minutes", _lmsys, "lmsys_arena_vtc.csv"),
    )
}


# Built once for all arms of an instance: a worker is given them one instance after the other.
@lru_cache(maxsize=2)
def _traffic(instance: Instance) -> tuple[Traffic, float]:
    return SHAPES[instance.shape].make(instance)


@lru_cache(maxsize=2)
def _trace(path: Path) -> tuple[RecordedCall, ...]:
    return read_trace(path)


@lru_cache(maxsize=2)
def _batch(seed: int) -> tuple[CallLength, ...]:
    lengths = list(builtin_lengths())
    random.Random(seed).shuffle(lengths)
    return tuple(lengths)
