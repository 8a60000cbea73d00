"""What the adaptive law says of itself to an operator.

Floor: second. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .base import Decision, Signals
from .objective import WARM_UP, Objective

__all__ = ["outlook", "why"]


def why(now: float, decision: Decision, signals: Signals, objectives: Sequence[tuple[str, Objective]]) -> str:
    """The clause for `LimitPolicy.describe`; `objectives` with the names of what they limit."""
    interactive = signals.interactive_running + signals.interactive_queued
    if decision.reason == "throttled":
        return f"the backend has asked us to wait for another {signals.throttled_until - now:.3g} s"
    if not objectives:
        reserve = signals.max_concurrency - signals.batch_max
        return f"{_calls(interactive)} and a reserve of {reserve} come first; there is no target to learn from"
    name, binding = _binding(now, objectives)
    if decision.reason == "learning":
        judged = "" if binding.timed else " that report their first token and tokens"
        ended = f"{binding.samples} of the first {WARM_UP} interactive calls{judged} have ended"
        return f"{ended}; until then three batch calls"
    if decision.reason == "stalled":
        late, unfinished = binding.unfinished.late, len(binding.unfinished)
        return f"{late} of {unfinished} interactive calls are past the {name} of {binding.target:.3g} s already"
    if decision.reason == "idle":
        return "no interactive call for long, so batch may have more and more until the next one comes"
    if decision.reason == "ramp":
        return "it reopens step by step, so that not everything starts at once"
    return (
        f"a total of {binding.total(now):.1f} keeps the {name} of {binding.target:.3g} s, as far as is known from "
        f"{binding.samples} calls; {_calls(interactive)} and {binding.held_back:.1f} for their ages come off it"
    )


def outlook(
    now: float, decision: Decision, signals: Signals, objectives: Sequence[tuple[str, Objective]]
) -> tuple[str, ...]:
    """The sentences for `LimitPolicy.outlook`: what moves the limit next, and where it is at its minimum."""
    low, high = signals.batch_min, signals.batch_max
    if low == high:
        return (f"batch_min_concurrency equals batch_max_concurrency ({high}): nothing moves the limit",)
    interactive = signals.interactive_running + signals.interactive_queued
    if not objectives:
        closed = max(0, high - low - interactive)
        return (
            f"each interactive call takes one off it: {_more(closed, low)}",
            "with AdaptivePolicy(p95_target=...) it learns how much batch your latency allows",
        )
    name, binding = _binding(now, objectives)
    left = binding.total(now) - interactive - binding.held_back
    each = 1 + binding.held_back_for_one
    closed = max(0, math.floor((left - low - 1) / each) + 1)  # the limit is the floor of what is left
    moving = binding.total(math.inf) - binding.total(now)
    sentences = ["it rises with the next slices of the window, for as long as batch work waits"]
    if decision.reason != "ramp":
        sentences = [
            f"each interactive call takes {each:.3g} off it at first, more as it ages, and gives it back as it ends: "
            f"{_more(closed, low)}"
        ]
    if binding.samples >= WARM_UP and abs(moving) >= 1:
        way = "rises" if moving > 0 else "falls"
        sentences.append(f"the total {way} to {binding.total(math.inf):.1f}, which the latest calls allow")
    if decision.limit < high:
        sentences.append(f"shorter calls, a faster backend or a higher {name} let it rise, up to {high}")
    return tuple(sentences)


def _binding(now: float, objectives: Sequence[tuple[str, Objective]]) -> tuple[str, Objective]:
    """The one that leaves least room."""
    return min(
        objectives, key=lambda named: -math.inf if named[1].stalled else named[1].total(now) - named[1].held_back
    )


def _more(closed: int, low: int) -> str:
    if not closed:
        return f"it is at its minimum of {low} now"
    return f"with about {closed} more at once it is at its minimum of {low}"


def _calls(number: int) -> str:
    return "1 interactive call" if number == 1 else f"{number} interactive calls"
