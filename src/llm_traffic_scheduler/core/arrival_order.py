"""Who has waited longest, whatever the priorities say.

Floor: ground. The priority heap knows who is next, not who is oldest; operators and the window
ask for the oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["ArrivalOrder", "Waiting"]

_SLACK: Final = 64


class Waiting(Protocol):
    """What is kept in order: it says itself whether it still waits."""

    @property
    def waiting(self) -> bool: ...


ItemT = TypeVar("ItemT", bound=Waiting)


class ArrivalOrder(Generic[ItemT]):
    """Items in the order they were added; those that no longer wait are skipped, and swept up later.

    Complexity: `add` O(1) amortised, `oldest` as many steps as items at the front have left
    since the last `add`. Never more than twice as many entries as the queue has, plus 64.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()

    def add(self, item: ItemT, waiting: int) -> None:
        """Put `item` last; `waiting` is how many wait now, itself included."""
        items = self._items
        while items and not items[0].waiting:
            items.popleft()
        items.append(item)
        if len(items) > 2 * waiting + _SLACK:
            self._items = deque(item for item in items if item.waiting)

    def clear(self) -> None:
        """Forget everything; for when nothing waits."""
        self._items.clear()

    def oldest(self) -> ItemT | None:
        """The first that still waits, None if none does. Changes nothing."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[ItemT]:
        return (item for item in self._items if item.waiting)

    def __len__(self) -> int:
        """Entries held, the swept-up-later ones included."""
        return len(self._items)
