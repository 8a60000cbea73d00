"""Which waiting item is next, and how one leaves early without a search.

Floor: ground. No clock, no asyncio, no I/O.
Algorithm: a binary heap of `(priority, number, item)`, and beside it a sorted run: what comes in
order, as nearly everything does where most calls have one priority, is appended to the run and
taken from its front, both in one step; only what comes out of order pays for the heap. What is
discarded stays as a dead number until it surfaces or the dead would outnumber the living (the
"lazy deletion" of the heapq documentation, with a bound on the garbage it leaves out).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Generic, TypeVar

__all__ = ["PriorityQueue"]

ItemT = TypeVar("ItemT")


class PriorityQueue(Generic[ItemT]):
    """Items by ascending priority, then by ascending number.

    The caller numbers the items: an item that was popped and comes back with its old number is
    back in its old place. No two items in the queue may share a number; items are never compared.

    Attributes:
        size: how many items are in it; to be read only.
        ready: the same: all of them may leave. Other queues have items that may not.

    Complexity: `push` and `pop` O(1) for what comes in order, O(log n) for the rest; `discard` O(1)
    amortised; `peek` the same as `pop` for each dead item that surfaces, once each; iteration O(n);
    `ordered` O(n log n); a `push` under a number discarded a moment ago O(n). Dead items never
    outnumber live ones, so memory follows the live ones, also while the queue drains.
    Cancellation: not applicable; nothing here waits.
    Threads: one thread owns the queue, `peek` included, which tidies up; iteration and `ordered`
    work on a copy and are safe from any.
    """

    __slots__ = ("_dead", "_heap", "_run", "_shed", "size")
    ready: int

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Take out everything."""
        self.size = 0
        self._run: deque[tuple[float, int, ItemT]] = deque()
        self._heap: list[tuple[float, int, ItemT]] = []
        self._dead: set[int] = set()
        self._shed = 0  # dead numbers that surfaced since the set was last rebuilt

    def push(self, item: ItemT, priority: float, number: int) -> bool:
        """Put `item` in its place; a lower priority, then a lower number, leaves earlier.

        True if it joined the run: it leaves after all that were pushed into the run before.
        """
        if self._dead and number in self._dead:
            # The entry that died under this number is still here: the new one would be taken for it.
            self._compact()
        self.size += 1
        run = self._run
        if run:
            last_priority, last_number, _ = run[-1]
            if priority < last_priority or number < last_number:
                heappush(self._heap, (priority, number, item))
                return False
        run.append((priority, number, item))
        return True

    def pop(self) -> ItemT:
        """Take the first item; IndexError when there is none."""
        if self._dead:
            self._surface()
            self._tidy(len(self._run) + len(self._heap) - 1)
        item = (self._take() if self._heap else self._run.popleft())[2]
        self.size -= 1  # only now: an empty queue raises above, and is still empty
        return item

    def peek(self) -> ItemT | None:
        """The first item, left where it is; None when there is none."""
        if self._dead:
            self._surface()
        return self._first()[2] if self.size else None

    def discard(self, number: int) -> None:
        """Take out the item with this number, which the caller knows to be in the queue."""
        self.size -= 1
        run = self._run
        if run and run[0][1] == number:
            run.popleft()
            while self._dead and run and run[0][1] in self._dead:
                self._bury(run.popleft())
        else:
            self._dead.add(number)
        if self._dead:
            self._tidy(len(run) + len(self._heap))

    def in_run(self) -> Iterator[ItemT]:
        """The items that joined the run and are still there, in the order in which they joined."""
        dead = self._dead
        return (item for _, number, item in self._run if number not in dead)

    def ordered(self) -> list[ItemT]:
        """The items in the order in which they would leave."""
        return [item for _, _, item in sorted(self._live())]

    def __iter__(self) -> Iterator[ItemT]:
        """The items in no particular order, as they were when the iteration began."""
        return iter([item for _, _, item in self._live()])

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<PriorityQueue: {self.size} queued, {len(self._dead)} dead>"

    def check(self) -> None:
        """Assert every invariant; for tests."""
        heap, run, dead = self._heap, list(self._run), self._dead
        numbers = {number for _, number, _ in (*heap, *run)}
        assert all(heap[(child - 1) // 2][:2] <= heap[child][:2] for child in range(1, len(heap))), "no heap"
        assert all(before[0] <= after[0] and before[1] < after[1] for before, after in pairwise(run)), "no run"
        assert len(numbers) == len(heap) + len(run), "two entries share a number"
        assert dead <= numbers, "a dead number is not in the queue"
        assert self.size == len(numbers) - len(dead), "the size is off"
        assert 2 * len(dead) <= len(numbers), "the dead outnumber the living"
        assert self._shed <= len(dead), "the set of the dead keeps room for far more than it holds"

    def _first(self) -> tuple[float, int, ItemT]:
        run, heap = self._run, self._heap
        return heap[0] if not run or (heap and heap[0] < run[0]) else run[0]

    def _take(self) -> tuple[float, int, ItemT]:
        run, heap = self._run, self._heap
        return heappop(heap) if not run or (heap and heap[0] < run[0]) else run.popleft()

    def _live(self) -> list[tuple[float, int, ItemT]]:
        # The dead first: a number that dies between the copies was live when we began, but an
        # entry copied alive whose death we then miss, because it surfaced meanwhile, never was.
        dead, entries = self._dead.copy(), [*self._run.copy(), *self._heap.copy()]
        return [entry for entry in entries if entry[1] not in dead] if dead else entries

    def _surface(self) -> None:
        """Remove the dead from the front; while there are any, there is a live item too."""
        while self._first()[1] in self._dead:
            self._bury(self._take())

    def _bury(self, entry: tuple[float, int, ItemT]) -> None:
        """Forget a dead entry that has left."""
        self._dead.remove(entry[1])
        self._shed += 1
        if self._shed > len(self._dead):
            # A set never shrinks by itself: 100,000 removed numbers would leave 4 MB behind.
            self._dead = set(self._dead)
            self._shed = 0

    def _tidy(self, entries: int) -> None:
        if 2 * len(self._dead) > entries:
            self._compact()

    def _compact(self) -> None:
        """Rebuild without the dead: O(n), paid for by the n / 2 discards that brought it about."""
        dead = self._dead
        self._run = deque(entry for entry in self._run if entry[1] not in dead)
        self._heap = [entry for entry in self._heap if entry[1] not in dead]
        heapify(self._heap)
        self._dead = set()
        self._shed = 0


# One slot under two names: a property would cost a call each time somebody asks.
PriorityQueue.ready = PriorityQueue.size  # type: ignore[misc]
