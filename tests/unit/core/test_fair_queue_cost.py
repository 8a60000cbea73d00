"""What turns of tenants cost, and what is left of those who have gone. Promises 2 and 14, in the core."""

from __future__ import annotations

import random
import sys
import weakref

import pytest

from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.running_tenants import RunningTenants
from tests.unit.core.leaving import leaving
from tests.unit.core.tenant_line import Item, Line
from tests.unit.core.tracing import lines_run


@pytest.mark.parametrize("tenants", [1, 100_000])
@pytest.mark.parametrize("order", ["first to last", "last to first", "random"])
@pytest.mark.slow
def test_a_hundred_thousand_that_left_early_leave_no_memory_behind(order: str, tenants: int) -> None:
    queue: FairQueue[Item] = FairQueue()
    kept = Item("tenant 0", 0)
    queue.push(kept, 0, 0)
    numbers = list(range(1, 100_001))
    ghosts = []
    for number in numbers:
        item = Item(f"tenant {number % tenants}", number)
        ghosts.append(weakref.ref(item))
        queue.push(item, 0, number)
    del item

    for number in leaving(numbers, order):
        queue.discard(number)

    assert not any(ghost() for ghost in ghosts)
    assert memory(queue) < 20_000
    queue.check()


def test_ten_thousand_that_ran_at_once_leave_no_memory_behind() -> None:
    line = Line()
    items = [Item(f"tenant {number % 100}", number) for number in range(10_000)]
    for item in items:
        line.queue.started(item)

    for item in items:
        line.queue.ended(item)

    line.queue.check()
    assert sum(map(sys.getsizeof, (line.queue._charged, line.queue._running))) < 20_000


def test_names_that_come_once_leave_nothing_behind_although_others_always_wait() -> None:
    queue: FairQueue[Item] = FairQueue()
    running: list[Item] = []
    for number in range(20_000):
        # Priorities too may be new each time.
        item = Item(f"tenant {number}", number, number % 3 + number / 1e6)
        queue.push(item, item.priority, number)
        if queue.size > 5:
            running.append(item := queue.pop())
            queue.started(item)
        if len(running) > 3:
            queue.ended(running.pop(0))

    assert len(queue._lines) <= 10
    assert len(queue._levels) <= 10
    assert memory(queue) < 20_000
    queue.check()


@pytest.mark.parametrize("tenants", [1, 2, None])
@pytest.mark.slow
def test_no_operation_costs_more_among_ten_thousand_than_among_a_hundred(tenants: int | None) -> None:
    def work(number: int) -> float:
        queue: FairQueue[Item] = FairQueue(RunningTenants(2))
        items = [Item(f"tenant {each % (tenants or number)}", each) for each in range(number)]
        leavers = items[::3]
        random.Random(1).shuffle(leavers)

        def run() -> None:
            for item in items:
                queue.push(item, 0, item.number)
            for item in leavers:
                queue.discard(item.number)
            while queue.size:
                queue.started(item := queue.pop())
                queue.ended(item)

        return lines_run(run) / number

    assert work(10_000) <= 1.2 * work(100)


def test_a_tenant_with_many_priorities_costs_no_more_at_its_bound() -> None:
    def work(number: int) -> float:
        queue: FairQueue[Item] = FairQueue(RunningTenants(1))
        for each in range(number):
            queue.push(Item("a", each, each), each, each)

        def run() -> None:
            for _ in range(number):
                queue.started(item := queue.pop())
                queue.ended(item)

        return lines_run(run) / number

    assert work(2_000) <= 1.2 * work(100)


def memory(queue: FairQueue[Item]) -> int:
    """Bytes held by the queue's own containers."""
    lines = list(queue._lines.values())
    inner = [each for line in lines for each in (line.heap, line.accounts)]
    containers = [queue._items, queue._lines, queue._levels, queue._heap, queue._charged, queue._running]
    return sum(map(sys.getsizeof, [*containers, *inner, *queue._heap, *(it for line in lines for it in line.heap)]))
