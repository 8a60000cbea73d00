"""Which waiting item is next, and how one leaves early without a search.

Floor: ground. No clock, no asyncio, no I/O.
Algorithm: a binary heap of `(priority, number, item)`; what is discarded stays in the heap as a
dead number until it surfaces or the dead would outnumber the living (the "lazy deletion" of the
heapq documentation, with a bound on the garbage that the documentation leaves out).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["PriorityQueue"]

ItemT = TypeVar("ItemT")


class PriorityQueue(Generic[ItemT]):
    """Items by ascending priority, then by ascending number.

    The caller numbers the items: an item that was popped and comes back with its old number is
    back in its old place. No two items in the queue may share a number; items are never compared.

    Complexity: `push` and `pop` O(log n); `discard` O(1) amortised; `peek` O(1), or O(log n) per
    dead item that surfaces, once each; `len` O(1); iteration O(n); `ordered` O(n log n); a `push`
    under a number discarded a moment ago O(n). Dead items never outnumber live ones, so memory
    follows the live ones, also while the queue drains.
    `heap` is for a caller in a hurry: it is empty exactly when the queue is.
    Cancellation: not applicable; nothing here waits.
    Threads: one thread owns the queue, `peek` included, which tidies up; iteration and `ordered`
    work on a copy and are safe from any.
    """

    __slots__ = ("_dead", "_shed", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, ItemT]] = []
        self._dead: set[int] = set()
        self._shed = 0  # dead numbers that surfaced since the set was last rebuilt

    def push(self, item: ItemT, priority: float, number: int) -> None:
        """Put `item` in its place; a lower priority, then a lower number, leaves earlier."""
        if self._dead and number in self._dead:
            # The entry that died under this number is still in the heap: the new one would be taken for it.
            self._compact()
        heappush(self.heap, (priority, number, item))

    def pop(self) -> ItemT:
        """Take the first item; IndexError when there is none."""
        if not self._dead:
            return heappop(self.heap)[2]
        self._surface()
        item = heappop(self.heap)[2]
        if 2 * len(self._dead) > len(self.heap):
            self._compact()
        return item

    def peek(self) -> ItemT | None:
        """The first item, left where it is; None when there is none."""
        if self._dead:
            self._surface()
        return self.heap[0][2] if self.heap else None

    def discard(self, number: int) -> None:
        """Take out the item with this number, which the caller knows to be in the queue."""
        self._dead.add(number)
        if 2 * len(self._dead) > len(self.heap):
            self._compact()

    def clear(self) -> None:
        """Take out everything."""
        self.heap, self._dead, self._shed = [], set(), 0

    def ordered(self) -> list[ItemT]:
        """The items in the order in which they would leave."""
        return [item for _, _, item in sorted(self._live())]

    def __iter__(self) -> Iterator[ItemT]:
        """The items in no particular order, as they were when the iteration began."""
        return iter([item for _, _, item in self._live()])

    def __len__(self) -> int:
        return len(self.heap) - len(self._dead)

    def __bool__(self) -> bool:
        # The dead never outnumber the living, so a heap with anything in it has a live item.
        return bool(self.heap)

    def __repr__(self) -> str:
        return f"<PriorityQueue: {len(self)} queued, {len(self._dead)} dead>"

    def check(self) -> None:
        """Assert every invariant; for tests."""
        heap, dead = self.heap, self._dead
        numbers = {number for _, number, _ in heap}
        assert all(heap[(child - 1) // 2][:2] <= heap[child][:2] for child in range(1, len(heap))), "no heap"
        assert len(numbers) == len(heap), "two entries share a number"
        assert dead <= numbers, "a dead number is not in the heap"
        assert 2 * len(dead) <= len(heap), "the dead outnumber the living"
        assert self._shed <= len(dead), "the set of the dead keeps room for far more than it holds"

    def _live(self) -> list[tuple[float, int, ItemT]]:
        # The dead first: a number that dies between the two copies was live when we began, but an
        # entry copied alive whose death we then miss, because it surfaced meanwhile, never was.
        dead, heap = self._dead.copy(), self.heap.copy()
        return [entry for entry in heap if entry[1] not in dead] if dead else heap

    def _surface(self) -> None:
        """Remove the dead from the top; a live item exists, for the dead never outnumber the living."""
        heap, dead = self.heap, self._dead
        while heap[0][1] in dead:
            dead.remove(heappop(heap)[1])
            self._shed += 1
        if self._shed > len(dead):
            # A set never shrinks by itself: 100,000 removed numbers would leave 4 MB behind.
            self._dead = set(dead)
            self._shed = 0

    def _compact(self) -> None:
        """Rebuild the heap without the dead: O(n), paid for by the n / 2 discards that brought it about."""
        self.heap = self._live()
        heapify(self.heap)
        self._dead = set()
        self._shed = 0
