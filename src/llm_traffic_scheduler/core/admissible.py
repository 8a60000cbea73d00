"""What admission works with: calls as it sees them, the batch limit it asks, the bounds in force.

Floor: ground.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Admissible", "BatchLimit", "Limits"]


class Admissible(Protocol):
    """What admission reads of a call (the first block) and writes into it (the second)."""

    interactive: bool
    observed: bool
    priority: float
    deadline: float
    submitted: float

    number: int
    state: int
    queued_at: float
    started_at: float

    @property
    def waiting(self) -> bool: ...

    @property
    def tenant(self) -> str | None: ...

    @property
    def left(self) -> bool:
        """Its caller has gone, and it must not start."""
        ...


class BatchLimit(Protocol):
    """Whoever decides how many batch calls may run.

    Attributes:
        kept: the limit, as long as `fresh` and until `kept_until`; afterwards `limit` has to be asked.
    """

    fresh: bool
    kept: int
    kept_until: float

    def limit(self, now: float) -> int: ...

    def next_look(self, now: float) -> float:
        """When the limit may rise although nothing happens; infinity if never."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds in force. None: no bound, or switched off."""

    max_concurrency: int
    batch_max: int
    batch_min: int = 1
    max_queued_interactive: int | None = None
    max_queued_batch: int | None = None
    starvation_timeout: float | None = 30.0
    max_running_per_tenant: int | None = None
