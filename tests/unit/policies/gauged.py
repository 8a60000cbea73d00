"""A gauge that shows what a test sets, and laws inside of an `ExternalPolicy` that keep what they are told.

`from tests.unit.policies.gauged import SIGNALS, Dial, Told, looked`
"""

from __future__ import annotations

from typing import Any

from llm_traffic_scheduler import Decision, ExternalPolicy, Signals
from tests.support import Law

__all__ = ["SIGNALS", "Dial", "Told", "looked"]

SIGNALS = Signals(max_concurrency=12, batch_max=10, batch_min=2)


class Dial:
    """A source that shows what the test sets; an exception is raised."""

    def __init__(self, shows: Any = None) -> None:
        self.shows = shows

    def __call__(self) -> Any:
        if isinstance(self.shows, BaseException):
            raise self.shows
        return self.shows

    def __repr__(self) -> str:
        return "<dial>"


class Told(Law):
    """A law that keeps what it was told; it decides on `limit`."""

    def __init__(self, limit: int = 5) -> None:
        self.advanced: list[tuple[float, float | None]] = []
        self.decided: list[float | None] = []
        self.resets = 0
        super().__init__(lambda now, signals: Decision(limit, 0.4, "told"))

    def advance(self, now: float, signals: Signals) -> None:
        self.advanced.append((now, signals.external))

    def decide(self, now: float, signals: Signals) -> Any:
        self.decided.append(signals.external)
        return super().decide(now, signals)

    def reset(self) -> None:
        self.resets += 1


def looked(policy: ExternalPolicy, now: float = 0.0) -> ExternalPolicy:
    policy.advance(now, SIGNALS)
    return policy
