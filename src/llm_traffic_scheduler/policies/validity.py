"""How long an answer of the policy stands, and how the policy is brought up to date after a quiet spell.

Floor: second. Pure. These are methods of `Governor`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from .base import Decision, LimitPolicy, replica_of

if TYPE_CHECKING:
    from .governor import Governor

__all__ = ["caught_up", "next_look", "stands_until"]

# At the very instant of `valid_until` both sides of a step may hold, by rounding; a moment later only one does.
_PAST_THE_STEP: Final = 1e-6


def next_look(governor: Governor, now: float) -> float:
    """When the limit may rise by itself: the decision expires, samples leave, or the policy is to hear of some."""
    decision = governor._decision
    slice_length = governor.window.slice_length
    if decision is None or governor._faults.active or not decision.valid_until > now:
        # Also for NaN. A policy that says "ask me each time" is asked once a slice, or the loop would spin.
        return now + slice_length
    due = max(decision.valid_until + _PAST_THE_STEP, now + slice_length / 100)
    return max(min(due, _signals_stand_until(governor, now)), math.nextafter(now, math.inf))


def stands_until(governor: Governor, now: float, decision: Decision, ages: list[float]) -> float:
    """How long the decision is kept at most."""
    if ages:  # an age that has joined the quantile grows all the time
        return now
    until = min(decision.valid_until, _signals_stand_until(governor, now))
    if governor._reads_window:
        return min(until, governor._next_join)
    # What counts calls is told how things are once a slice, whoever asks; no timer is set for that.
    return min(until, governor.slice_end) if governor._reads_counts else until


def _signals_stand_until(governor: Governor, now: float) -> float:
    """When what the policy reads may change although nothing happens."""
    if not governor._reads_window:
        return math.inf
    streams = math.inf if governor.streams is None else governor.streams.next_change()
    return min(governor.window.next_change(), streams, _untold(governor, now))


def _untold(governor: Governor, now: float) -> float:
    """The end of the slice if something in it has changed what the policy was last advanced on; else infinity."""
    return math.inf if governor.window.read(now) is governor._told else governor.slice_end


def caught_up(governor: Governor, now: float) -> LimitPolicy:
    """The policy, or a copy of it that has been told what left the window since the last event. Threads: any."""
    original = governor.policy  # once: it may be replaced at any moment
    if now < governor.slice_end:
        return original
    policy = replica_of(original)
    if policy is original:  # it has no state that could have to be brought up to date
        return policy
    boundary = governor.slice_end
    for _ in range(0 if boundary == -math.inf else governor.window.slices):  # after as many the window is empty
        if boundary > now:
            break
        policy.advance(boundary, governor._signals(boundary, governor._measure(boundary)))
        boundary = governor.window.end_of_slice(boundary)
    else:  # as `roll` ends: what the policy asks for itself, it asks for now
        policy.advance(now, governor._signals(now, governor._measure(now)))
    return policy
