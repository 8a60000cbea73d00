"""How much interactive traffic a backend bears, measured on the backend itself.

Floor: third.
Method: an open loop. Calls are sent when they are due, whatever became of earlier ones, and a latency counts from when
    its call was due. A closed loop, N clients that each wait for their answer, sends less the slower the backend gets,
    and so hides the very queue that is looked for (coordinated omission, Tene 2013; open and closed loops compared:
    Schroeder, Wierman, Harchol-Balter, NSDI 2006).
Arrivals: a Poisson process with its number of calls fixed, which is as many instants drawn uniformly. People do not
    arrive evenly; evenly spaced calls meet no queue until the very last slot is taken, and would put the knee too high.
    The fixed number keeps the budget exact and the rate achieved free of luck.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from .calibration_load import Load
from .calibration_plan import CallOnce, IsThrottled, Plan, Progress, rates_of, shown, status_429_or_retry_after
from .calibration_result import Calibration
from .core.knee import ENOUGH, recommend
from .core.load_curve import CalibrationPoint

__all__ = ["calibrate"]


async def calibrate(
    call: CallOnce,
    *,
    rates: Iterable[float],
    seconds_per_rate: float,
    target_p95: float | None = None,
    is_throttled: IsThrottled | None = None,
    max_calls: int = 1000,
    max_unfinished: int = 256,
    call_timeout: float = 60.0,
    progress: Progress | bool | None = None,
    seed: int = 0,
) -> Calibration:
    """Raise the rate of calls until P95 bends, and recommend thresholds and a cap from what was measured.

    Never sends more than `max_calls`. Stops sending at the first rate at which P95 bends or the backend throttles, and
    waits for the calls it has sent. One call goes out first, alone: it warms connections up and counts in the budget,
    not in the curve; if it fails, nothing else is sent. What the measurement does not support is None in the result,
    with the reason. The rule for the bend and for the cap is in `llm_traffic_scheduler.core.knee`.

    A P95 needs 20 calls: a rate that gets fewer is measured and left out. Seconds per rate should be many times the
    P95 at the lowest rate; below 10 times there is no answer, because no queue has the time to build up.

    Args:
        call: a function without arguments that returns an awaitable: one typical interactive call, to its very end.
            What it raises counts as a failure, and a failure as late. KeyboardInterrupt and the like pass through.
        rates: calls per second, ascending; wide steps first, then finer ones around the knee.
        seconds_per_rate: how long calls are sent at each rate.
        target_p95: seconds within which 95 % of the calls shall be answered; the recommendation is then the highest
            rate at which that held. Left out: P95 bends where it is above twice that at the lowest rate.
        is_throttled: whether an error means that the backend asked us to wait, and for how many seconds, if it said.
            Left out: a number in `error.retry_after`, and status 429 as aiohttp, httpx, openai and anthropic show it.
        max_calls: the budget. If rates and seconds need more, that is a ConfigError before anything is sent.
        max_unfinished: so many unfinished calls at a time end a rate; to send later instead would hide the queue.
        call_timeout: seconds after which a call is cancelled and counts as failed.
        progress: called with the share of the planned calls that is done, 0 to 1, and a text; True for a bar on
            stderr, which needs tqdm: the extra `simulation`.
        seed: of the arrivals; the same seed sends at the same instants.

    Raises:
        ConfigError: an argument is impossible, or the budget does not suffice; or `call` returned what cannot be
            awaited, or a stream, whose answer is not there yet.
        What `is_throttled` or `progress` raises.
    Cancellation: every unfinished call is cancelled and awaited; nothing is left behind.
    """
    plan = Plan(
        call=call,
        rates=rates_of(rates),
        seconds_per_rate=seconds_per_rate,
        target_p95=target_p95,
        is_throttled=status_429_or_retry_after if is_throttled is None else is_throttled,
        max_calls=max_calls,
        max_unfinished=max_unfinished,
        call_timeout=call_timeout,
        seed=seed,
    )
    with shown(progress) as tell:
        tell(0.0, _announcement(plan))
        first = await Load(plan, plan.rates[0], (0.0,)).run()
        if first.failures:
            return _not_begun(first)
        points = await _climb(plan, tell)
        tell(1.0, "done")
    found = recommend(points, target_p95=target_p95)
    return Calibration(
        interactive_rps_threshold=found.rps,
        interactive_p95_threshold=found.p95,
        max_concurrency=found.max_concurrency,
        points=tuple(points),
        reasons=found.reasons,
        calls=first.calls + sum(point.calls for point in points),
    )


def _announcement(plan: Plan) -> str:
    few = [f"{rate:g}" for rate in plan.rates if plan.calls_at(rate) < ENOUGH]
    left_out = f"; fewer than {ENOUGH}, too few for a P95, at {', '.join(few)} calls/s" if few else ""
    return f"at most {plan.calls} calls{left_out}"


async def _climb(plan: Plan, tell: Progress) -> list[CalibrationPoint]:
    """One point per rate, until another would not change the answer."""
    arrivals = random.Random(plan.seed)
    points: list[CalibrationPoint] = []
    done = 1
    for rate in plan.rates:
        number = plan.calls_at(rate)
        dues = sorted(arrivals.random() * plan.seconds_per_rate for _ in range(number))

        def tell_all(share: float, text: str, done: int = done, number: int = number) -> None:
            tell((done + share * number) / plan.calls, text)

        points.append(await Load(plan, rate, dues, tell_all).run())
        done += number
        if recommend(points, target_p95=plan.target_p95).settled:
            break
    return points


def _not_begun(first: CalibrationPoint) -> Calibration:
    what = "was throttled" if first.throttled else "failed"
    wait = "" if first.retry_after is None else f", retry after {first.retry_after:.3g} s"
    return Calibration(
        interactive_rps_threshold=None,
        interactive_p95_threshold=None,
        max_concurrency=None,
        points=(),
        reasons=(f"the call sent first, alone, {what}, and nothing else was sent: {first.last_error}{wait}",),
        calls=first.calls,
    )
