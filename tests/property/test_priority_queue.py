"""The queue against the dullest possible twin: a list that is sorted whenever somebody looks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llm_traffic_scheduler.core.priority_queue import PriorityQueue

priorities = st.one_of(st.integers(-2, 2), st.floats(allow_nan=False, allow_infinity=False))


class QueueAndList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: PriorityQueue[str] = PriorityQueue()
        self.twin: list[tuple[float, int, str]] = []
        self.away: list[tuple[float, int, str]] = []
        self.next_number = 0

    @rule(priority=priorities)
    def push(self, priority: float) -> None:
        entry = (priority, self.next_number, f"item {self.next_number}")
        self.next_number += 1
        self._enter(entry)

    @rule(number=st.integers(2, 12))
    def push_several(self, number: int) -> None:
        for _ in range(number):
            self.push(0)

    @precondition(lambda self: self.twin)
    @rule()
    def pop(self) -> None:
        entry = self.twin.pop(0)
        self.away.append(entry)

        assert self.queue.pop() == entry[2]

    @precondition(lambda self: self.twin)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.twin))
        self.twin.remove(entry)
        self.away.append(entry)

        self.queue.discard(entry[1])

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.away))
        self.away.remove(entry)

        self._enter(entry)

    @rule()
    def peek(self) -> None:
        assert self.queue.peek() == (self.twin[0][2] if self.twin else None)

    @rule()
    def clear(self) -> None:
        self.away += self.twin
        self.twin.clear()

        self.queue.clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        items = [item for _, _, item in self.twin]

        assert self.queue.ordered() == items
        assert sorted(self.queue) == sorted(items)
        assert len(self.queue) == len(items)
        assert bool(self.queue) == bool(items)
        self.queue.check()

    def _enter(self, entry: tuple[float, int, str]) -> None:
        self.twin.append(entry)
        self.twin.sort()
        self.queue.push(entry[2], entry[0], entry[1])


TestQueueAndList = QueueAndList.TestCase
