"""What an operator can do about what a snapshot shows: one sentence for each symptom that is there.

Floor: third, without asyncio. The symptoms are those of the table in the design (MISSION.md); two of them a client
cannot see, memory of the backend's and other instances of the service, so they are named as causes only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from .policies.diagnosis import FLUTTER, STILL_FOR, flutter_of
from .policies.history import LimitRecord, Swings, swing
from .snapshot import REASONS, SchedulerSnapshot

__all__ = ["Circumstances", "advice", "held_since"]

_MINUTE: Final = 60.0
_LONG_WAIT: Final = 600.0  # seconds; whoever waits longer may well see a restart


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a snapshot does not hold and an explanation wants to know.

    Attributes:
        now: on the loop's clock, seconds.
        outlook: what would have to change for the limit to move, in the policy's own words.
        history: changes of the limit, oldest first.
        p95_threshold, rps_threshold: the policy's, None where it has none.
        flutters: the limit is not meant to move with each call, so it is a fault if it does.
        window: seconds.
        still_for: seconds in which batch has waited and not moved.
        holders: who has the slots, in words; "" if batch moves.
        warnings: what has been logged since the settings changed, by kind.
    """

    now: float = 0.0
    outlook: tuple[str, ...] = ()
    history: tuple[LimitRecord, ...] = ()
    p95_threshold: float | None = None
    rps_threshold: float | None = None
    flutters: bool = False
    window: float = 10.0
    still_for: float = 0.0
    holders: str = ""
    warnings: Mapping[str, str] = field(default_factory=dict)


def advice(snapshot: SchedulerSnapshot, around: Circumstances) -> dict[str, str]:
    """One line for each symptom that is there, by kind; kinds that are warned of too have the same name there."""
    found = {
        "latency": _latency_stays_high(snapshot, around),
        "still": _batch_stands_still(snapshot, around),
        "flutter": _limit_flutters(snapshot, around),
        "piles_up": _batch_piles_up(snapshot, around),
        "memory": _much_to_lose(snapshot),
    }
    return {kind: line for kind, line in found.items() if line}


def _latency_stays_high(snapshot: SchedulerSnapshot, around: Circumstances) -> str:
    threshold, p95 = around.p95_threshold, snapshot.interactive.p95
    high = threshold is not None and snapshot.interactive.sample_count > 0 and p95 >= threshold
    if not (high or snapshot.reason == "stalled") or snapshot.batch_limit > snapshot.batch_min_concurrency:
        return ""
    what = f"P95 {p95:.3g} s stays high" + ("" if threshold is None else f" (threshold {threshold:.3g} s)")
    limit, running = snapshot.batch_limit, snapshot.batch_running
    if running > limit:
        return (
            f"{what}, the batch limit is at its minimum of {limit}, and {running} batch calls still run, the oldest "
            f"for {snapshot.oldest_batch_running:.3g} s: what runs is not stopped; lower batch_max_concurrency, give "
            "batch a run_timeout, await checkpoint() inside long jobs, or submit with preemptible=True"
        )
    return (
        f"{what} with only {running} batch running, which is as little as batch_min_concurrency ({limit}) allows: look "
        f"at the backend (other clients or instances of this service use it too?) and find by a load test whether it "
        f"serves max_concurrency ({snapshot.max_concurrency}) calls at once, and within the threshold"
    )


def _batch_stands_still(snapshot: SchedulerSnapshot, around: Circumstances) -> str:
    if around.still_for < STILL_FOR or not snapshot.batch_queued or "batch" in snapshot.paused:
        return ""
    return f"no batch call has started or ended for {around.still_for:.0f} s: {around.holders}"


def _limit_flutters(snapshot: SchedulerSnapshot, around: Circumstances) -> str:
    if not around.flutters:
        return ""
    swings = Swings(swing(snapshot.batch_max_concurrency, snapshot.batch_min_concurrency))
    for record in around.history:
        if record.time > around.now - _MINUTE:
            swings.add(record.limit)
    return flutter_of(swings, _MINUTE, around.window) if swings.turns >= FLUTTER else ""


def _batch_piles_up(snapshot: SchedulerSnapshot, around: Circumstances) -> str:
    """The rate holds batch back although nobody suffers."""
    held_back = snapshot.batch_queued and snapshot.batch_running >= snapshot.batch_limit
    if not held_back or snapshot.reason != "arrivals" or around.rps_threshold is None:
        return ""
    threshold, traffic = around.p95_threshold, snapshot.interactive
    known = f"interactive_rps_threshold ({around.rps_threshold:.3g}) holds batch back by the rate alone"
    if threshold is None:
        return f"{known}: give interactive_p95_threshold instead and batch gives way only when users would notice"
    if not traffic.sample_count or traffic.p95 >= threshold / 2:
        return ""
    return (
        f"{known}, with P95 at {traffic.p95 / threshold:.0%} of its threshold: raise it to where a load test shows the "
        "backend bend, or leave it out"
    )


def _much_to_lose(snapshot: SchedulerSnapshot) -> str:
    if snapshot.oldest_batch_wait < _LONG_WAIT:
        return ""
    return (
        f"{snapshot.batch_queued} batch calls wait in memory, some for {snapshot.oldest_batch_wait:.0f} s, and a "
        "restart loses them: keep what must not be lost in a store, and submit it from there"
    )


def held_since(snapshot: SchedulerSnapshot, history: Sequence[LimitRecord], now: float) -> str:
    """Since when the limit is what it is, and for this reason; "" if no batch call has asked since it became so."""
    if not history or history[-1].limit != snapshot.batch_limit:
        return ""
    limit, reason = history[-1].limit, history[-1].reason
    earlier = [record for record in history if record.limit != limit]
    since = _beginning(history, lambda record: record.limit == limit)
    sentence = f"at {limit} for {now - since:.3g} s" + (f" ({earlier[-1].limit} before)" if earlier else "")
    if reason == snapshot.reason or (snapshot.reason == "policy" and reason not in REASONS):
        sentence += f", by {reason!r} for {now - _beginning(history, lambda record: record.reason == reason):.3g} s"
    return sentence


def _beginning(history: Sequence[LimitRecord], same: Callable[[LimitRecord], bool]) -> float:
    """The time of the first of the latest records that are all the same in this respect."""
    return list(takewhile(same, reversed(history)))[-1].time
