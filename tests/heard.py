"""A policy that keeps what it hears of single calls, and checks that it hears what it is promised.

`from tests.heard import Heard`
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from llm_traffic_scheduler import Arrived, Decision, Ended, FirstToken, LimitPolicy, Signals

__all__ = ["Heard"]


class Heard:
    """Decides as `law`, which is at ease if none is given, and asserts of each event what holds for one call.

    An end without an arrival is only for a policy that came in the middle; `strangers` counts them. `streams`: some
    calls are, and the time that their readers took is in no latency.

    Attributes:
        told: every event and when it came, in order, since the last `reset`.
        unfinished: calls that have arrived and not ended, and when they arrived.
        advanced: when it was advanced.
        resets: how often it was told that the loop has gone.
    """

    def __init__(self, law: LimitPolicy | None = None, *, streams: bool = False) -> None:
        self.law = law
        self._streams = streams
        self.told: list[tuple[float, Arrived | FirstToken | Ended]] = []
        self.unfinished: dict[int, float] = {}
        self.served: set[int] = set()
        self.strangers = 0
        self.advanced: list[float] = []
        self.resets = 0
        self.complaints: list[str] = []
        self._slice_ends = -1.0
        if (reads := getattr(law, "reads", None)) is not None:
            self.reads: frozenset[str] = reads
        if (threshold := getattr(law, "p95_threshold", None)) is not None:
            self.p95_threshold: float | None = threshold

    def reset(self) -> None:
        self.resets += 1
        self.told.clear()
        self.unfinished.clear()
        self.served.clear()
        self.advanced.clear()
        self._slice_ends = -1.0

    def advance(self, now: float, signals: Signals) -> None:
        self.advanced.append(now)
        self._slice_ends = now + signals.slice_length
        if self.law is not None:
            self.law.advance(now, signals)

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        self.told.append((now, event))
        # What raises here is a fault like any other, and would only be counted.
        if not self.advanced or now >= self._slice_ends + 1e-9:
            self.complaints.append(f"not advanced before {event} at {now}")
        if isinstance(event, Arrived):
            if event.call in self.unfinished:
                self.complaints.append(f"{event} has arrived twice")
            self.unfinished[event.call] = now
        elif isinstance(event, FirstToken):
            if event.call in self.served or event.call not in self.unfinished:
                self.complaints.append(f"{event} out of turn")
            self.served.add(event.call)
        else:
            self._ended(now, event)

    def _ended(self, now: float, event: Ended) -> None:
        self.served.discard(event.call)
        arrived = self.unfinished.pop(event.call, None)
        if arrived is None:
            self.strangers += 1
        elif event.latency < now - arrived - 1e-9 and not self._streams:
            self.complaints.append(f"{event} lived longer, from {arrived} to {now}")

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(signals.batch_max) if self.law is None else self.law.decide(now, signals)

    def check(self) -> None:
        """Assert that what was heard was in order, and that each arrival has one end or goes on."""
        assert self.complaints == []
        assert len(self.of(Arrived)) == len(self.of(Ended)) - self.strangers + len(self.unfinished)

    def of(self, type_: type[Any]) -> list[Any]:
        """The events of one type, in order."""
        return [event for _, event in self.told if isinstance(event, type_)]

    @property
    def names(self) -> list[str]:
        """What happened, in order: "Arrived", "FirstToken", "completed", "cancelled"."""
        return [event.outcome if isinstance(event, Ended) else type(event).__name__ for _, event in self.told]

    @property
    def outcomes(self) -> Counter[str]:
        """How calls have ended."""
        return Counter(event.outcome for event in self.of(Ended))
