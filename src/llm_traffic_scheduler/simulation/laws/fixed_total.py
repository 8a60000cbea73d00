"""A fixed total for both kinds: what an operator who knows the right number would set.

Floor: fourth. Pure.
Law: limit = total - interactive running - interactive queued, clamped to [batch_min, batch_max]; batch_min while the
backend asks us to wait.
Source: the best such total in hindsight is the honest opponent of any law that has to find it.
"""

from llm_traffic_scheduler import Decision, Signals

from ..checks import at_least_one

__all__ = ["FixedTotal"]


class FixedTotal:
    """Batch fills up to `total` calls, interactive ones included, from the instant one of them comes.

    Raises: `ConfigError` if `total` is no whole number of at least 1.
    """

    __slots__ = ("total",)

    reads: frozenset[str] = frozenset(
        {"batch_max", "batch_min", "interactive_running", "interactive_queued", "throttled_until"}
    )

    def __init__(self, total: int) -> None:
        at_least_one(total=total)
        self.total = total

    def advance(self, now: float, signals: Signals) -> None:
        """Nothing to learn."""

    def decide(self, now: float, signals: Signals) -> Decision:
        """The law; the pressure is the share of the total that interactive calls have."""
        interactive = signals.interactive_running + signals.interactive_queued
        pressure = interactive / self.total
        if now < signals.throttled_until:
            return Decision(signals.batch_min, max(1.0, pressure), "throttled", signals.throttled_until)
        limit = max(signals.batch_min, min(signals.batch_max, self.total - interactive))
        return Decision(limit, pressure, "headroom")

    def __repr__(self) -> str:
        return f"FixedTotal({self.total})"
