"""Who has waited longest, whatever the priorities say.

Floor: ground. The priority heap knows who is next, not who is oldest; operators and the window
ask for the oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol, TypeVar

__all__ = ["ArrivalOrder", "Waiting"]


class Waiting(Protocol):
    """What is kept in order: it says itself whether it still waits."""

    @property
    def waiting(self) -> bool: ...


ItemT = TypeVar("ItemT", bound=Waiting)


class ArrivalOrder(deque[ItemT]):
    """Items in the order they were appended; those that no longer wait are skipped, and swept up later.

    A deque, so that `append` is as cheap as it gets; whoever changes something calls `sweep` as
    soon as there may be more than twice as many items as wait.

    Complexity: `append` O(1), `sweep` O(1) amortised; the first of `live` as many steps as items at
    the front have left since the last sweep.
    """

    __slots__ = ()

    def sweep(self, waiting: int) -> None:
        """Let go of items that have left; `waiting` is how many have not. At most as many that have left stay."""
        while self and not self[0].waiting:
            self.popleft()
        if len(self) > 2 * waiting:
            kept = [item for item in self if item.waiting]
            self.clear()
            self.extend(kept)

    def live(self) -> Iterator[ItemT]:
        """The items that still wait. Changes nothing."""
        return (item for item in self if item.waiting)
