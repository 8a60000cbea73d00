"""How latencies are counted, and what their percentiles are.

Floor: ground. Arithmetic only.
Algorithm: log-linear buckets as in HdrHistogram (Tene 2012): 128 of equal width in every octave.
A percentile finds its octave among the few that hold anything, then its bucket among 128, so it
costs the same for ten samples as for a hundred thousand.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from sys import byteorder
from typing import Final, TypeAlias

__all__ = ["EMPTY", "Histogram", "bucket_of", "count", "value_of"]

# A single-precision float is a sign, 8 bits of exponent, biased by 127, and 23 of fraction. Its upper half is the
# number of its octave and, in the low 7 bits, of one of 128 steps in it; octave 255 is infinity, higher are negative.
_STEPS: Final = 128
_STEP_BITS: Final = 7
_BIAS: Final = 127
_INFINITE: Final = 255
_NEGATIVE: Final = 256 * _STEPS
_UPPER: Final = 1 if byteorder == "little" else 0
_STRIDE: Final = 11  # about the square root of the steps: a search by whole strides, then one by one
_FEW: Final = 8  # buckets changed at once, up to which it pays to carry on what was found


def count(latencies: Sequence[float]) -> dict[int, int]:
    """How many of `latencies` (seconds) fall in each bucket.

    Bits in place of `log`, and no Python step for each: 0.05 against 0.2 to 0.4 microseconds.
    """
    if len(latencies) == 1:
        return {bucket_of(latencies[0]): 1}
    counts = dict(Counter(array("H", array("f", latencies).tobytes())[_UPPER::2]))
    for bucket in [bucket for bucket in counts if bucket >= _NEGATIVE]:  # a clock went back
        counts[0] = counts.get(0, 0) + counts.pop(bucket)
    return counts


def bucket_of(latency: float) -> int:
    """The bucket of one latency."""
    bucket = array("H", array("f", (latency,)).tobytes())[_UPPER]
    return 0 if bucket >= _NEGATIVE else bucket


def value_of(bucket: int) -> float:
    """The latency reported for a bucket: within 0.4 % of every latency in it.

    The first bucket holds 0.0, and what a clock that went back has made negative.
    The harmonic mean of the two ends, 2ab / (a + b), is equally far from both in relative terms.
    """
    octave, step = bucket >> _STEP_BITS, bucket & (_STEPS - 1)
    if octave == 0:
        return 0.0
    low = _STEPS + step
    middle = 2 * low * (low + 1) / (2 * low + 1)
    return math.ldexp(middle, octave - _BIAS - _STEP_BITS) if octave < _INFINITE else math.inf


# Where a percentile was found: bucket, its value, and `below`, `upto`: ranks above the one, up to the other, are in it.
_Found: TypeAlias = tuple[int, float, int, int]


class Histogram:
    """Latencies by bucket, with nearest-rank percentiles within 0.4 %; never changes.

    Complexity: `plus` and `minus` O(buckets named + octaves in use); a percentile O(octaves in use),
    of which a second to a minute is six, and O(log n) times that when n exact ages join.
    Threads: safe from any; two that look for the same percentile find and keep the same.
    """

    __slots__ = ("_found", "_octaves", "_steps", "_totals", "total")

    def __init__(
        self, steps: dict[int, list[int]], totals: dict[int, int], octaves: list[int], found: dict[int, _Found]
    ) -> None:
        self._steps = steps  # by octave, 128 counts each
        self._totals = totals  # by octave, the sum of its steps; never 0
        self._octaves = octaves  # those in use, ascending
        self._found = found  # by percent
        self.total = sum(totals.values())

    def plus(self, counts: Mapping[int, int]) -> Histogram:
        """With these too; keys are buckets, as `count` gives them."""
        return self._changed(counts, 1)

    def minus(self, counts: Mapping[int, int]) -> Histogram:
        """Without these, which are in it."""
        return self._changed(counts, -1)

    def percentile(self, percent: int) -> float:
        """The nearest-rank percentile; 0.0 without samples."""
        return self._at(-(-self.total * percent // 100), percent) if self.total else 0.0

    def percentiles_with(self, ages: Sequence[float], *percents: int) -> list[float]:
        """The percentiles of everything counted and of `ages` together.

        `ages` (seconds, descending, at least one) are taken exactly.
        """
        samples = self.total + len(ages)
        places: dict[int, int] = {}

        # Both sides are sorted: an age's place from the top is what lies above it on either, and itself.
        def place_of(index: int) -> int:
            if index not in places:
                places[index] = index + 1 + self._above(ages[index])
            return places[index]

        found = []
        for percent in percents:
            place = samples + 1 + (-samples * percent // 100)
            above = bisect_left(range(len(ages)), place, key=place_of)
            if above < len(ages) and place_of(above) == place:
                found.append(ages[above])
            else:
                found.append(self._at(self.total - (place - above) + 1, percent))
        return found

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
        for found in self._found.values():
            assert found[2] == found[3] or found == self._search(found[3]), "remembered wrongly"

    def _changed(self, counts: Mapping[int, int], sign: int) -> Histogram:
        steps, totals = self._steps.copy(), self._totals.copy()
        touched: set[int] = set()
        for bucket, number in counts.items():
            octave = bucket >> _STEP_BITS
            if octave not in touched:
                touched.add(octave)
                steps[octave] = steps[octave].copy() if octave in steps else [0] * _STEPS
                totals.setdefault(octave, 0)
            steps[octave][bucket & (_STEPS - 1)] += sign * number
            totals[octave] += sign * number
        for octave in touched:
            if not totals[octave]:
                del steps[octave], totals[octave]
        # Either octaves came or octaves went, never both.
        octaves = self._octaves if len(totals) == len(self._totals) else sorted(totals)
        return Histogram(steps, totals, octaves, self._still_found(counts, sign))

    def _still_found(self, counts: Mapping[int, int], sign: int) -> dict[int, _Found]:
        """Where the percentiles were, after a change.

        One more sample moves a rank by one at most, and mostly within its bucket: then looking
        again takes 0.4 microseconds in place of 3, and it is done after every interactive call.
        """
        if len(counts) > _FEW:
            return {}
        still: dict[int, _Found] = {}
        for percent, (bucket, value, below, upto) in self._found.copy().items():
            for changed, number in counts.items():
                if changed <= bucket:
                    upto += sign * number
                    if changed < bucket:
                        below += sign * number
            still[percent] = bucket, value, below, upto
        return still

    def _at(self, rank: int, percent: int) -> float:
        """The value at a rank from the bottom, 1 to `total`; `percent` is where to look first."""
        found = self._found.get(percent)
        if found is None or not found[2] < rank <= found[3]:
            found = self._found[percent] = self._search(rank)
        return found[1]

    def _search(self, rank: int) -> _Found:
        totals, left, octaves = self._totals, rank, iter(self._octaves)
        while totals[octave := next(octaves)] < left:
            left -= totals[octave]
        steps, step = self._steps[octave], 0
        while (stride := sum(steps[step : step + _STRIDE])) < left:
            left -= stride
            step += _STRIDE
        while steps[step] < left:
            left -= steps[step]
            step += 1
        bucket = octave * _STEPS + step
        return bucket, value_of(bucket), rank - left, rank - left + steps[step]

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


EMPTY: Final = Histogram({}, {}, [], {})
