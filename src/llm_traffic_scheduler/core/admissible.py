"""What admission works with: calls and their states as it sees them, the batch limit it asks, the bounds in force.

Floor: ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

__all__ = [
    "AWAY",
    "GONE",
    "LENT_ON",
    "QUEUED",
    "RUNNING",
    "Admissible",
    "Aside",
    "BatchLimit",
    "CallT",
    "Limits",
]

QUEUED: Final = 0
RUNNING: Final = 1
GONE: Final = 2
LENT_ON: Final = 3  # has ended, but another call still uses its slot
AWAY: Final = 4  # has started, has given its slot up for a while, and does not wait for one


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


CallT = TypeVar("CallT", bound=Admissible)


class Aside(dict[CallT, bool | None]):
    """Calls that wait and take no place from others. True: it will not count unless it gets a slot of its own; False:
    it had started before; None: bulk work, which keeps a bound of its own.

    A dict that knows how many of each it has, for there may be a hundred thousand. A call comes in once, and goes by
    `drop`.
    """

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        super().__init__()
        self._numbers = {(interactive, why): 0 for interactive in (True, False) for why in (True, False, None)}

    def of_kind(self, interactive: bool) -> int:
        """How many there are of this kind."""
        return sum(self._numbers[interactive, why] for why in (True, False, None))

    def number(self, interactive: bool, nested: bool | None) -> int:
        """How many there are of this kind that will not count (`nested`), that had started before, or that are bulk."""
        return self._numbers[interactive, nested]

    def __setitem__(self, call: CallT, why: bool | None) -> None:
        super().__setitem__(call, why)
        self._numbers[call.interactive, why] += 1

    def came_back(self, call: CallT) -> bool:
        """The call waits, and had started before."""
        return self.get(call) is False

    def up_to_newcomer(self, waiting: Iterable[CallT]) -> Iterator[CallT]:
        """Of calls that wait, the only ones that may be the oldest, or have waited longest.

        Those that came back stand in front, in no order; behind the first other one, all came later. Threads: any.
        """
        for call in waiting:
            yield call
            if not self.came_back(call):
                return

    def once(self, waiting: Iterator[CallT]) -> Iterator[CallT]:
        """Calls that wait, each once: whoever waited before, and came back, may still be met in its first place too."""
        return self._once(waiting) if self else waiting

    def _once(self, waiting: Iterator[CallT]) -> Iterator[CallT]:
        met: set[CallT] = set()
        for call in waiting:
            if self.came_back(call):
                if call in met:
                    continue
                met.add(call)
            yield call

    def drop(self, call: CallT) -> None:
        """Take the call out, if it is there."""
        if call in self:
            self._numbers[call.interactive, self.pop(call)] -= 1


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
