"""How latencies are counted, and what their percentiles are.

Floor: ground. Arithmetic only.
Algorithm: log-linear buckets as in HdrHistogram (Tene 2012): 64 of equal width in every octave.
A percentile finds its octave among the few that hold anything, then its bucket among 64, so it
costs the same for ten samples as for a hundred thousand.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["Histogram", "bucket_of", "count", "value_of"]

# A double is a sign, 11 bits of exponent, biased by 1023, and 52 of fraction. Read as an integer and
# shifted right by 46 it is the number of its octave and, in the low 6 bits, of one of 64 steps in it.
_STEPS: Final = 64
_STEP_BITS: Final = 6
_SHIFT: Final = 52 - _STEP_BITS
_BIAS: Final = 1023
_STRIDE: Final = 8  # square root of the steps: a search by whole strides, then one by one


def count(latencies: Sequence[float]) -> dict[int, int]:
    """How many of `latencies` (seconds) fall in each bucket.

    Bits in place of `log`: 0.1 against 0.2 to 0.4 microseconds each, and no latency is out of range.
    """
    if len(latencies) == 1:
        return {bucket_of(latencies[0]): 1}
    patterns = array("q", array("d", latencies).tobytes())
    return dict(Counter([pattern >> _SHIFT for pattern in patterns]))


def bucket_of(latency: float) -> int:
    """The bucket of one latency."""
    return array("q", array("d", (latency,)).tobytes())[0] >> _SHIFT


def value_of(bucket: int) -> float:
    """The latency reported for a bucket: within 0.78 % of every latency in it.

    0.0 has a bucket of its own, and a negative latency (a clock went back) is reported as 0.0.
    The harmonic mean of the two ends, 2ab / (a + b), is equally far from both in relative terms.
    """
    octave, step = bucket >> _STEP_BITS, bucket & (_STEPS - 1)
    if octave <= 0:
        return 0.0
    low = _STEPS + step
    middle = 2 * low * (low + 1) / (2 * low + 1)
    return math.ldexp(middle, octave - _BIAS - _STEP_BITS) if octave <= 2 * _BIAS else math.inf


class Histogram:
    """Latencies by bucket, with nearest-rank percentiles within 0.78 %; never changes.

    Complexity: `plus` and `minus` O(buckets named + octaves in use); a percentile O(octaves in use),
    of which a second to a minute is six, plus O(log n) of that when n exact ages join.
    Threads: safe from any.
    """

    __slots__ = ("_octaves", "_steps", "_totals", "total")

    def __init__(self, steps: dict[int, list[int]], totals: dict[int, int], total: int) -> None:
        self.total = total
        self._steps = steps  # by octave, 64 counts each
        self._totals = totals  # by octave, the sum of its steps; never 0
        self._octaves = sorted(totals)

    def plus(self, counts: Mapping[int, int]) -> Histogram:
        """With these too; keys are buckets, as `count` gives them."""
        return self._changed(counts, 1)

    def minus(self, counts: Mapping[int, int]) -> Histogram:
        """Without these, which are in it."""
        return self._changed(counts, -1)

    def percentile(self, percent: int, ages: Sequence[float] = ()) -> float:
        """The nearest-rank percentile of everything counted and of `ages`; 0.0 without samples.

        `ages` (seconds, descending) are samples too, taken exactly.
        """
        samples = self.total + len(ages)
        if not samples:
            return 0.0
        rank = -(-samples * percent // 100)
        if not ages:
            return self._at(rank)
        # Both sides are sorted, so the place of an age counted from the top is what is above it on either.
        place = samples - rank + 1
        above = bisect_left(range(len(ages)), place, key=lambda index: index + 1 + self._above(ages[index]))
        if above < len(ages) and above + 1 + self._above(ages[above]) == place:
            return ages[above]
        return self._at(self.total - (place - above) + 1)

    def counts(self) -> dict[int, int]:
        """How many samples are in each bucket that has any."""
        return {
            octave * _STEPS + step: number
            for octave in self._octaves
            for step, number in enumerate(self._steps[octave])
            if number
        }

    def check(self) -> None:
        """Assert every invariant; for tests."""
        assert self._octaves == sorted(self._totals) == sorted(self._steps)
        assert all(self._totals[octave] == sum(self._steps[octave]) > 0 for octave in self._octaves)
        assert all(number >= 0 for steps in self._steps.values() for number in steps)
        assert self.total == sum(self._totals.values())

    def _changed(self, counts: Mapping[int, int], sign: int) -> Histogram:
        steps, totals = self._steps.copy(), self._totals.copy()
        for octave in (touched := {bucket >> _STEP_BITS for bucket in counts}):
            steps[octave] = steps[octave].copy() if octave in steps else [0] * _STEPS
        for bucket, number in counts.items():
            steps[bucket >> _STEP_BITS][bucket & (_STEPS - 1)] += sign * number
        for octave in touched:
            if total := sum(steps[octave]):
                totals[octave] = total
            else:
                del steps[octave], totals[octave]
        return Histogram(steps, totals, self.total + sign * sum(counts.values()))

    def _at(self, rank: int) -> float:
        """The value at a rank from the bottom, 1 to `total`."""
        totals = self._totals
        for octave in self._octaves:
            if rank <= totals[octave]:
                break
            rank -= totals[octave]
        steps, step = self._steps[octave], 0
        while (stride := sum(steps[step : step + _STRIDE])) < rank:
            rank -= stride
            step += _STRIDE
        while steps[step] < rank:
            rank -= steps[step]
            step += 1
        return value_of(octave * _STEPS + step)

    def _above(self, latency: float) -> int:
        """How many samples are reported as more than `latency`."""
        bucket = bucket_of(latency)
        first = bucket if value_of(bucket) > latency else bucket + 1
        octave, step = first >> _STEP_BITS, first & (_STEPS - 1)
        number = sum(self._steps[octave][step:]) if octave in self._steps else 0
        for higher in reversed(self._octaves):
            if higher <= octave:
                break
            number += self._totals[higher]
        return number


EMPTY: Final = Histogram({}, {}, 0)
