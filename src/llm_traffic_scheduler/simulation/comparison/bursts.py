"""How fast an arm gets out of the way of a burst, and how fast it comes back.

Floor: fourth. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ..recording import Sample
from ..results import BatchCall, RunResult
from .instances import BURST

__all__ = ["Burst", "bursts_of", "throughput"]

_BEFORE: Final = 15.0  # seconds before a burst that stand for calm
_YIELDED: Final = 0.75
_RECOVERED: Final = 0.8


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds; infinite for what did not happen.

    Attributes:
        yielded: from the begin of the burst until a quarter fewer batch calls run than on average in the 15 s before.
        recovered: from its end until batch throughput is 80 % of that in the 15 s before the burst.
    """

    yielded: float
    recovered: float


def bursts_of(run: RunResult) -> tuple[Burst, ...]:
    """One for each burst of the shape `burst` that is followed by calm within the span."""
    times = BURST.times(run.span)
    rates = throughput(run.batch, run.span)
    return tuple(
        Burst(_yielded(run.samples, begin, end), _recovered(rates, begin, end, BURST.every - BURST.length))
        for begin, end in times
    )


def throughput(batch: Sequence[BatchCall], span: float) -> list[float]:
    """Batch tokens per second in each whole second of the span, a call's tokens spread evenly over its time there.

    By completions alone, ten calls of ten seconds each would say nothing about the second in which they began.
    """
    seconds = math.ceil(span)
    slopes = [0.0] * (seconds + 2)  # second differences: each call adds a ramp where it begins and where it ends
    for call in batch:
        rate = call.tokens / max(1e-9, call.ended - call.started)
        for time, change in ((call.started, rate), (call.ended, -rate)):
            second = int(time)
            if second < seconds:
                part = time - second
                slopes[second] += change * (1 - part)
                slopes[second + 1] += change * part
    rates, rate = [], 0.0
    for second in range(seconds):
        rate += slopes[second]
        rates.append(rate)
    return rates


def _yielded(samples: Sequence[Sample], begin: float, end: float) -> float:
    calm = [sample.batch for sample in samples if begin - _BEFORE <= sample.time < begin]
    if not calm:
        return math.inf
    few = _YIELDED * fmean(calm)
    return next(
        (sample.time - begin for sample in samples if begin <= sample.time < end and sample.batch <= few), math.inf
    )


def _recovered(rates: Sequence[float], begin: float, end: float, calm: float) -> float:
    before = fmean(rates[int(begin - _BEFORE) : int(begin)])
    after = range(int(end), min(len(rates), int(end + calm)))
    return next((second + 1 - end for second in after if rates[second] >= _RECOVERED * before), math.inf)
