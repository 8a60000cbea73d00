"""What of a scheduler's settings looks wrong, from what has been seen of its traffic: readings in, findings out.

Floor: second. Pure. Each finding is made once, with its numbers and with what to do; the shell only says it.

One thing is not diagnosed: a `max_concurrency` above what the backend serves at once. Fewer ends per second at more
running calls (Little's law) would show it if calls were of one size. They are not: short questions by day and long
texts by night look the same, and nothing in a call tells its size. Only a load test can tell; `explain()` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from .history import LimitRecord, Swings, swing

__all__ = ["FLUTTER", "STILL_FOR", "Diagnosis", "Finding", "Look", "Range", "Tide", "flutter_of"]

STILL_FOR: Final = 60.0
"""Seconds without any start or end of a batch call, while one waits, that are worth a word."""

FLUTTER: Final = 12
"""Turns of the limit in a minute that are too many; traffic that comes and goes every ten seconds makes 6."""

_MINUTE: Final = 60.0
_NEVER_AFTER: Final = 30  # looks: a service that has just been started may have little traffic yet
_ALWAYS_OF: Final = 20
_NEVER: Final = 0.05  # of a threshold
_ALWAYS: Final = 0.95  # of the looks


class Range(NamedTuple):
    """Lowest and highest value seen; `low > high` if there was none."""

    low: float = math.inf
    high: float = -math.inf


_NOTHING_SEEN: Final = Range()


class Tide:
    """Lowest and highest rate and P95 at the slices since they were last taken.

    At each slice, and not only when somebody looks: a burst would come and go between two looks.
    """

    __slots__ = ("_p95_high", "_p95_low", "_rps_high", "_rps_low")

    def __init__(self) -> None:
        self._rps_low = self._p95_low = math.inf
        self._rps_high = self._p95_high = -math.inf

    def note(self, rps: float, p95: float) -> None:
        """This held at the end of a slice."""
        if rps < self._rps_low:
            self._rps_low = rps
        if rps > self._rps_high:
            self._rps_high = rps
        if p95 < self._p95_low:
            self._p95_low = p95
        if p95 > self._p95_high:
            self._p95_high = p95

    def take(self) -> tuple[Range, Range]:
        """Rates and P95s since the last time."""
        seen = Range(self._rps_low, self._rps_high), Range(self._p95_low, self._p95_high)
        Tide.__init__(self)
        return seen


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen since the look before.

    Attributes:
        rps, p95: of the window, at the end of each slice.
        rps_threshold, p95_threshold: the policy's, None where it has none.
        batch_wanted: batch calls ran or waited.
        records: changes of the limit; empty for a policy that follows single calls by design.
        still_for: seconds since a batch call has started or ended, while one waits.
        holders: who has the slots, in words.
    """

    now: float
    rps: Range = _NOTHING_SEEN
    p95: Range = _NOTHING_SEEN
    rps_threshold: float | None = None
    p95_threshold: float | None = None
    batch_wanted: bool = False
    batch_max: int = 1
    batch_min: int = 1
    window: float = 10.0
    records: tuple[LimitRecord, ...] = ()
    still_for: float = 0.0
    batch_queued: int = 0
    holders: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong: a sentence with the numbers, and what to do."""

    kind: Literal["never", "always", "flutter", "still"]
    message: str


class Diagnosis:
    """Findings from looks at a scheduler, each kind once.

    Complexity: `judge` O(changes of the limit since the last one); memory bounded.
    """

    __slots__ = ("_always", "_flutter", "_never", "_told")

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._never, self._always, self._flutter = _Never(), _Always(), _Flutter()

    def judge(self, seen: Look) -> tuple[Finding, ...]:
        """What this look adds to what was found before."""
        if not math.isfinite(seen.now):
            return ()
        found = (
            Finding("never", self._never.judge(seen)),
            Finding("always", self._always.judge(seen)),
            Finding("flutter", self._flutter.judge(seen)),
            Finding("still", _still(seen)),
        )
        new = tuple(finding for finding in found if finding.message and finding.kind not in self._told)
        self._told.update(finding.kind for finding in new)
        return new


class _Threshold(NamedTuple):
    name: str
    at: float
    seen: Range
    figure: str  # what it is compared with, with its unit


def _thresholds(seen: Look) -> list[_Threshold]:
    """Those that the policy has, and that both kinds of traffic have put to the test."""
    if not (seen.batch_wanted and 0 < seen.rps.high < math.inf):
        return []
    given = (
        ("interactive_rps_threshold", seen.rps_threshold, seen.rps, "rate {:.3g}/s"),
        ("interactive_p95_threshold", seen.p95_threshold, seen.p95, "P95 {:.3g} s"),
    )
    known = [_Threshold(name, at, values, figure) for name, at, values, figure in given if at is not None]
    # All or none: what is said of the pressure is said of the larger of both.
    sound = all(0 < each.at < math.inf and each.seen.low <= each.seen.high for each in known)
    return known if sound else []


class _Never:
    """Thresholds that never bite."""

    def __init__(self) -> None:
        self._count = 0
        self._since = math.inf
        self._most: dict[str, float] = {}

    def judge(self, seen: Look) -> str:
        if not (given := _thresholds(seen)):
            return ""
        self._count += 1
        self._since = min(self._since, seen.now)
        for each in given:
            self._most[each.name] = max(self._most.get(each.name, 0.0), each.seen.high)
        if self._count < _NEVER_AFTER or not all(self._most[each.name] < _NEVER * each.at for each in given):
            return ""
        numbers = " and ".join(
            f"{each.name}={each.at:.3g}: highest {each.figure.format(self._most[each.name])}" for each in given
        )
        return (
            f"the pressure has not once reached {_NEVER:.0%} in {seen.now - self._since:.0f} s with both kinds of "
            f"traffic ({numbers}), so batch never gives way: find by a load test where the backend bends and set the "
            "thresholds there, unless traffic is just low now"
        )


class _Always:
    """A threshold that nearly always bites."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._hits: dict[str, int] = {}
        self._least: dict[str, float] = {}

    def judge(self, seen: Look) -> str:
        if not (given := _thresholds(seen)):
            return ""
        self._count += 1
        for each in given:
            # The lowest of all slices: spikes are what thresholds are for.
            if each.at <= each.seen.low < math.inf:
                self._hits[each.name] = self._hits.get(each.name, 0) + 1
                self._least[each.name] = min(self._least.get(each.name, math.inf), each.seen.low)
        if self._count < _ALWAYS_OF:
            return ""
        biting = [each for each in given if self._hits.get(each.name, 0) >= _ALWAYS * self._count]
        message = self._message(biting, seen.batch_min) if biting else ""
        self._reset()
        return message

    def _message(self, biting: list[_Threshold], batch_min: int) -> str:
        numbers = " and ".join(
            f"{each.name}={each.at:.3g} was reached all through {self._hits[each.name]} of {self._count} looks "
            f"(at least {each.figure.format(self._least[each.name])})"
            for each in biting
        )
        return (
            f"{numbers}, so batch is held at its minimum of {batch_min}: if interactive users are content, set the "
            "threshold where a load test shows the backend bend; if not, it is overloaded even with so little batch"
        )


def flutter_of(swings: Swings, seconds: float, window: float) -> str:
    """The sentence for a limit that turned so often."""
    return (
        f"the batch limit turned {swings.turns} times in {seconds:.0f} s, between {swings.lowest} and "
        f"{swings.highest}: no batch call can follow that, so lengthen window ({window:.3g} s now) or give smoothing"
    )


class _Flutter:
    """A limit that flutters, judged a minute at a time."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._bounds = (0, 0)
        self._swings = Swings(0)

    def judge(self, seen: Look) -> str:
        if self._since is None or self._bounds != (seen.batch_max, seen.batch_min):
            self._start(seen)
        assert self._since is not None
        for record in seen.records:
            self._swings.add(record.limit)
        elapsed = seen.now - self._since
        if elapsed < _MINUTE:
            return ""
        swings = self._swings
        self._start(seen)
        # After a quiet hour the turns are spread over an hour.
        return flutter_of(swings, elapsed, seen.window) if swings.turns >= FLUTTER * elapsed / _MINUTE else ""

    def _start(self, seen: Look) -> None:
        self._since, self._bounds = seen.now, (seen.batch_max, seen.batch_min)
        self._swings = Swings(swing(seen.batch_max, seen.batch_min))


def _still(seen: Look) -> str:
    """Batch that does not move."""
    if not (seen.batch_queued > 0 and STILL_FOR <= seen.still_for < math.inf):
        return ""
    return (
        f"no batch call has started or ended for {seen.still_for:.0f} s, and {seen.batch_queued} wait: {seen.holders}"
    )
