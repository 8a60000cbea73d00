"""A batch limit that never moves: the control arm, and what an operator sets by hand.

Floor: second. Pure.
"""

from __future__ import annotations

from ..core.checks import count
from .base import Decision, Signals

__all__ = ["FixedPolicy"]


class FixedPolicy:
    """`limit` batch calls may run, whatever the traffic.

    Args:
        limit: whole number of calls, at least 1; the scheduler clamps it to its own bounds.

    Raises:
        ConfigError: `limit` is no whole number or below 1.
    """

    __slots__ = ("limit",)

    reads: frozenset[str] = frozenset()

    def __init__(self, limit: int) -> None:
        self.limit = count("limit", limit, at_least=1)

    def advance(self, now: float, signals: Signals) -> None:
        """Nothing to learn."""

    def decide(self, now: float, signals: Signals) -> Decision:
        """The limit, at pressure 0."""
        return Decision(self.limit, reason="fixed")

    def describe(self, now: float, decision: Decision, signals: Signals) -> str:
        """That no traffic moves it."""
        return "the limit is fixed"

    def outlook(self, now: float, decision: Decision, signals: Signals) -> tuple[str, ...]:
        """What raises it: nothing but another setting."""
        if decision.limit < signals.batch_max:
            return (f"no traffic moves it: configure(policy=FixedPolicy(...)) raises it, up to {signals.batch_max}",)
        return (f"no traffic moves it: it is all that batch_max_concurrency ({signals.batch_max}) allows",)

    def __repr__(self) -> str:
        return f"FixedPolicy({self.limit})"
