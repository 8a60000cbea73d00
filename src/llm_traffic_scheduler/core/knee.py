"""From which rate on a backend makes people wait, and how sure that is.

Floor: ground. Pure: points of a load curve go in, a recommendation and its reasons come out.
Rule: a rate bends the curve if its P95 is above a limit: the target, or twice the P95 at the lowest rate. Twice is
    Kleinrock's knee ("Power and deterministic rules of thumb", ICC 1979): of one M/M/1 server, throughput divided by
    response time is largest where the response takes twice as long as without load.
Not Kneedle (Satopaa et al. 2011): it looks for the largest distance to the chord between the first point and the last,
    so with five points the answer follows from how far beyond the knee the user happened to go.
Chance: of n calls at a P95 exactly at the limit, the number of late ones is binomial. Only a number of late calls that
    would come in fewer than one of a hundred such runs is called a bend; fewer, but over 5 %, are called noise. Calls
    of one burst are late together, so the true doubt is larger; longer stretches make it smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .load_curve import CalibrationPoint

__all__ = ["BEND", "ENOUGH", "Recommendation", "bent", "chance_of_late", "concurrency", "holds", "recommend"]

BEND: Final = 2.0
# With fewer calls the P95 by nearest rank is the slowest call, whatever its reason.
ENOUGH: Final = 20
_LATE: Final = 0.05
_FLUKE: Final = 0.01  # a bend that is none ends the calibration, and nothing later would put it right
_DOUBT: Final = 0.05
# A backend at (1 + 1 / _STRETCH) times its capacity makes the last call of a stretch wait for one P95, so an overload
# of up to a tenth may not be seen.
_STRETCH: Final = 10


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What the points support; None where they support nothing, and `reasons` says why.

    `settled`: measuring higher rates would not change it.
    """

    rps: float | None
    p95: float | None
    max_concurrency: int | None
    reasons: tuple[str, ...]
    settled: bool


def recommend(points: Sequence[CalibrationPoint], *, target_p95: float | None = None) -> Recommendation:
    """What `points`, by ascending rate, say about the knee.

    `rps` is the highest rate below the first bend at which P95 held, `p95` the limit it was judged by,
    `max_concurrency` what `concurrency` says about that rate.
    """
    judged = [point for point in points if point.calls >= ENOUGH or point.stopped or point.throttled]
    few = [
        f"{_rate(point)} had {_calls(point.calls)}, a P95 needs {ENOUGH}: left out, give it more seconds"
        for point in points
        if point not in judged
    ]
    if points and all(point.failures == point.calls and not point.throttled for point in points):
        reason = f"every call failed ({sum(point.calls for point in points)}), the last with {points[-1].last_error}"
        return _nothing([reason], settled=True)
    if not judged:
        return _nothing([*few, f"no rate had {ENOUGH} calls"], settled=False)
    lowest, *higher = judged
    if (unfit := _unfit(lowest)) is not None:
        return _nothing([*few, unfit], settled=True)
    assert lowest.p95 is not None
    limit, spread = _twice(lowest) if target_p95 is None else (target_p95, target_p95)
    if not holds(lowest, limit):
        reason = f"the target of {limit:.3g} s does not hold at {_rate(lowest)}, the lowest: {_verdict(lowest, limit)}"
        return _nothing([*few, f"{reason}; raise the target, or begin lower"], settled=bent(lowest, limit))
    found = _climb(lowest, higher, limit, spread)
    return replace(found, reasons=(*few, _why(lowest, spread, target_p95), *found.reasons))


def concurrency(lowest: CalibrationPoint, held: CalibrationPoint, bent: CalibrationPoint | None) -> int:
    """How many calls the backend bears at a time, at least 2; `bent` is the rate at which P95 bent, None if none did.

    By Little's law, rate times mean latency, what was in the backend while P95 held is borne, and what would be in it
    at the rate that bent, if nobody waited, is not. The answer is the geometric mean of the two, rounded down, or the
    former, rounded up, if that is more: the closer the rates, the less is left to guess. No headroom for bursts beyond
    that: batch work, which fills what it is given, would fill the backend, and the next interactive call would wait
    there, where nobody can let it go first. Interactive calls beyond the cap wait in the scheduler instead.
    """
    borne = _little(held.rate_achieved, held)
    not_borne = borne if bent is None else _little(bent.rate_achieved, lowest)
    # A hair off, for a mean of 0.1 s times 30 is 3.0000000000000004.
    between = max(math.ceil(borne - 1e-9), math.floor(math.sqrt(borne * not_borne) + 1e-9))
    # What nobody has seen running is not recommended; a scheduler takes at least 2.
    return max(2, min(between, max(held.max_unfinished, 0 if bent is None else bent.max_unfinished)))


def holds(point: CalibrationPoint, limit: float) -> bool:
    """P95 is at most `limit`: no more than 5 % of the calls were late or failed."""
    return point.late(limit) * 20 <= point.calls


def bent(point: CalibrationPoint, limit: float) -> bool:
    """So many calls were late or failed that a P95 at `limit` does not explain it."""
    return not holds(point, limit) and chance_of_late(point.calls, point.late(limit)) <= _FLUKE


def chance_of_late(calls: int, late: int) -> float:
    """The probability that `late` or more of `calls` independent calls are late, each with probability 5 %."""
    return min(1.0, math.fsum(_binomial(calls, number) for number in range(late, calls + 1)))


def _binomial(calls: int, late: int) -> float:
    """By logarithms: 0.95 ** 20_000 is no float any more."""
    ways = math.lgamma(calls + 1) - math.lgamma(late + 1) - math.lgamma(calls - late + 1)
    return math.exp(ways + late * math.log(_LATE) + (calls - late) * math.log1p(-_LATE))


def _twice(lowest: CalibrationPoint) -> tuple[float, float]:
    """Twice the P95, and twice the most that it may be by chance: only what is beyond that is surely a bend.

    The upper bound is an order statistic; where so few calls have none, the slowest call stands in.
    """
    assert lowest.p95 is not None
    beyond, doubt = 0, _binomial(lowest.calls, 0)
    while doubt + (step := _binomial(lowest.calls, beyond + 1)) <= _DOUBT:
        beyond, doubt = beyond + 1, doubt + step
    rank = min(lowest.calls - 1 - beyond, len(lowest.latencies) - 1)
    return BEND * lowest.p95, BEND * max(lowest.p95, lowest.latencies[rank])


def _unfit(lowest: CalibrationPoint) -> str | None:
    """Why nothing can be measured against the lowest rate."""
    where = f"{_rate(lowest)}, the lowest that counts"
    if lowest.throttled:
        return f"the backend throttled at {where}{_waits(lowest)}: begin lower, or raise its quota"
    if lowest.stopped == "unfinished":
        return f"{_calls(lowest.max_unfinished)} were unfinished at {where}, and it was stopped: begin lower"
    if lowest.fell_behind:
        return _behind(lowest)
    if lowest.failures * 20 > lowest.calls:
        failed = f"{lowest.failures} of {lowest.calls} calls failed at {where}"
        return f"{failed}, the last with {lowest.last_error}: there is nothing to compare higher rates with"
    assert lowest.p95 is not None
    if lowest.seconds < _STRETCH * lowest.p95:
        return (
            f"P95 is {lowest.p95:.3g} s at {where}, and calls were sent for {lowest.seconds:.3g} s, too short for a "
            f"queue to show: give seconds_per_rate at least {_STRETCH} times the P95, {_STRETCH * lowest.p95:.3g}"
        )
    return None


def _climb(lowest: CalibrationPoint, higher: Sequence[CalibrationPoint], limit: float, spread: float) -> Recommendation:
    held, doubtful = lowest, list[str]()
    for point in higher:
        if point.throttled:
            return _knee(
                lowest, held, None, limit, [*doubtful, f"the backend throttled at {_rate(point)}{_waits(point)}"]
            )
        if point.fell_behind:
            return _nothing([*doubtful, _behind(point)], settled=True, p95=limit)
        if bent(point, spread):
            return _knee(
                lowest, held, point, limit, [*doubtful, f"P95 bent at {_rate(point)}: {_verdict(point, limit)}"]
            )
        if point.stopped == "unfinished":
            reason = f"{_calls(point.max_unfinished)} were unfinished at {_rate(point)} before P95 bent"
            return _nothing([*doubtful, f"{reason}: raise max_unfinished"], settled=True, p95=limit)
        if holds(point, limit):
            held = point
        else:
            doubtful.append(f"noise hides what happens at {_rate(point)}: {_verdict(point, limit)}")
    return _nothing([*doubtful, _no_bend([lowest, *higher][-1], held)], settled=False, p95=limit)


def _knee(
    lowest: CalibrationPoint,
    held: CalibrationPoint,
    bent: CalibrationPoint | None,
    limit: float,
    reasons: list[str],
) -> Recommendation:
    rate, most = held.rate_achieved, concurrency(lowest, held, bent)
    beyond = "" if bent is None else f", and {_little(bent.rate_achieved, lowest):.3g} would be at the rate that bent"
    reasons = [
        *reasons,
        f"interactive_rps_threshold {rate:.3g}: the highest rate below at which P95 held ({_verdict(held, limit)}); "
        f"rates between the two would narrow it",
        f"max_concurrency {most}: by Little's law {_little(rate, held):.3g} calls are in the backend at {rate:.3g} "
        f"calls/s{beyond}; between the two, and at least 2. More would let batch work fill the backend",
    ]
    return Recommendation(rate, limit, most, tuple(reasons), True)


def _no_bend(highest: CalibrationPoint, held: CalibrationPoint) -> str:
    if held is highest:
        return f"no bend seen up to {_rate(highest)}: add higher rates"
    return f"no rate bends P95 by more than chance may, up to {_rate(highest)}: give more seconds_per_rate"


def _nothing(reasons: list[str], *, settled: bool, p95: float | None = None) -> Recommendation:
    return Recommendation(None, p95, None, tuple(reasons), settled)


def _why(lowest: CalibrationPoint, spread: float, target_p95: float | None) -> str:
    if target_p95 is not None:
        return f"interactive_p95_threshold {target_p95:.3g}: the target"
    assert lowest.p95 is not None
    # Below 59 calls no order statistic bounds a P95 from above in 19 of 20 runs.
    bounded = _binomial(lowest.calls, 0) <= _DOUBT
    chance = f"up to {spread / BEND:.3g} s by chance" if bounded else "too few to say how much of it is chance"
    return (
        f"interactive_p95_threshold {BEND * lowest.p95:.3g}: twice the P95 at {_rate(lowest)}, {lowest.p95:.3g} s over "
        f"{_calls(lowest.calls)}, {chance}"
    )


def _verdict(point: CalibrationPoint, limit: float) -> str:
    failed = f" ({point.failures} failed)" if point.failures else ""
    p95 = "" if point.p95 is None else f"P95 {point.p95:.3g} s, "
    return f"{p95}{point.late(limit)} of {point.calls} calls not answered within {limit:.3g} s{failed}"


def _waits(point: CalibrationPoint) -> str:
    wait = "" if point.retry_after is None else f", retry after {point.retry_after:.3g} s"
    return f" ({point.throttled} of {point.calls} calls{wait})"


def _behind(point: CalibrationPoint) -> str:
    return (
        f"only {point.rate_achieved:.3g} of {point.rate:g} calls/s could be sent: "
        "this process is the bottleneck, not the backend"
    )


def _little(rate: float, point: CalibrationPoint) -> float:
    """Calls at a time, if `rate` of them came and each took as long as at `point`."""
    return rate * (point.mean or 0.0)


def _rate(point: CalibrationPoint) -> str:
    return f"{point.rate:g} calls/s"


def _calls(number: int) -> str:
    return f"{number} call{'' if number == 1 else 's'}"
