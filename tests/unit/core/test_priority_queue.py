"""Order, early leaving and memory of the queue.

Keeps the core's part of promise 2 (order, and the old place for who comes back) and of promise 14.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable
from itertools import permutations

import pytest

from llm_traffic_scheduler.core.priority_queue import PriorityQueue
from tests.unit.core.leaving import leaving
from tests.unit.core.tracing import lines_run


class Guest:
    """Cannot be compared: a queue that tried would raise."""


def fill(queue: PriorityQueue[int], number: int) -> None:
    for each in range(number):
        queue.push(each, 0, each)


def fill_backwards(queue: PriorityQueue[int], number: int) -> None:
    for each in reversed(range(number)):
        queue.push(each, 0, each)


def drain(queue: PriorityQueue[int]) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


def test_a_lower_priority_leaves_first_and_among_equals_who_came_first() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number, (name, priority) in enumerate([("c", 1), ("e", 2.5), ("d", 1), ("a", -1.5), ("b", -1)]):
        queue.push(name, priority, number)

    assert [queue.pop() for _ in range(5)] == ["a", "b", "c", "d", "e"]


def test_items_are_never_compared() -> None:
    queue: PriorityQueue[Guest] = PriorityQueue()
    guests = [Guest() for _ in range(20)]
    for number, guest in enumerate(guests):
        queue.push(guest, 0, number)

    assert queue.ordered() == guests
    assert [queue.pop() for _ in guests] == guests


def test_who_comes_back_with_the_old_number_is_back_in_the_old_place() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 3)

    first = queue.pop()
    queue.push(first, 0, 0)

    assert drain(queue) == [0, 1, 2]


def test_an_empty_queue_has_nothing_to_pop_and_nothing_to_see() -> None:
    queue: PriorityQueue[int] = PriorityQueue()

    assert queue.peek() is None
    assert not queue
    with pytest.raises(IndexError):
        queue.pop()
    queue.check()


def test_looking_at_the_first_leaves_it_where_it_is() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 2)

    assert queue.peek() == 0
    assert queue.peek() == 0
    assert drain(queue) == [0, 1]


def test_a_discarded_item_is_gone_for_every_way_of_looking() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 7)

    queue.discard(0)
    queue.discard(4)

    assert len(queue) == 5
    assert sorted(queue) == queue.ordered() == [1, 2, 3, 5, 6]
    assert queue.peek() == 1
    assert drain(queue) == [1, 2, 3, 5, 6]
    queue.check()


def test_a_queue_whose_last_item_was_discarded_is_empty() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 1)

    queue.discard(0)

    assert not queue
    assert len(queue) == 0
    assert queue.peek() is None
    assert list(queue) == queue.ordered() == []
    with pytest.raises(IndexError):
        queue.pop()


@pytest.mark.parametrize("priorities", list(permutations((1, 2, 3, 4))))
def test_in_whatever_order_they_came_they_may_leave_in_any_order(priorities: tuple[int, ...]) -> None:
    for leavers in permutations(range(4)):
        queue: PriorityQueue[int] = PriorityQueue()
        for number, priority in enumerate(priorities):
            queue.push(priority, priority, number)
        left = set(priorities)

        for number in leavers:
            queue.discard(number)
            left.remove(priorities[number])

            queue.check()
            assert queue.peek() == min(left, default=None)


def test_those_who_remain_after_many_have_left_still_leave_in_order() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    numbers = list(range(1_000))
    random.Random(11).shuffle(numbers)
    for number in numbers:
        queue.push(number, 0, number)

    for number in numbers[:700]:
        queue.discard(number)

    queue.check()
    assert drain(queue) == sorted(numbers[700:])


def test_a_number_discarded_a_moment_ago_can_be_used_again() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number, name in enumerate("abcdef"):
        queue.push(name, 0, number)

    queue.discard(2)
    queue.push("C", 1, 2)

    assert [queue.pop() for _ in range(6)] == ["a", "b", "d", "e", "f", "C"]
    queue.check()


def test_what_comes_in_order_joins_the_run_and_what_does_not_is_told_so() -> None:
    queue: PriorityQueue[int] = PriorityQueue()

    joined = [queue.push(number, priority, number) for number, priority in ((1, 0), (3, 0), (2, 0), (4, 1), (5, 0))]

    assert joined == [True, True, False, True, False]
    assert list(queue.in_run()) == [1, 3, 4]


def test_who_has_left_the_run_is_no_longer_in_it() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 7)

    queue.discard(3)
    queue.discard(0)
    queue.pop()

    assert list(queue.in_run()) == [2, 4, 5, 6]


def test_the_queue_may_change_while_it_is_iterated() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 3)

    seen = []
    for item in queue:
        seen.append(item)
        queue.push(item + 10, 0, item + 10)

    assert sorted(seen) == [0, 1, 2]


def test_clearing_takes_out_everything_and_the_queue_can_be_used_again() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 10)
    queue.discard(9)

    queue.clear()

    assert len(queue) == 0
    queue.push(9, 0, 9)
    assert queue.pop() == 9
    queue.check()


def test_it_tells_its_state_in_one_line() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 5)
    queue.discard(3)

    assert repr(queue) == "<PriorityQueue: 4 queued, 1 dead>"


@pytest.mark.parametrize("order", ["first to last", "last to first", "random"])
def test_a_hundred_thousand_that_left_early_leave_no_memory_behind(order: str) -> None:
    queue: PriorityQueue[Guest] = PriorityQueue()
    numbers = list(range(100_000))
    ghosts = []
    for number in numbers:
        guest = Guest()
        ghosts.append(weakref.ref(guest))
        queue.push(guest, 0, number)
    del guest

    for number in leaving(numbers, order):
        queue.discard(number)

    assert not any(ghost() for ghost in ghosts)
    assert memory(queue) < 2_000


@pytest.mark.parametrize("enter", [fill, fill_backwards])
def test_memory_follows_the_live_ones_while_a_queue_with_dead_ones_drains(
    enter: Callable[[PriorityQueue[int], int], None],
) -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    enter(queue, 100_000)
    for number in range(0, 80_000, 2):
        queue.discard(number)

    # The last 20,000 have no dead among them, so nothing but the draining itself can bring the memory down.
    while len(queue) > 100:
        queue.pop()

    assert memory(queue) < 100_000
    queue.check()


@pytest.mark.parametrize("leave", ["popped", "discarded"])
@pytest.mark.parametrize("enter", [fill, fill_backwards])
def test_the_dead_are_swept_up_when_the_live_ones_before_them_are_gone(
    enter: Callable[[PriorityQueue[int], int], None], leave: str
) -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    enter(queue, 1_000)
    for number in range(600, 1_000):
        queue.discard(number)

    for number in range(590):
        if leave == "popped":
            queue.pop()
        else:
            queue.discard(number)
        queue.check()

    assert len(queue) == 10
    assert memory(queue) < 20_000
    queue.check()


def test_nobody_pays_for_the_dead_while_there_are_none() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    fill(queue, 1_000)

    assert lines_run(lambda: queue.push(0, 0, -1)) <= 9
    assert lines_run(queue.pop) <= 9


@pytest.mark.parametrize("enter", [fill, fill_backwards])
def test_discarding_costs_the_same_among_a_hundred_and_among_ten_thousand(
    enter: Callable[[PriorityQueue[int], int], None],
) -> None:
    def work(number: int) -> float:
        queue: PriorityQueue[int] = PriorityQueue()
        enter(queue, number)
        numbers = list(range(number))
        random.Random(1).shuffle(numbers)

        def discard_all() -> None:
            for each in numbers:
                queue.discard(each)

        return lines_run(discard_all) / number

    assert work(10_000) <= 1.2 * work(100)


def test_coming_and_leaving_among_the_dead_cost_the_same_among_a_hundred_and_among_ten_thousand() -> None:
    def work(number: int) -> float:
        queue: PriorityQueue[int] = PriorityQueue()
        fill(queue, number)
        for each in range(number):  # as many out of order
            queue.push(each, -1, -1 - each)

        def come_and_leave() -> None:
            for each in range(20):
                queue.discard(number // 2 + each)
                queue.push(0, 0, number + each)
                queue.pop()

        return lines_run(come_and_leave)

    assert work(10_000) <= 1.2 * work(100)


def test_looking_between_discards_sees_each_dead_item_once() -> None:
    def work(number: int) -> float:
        queue: PriorityQueue[int] = PriorityQueue()
        fill(queue, number)

        def discard_and_look() -> None:
            for each in range(number):
                queue.discard(each)
                queue.peek()

        return lines_run(discard_and_look) / number

    assert work(10_000) <= 1.2 * work(100)


def memory(queue: PriorityQueue[Guest] | PriorityQueue[int]) -> int:
    """Bytes held by the queue's own containers and entries."""
    containers = [queue._run, queue._heap, queue._dead]
    return sum(map(sys.getsizeof, [*containers, *queue._run, *queue._heap]))
