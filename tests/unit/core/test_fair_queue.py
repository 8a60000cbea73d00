"""Turns of tenants, what they cost and what is left of those who have gone.

Keeps the core's part of promise 2 (tenants) and of promise 14.
"""

from __future__ import annotations

import random
import sys
import weakref
from dataclasses import dataclass
from itertools import count

import pytest

from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.priority_queue import PriorityQueue
from llm_traffic_scheduler.core.running_items import RunningItems
from llm_traffic_scheduler.core.running_tenants import RunningTenants
from tests.unit.core.tracing import EveryInstruction, lines_run


@dataclass(eq=False, slots=True, weakref_slot=True)
class Item:
    """Cannot be compared: a queue that tried would raise."""

    tenant: str | None
    number: int
    priority: float = 0


class Line:
    """A queue, its items by the names of their tenants, and those that run."""

    def __init__(self, max_running_per_tenant: int | None = None) -> None:
        self.tenants = RunningTenants(max_running_per_tenant)
        self.queue: FairQueue[Item] = FairQueue(self.tenants)
        self.running: list[Item] = []
        self.numbers = count(1)

    def push(self, tenants: str | list[str | None], priority: float = 0) -> list[Item]:
        """One item for each tenant; a word is a tenant per letter."""
        items = [Item(tenant, next(self.numbers), priority) for tenant in tenants]
        for item in items:
            self.queue.push(item, item.priority, item.number)
        self.queue.check()
        return items

    def start(self) -> Item:
        item = self.queue.pop()
        self.queue.started(item)
        self.queue.check()
        self.running.append(item)
        return item

    def end(self, item: Item) -> None:
        self.running.remove(item)
        self.queue.ended(item)
        self.queue.check()

    def turns(self, number: int) -> str:
        """Tenants of the next starts, one slot: each ends before the next one starts."""
        names = ""
        for _ in range(number):
            item = self.start()
            names += item.tenant or "-"
            self.end(item)
        return names

    def drain(self) -> str:
        return self.turns(len(self.queue))


def test_the_only_call_of_one_tenant_is_next_although_another_has_a_thousand() -> None:
    line = Line()
    line.push("a" * 1000)
    line.turns(3)

    line.push("b")

    assert line.turns(3) == "baa"


def test_two_tenants_take_turns_however_many_calls_they_have() -> None:
    line = Line()
    line.push("a" * 1000)
    line.push("bbbb")

    assert line.turns(10) == "ababababaa"


def test_starts_alternate_also_where_several_run_at_once() -> None:
    line = Line()
    line.push("a" * 20)
    held = [line.start() for _ in range(8)]
    line.push("bbbbb")

    names = []
    for item in held:
        line.end(item)
        names.append(line.start().tenant)

    assert names == ["b", "a", "b", "a", "b", "a", "b", "a"]


def test_within_a_tenant_the_first_that_came_is_the_first_to_leave() -> None:
    line = Line()
    items = line.push("abbaba")

    order = [line.start() for _ in items]

    assert [item for item in order if item.tenant == "a"] == [items[0], items[3], items[5]]
    assert [item for item in order if item.tenant == "b"] == [items[1], items[2], items[4]]


def test_no_tenant_is_a_tenant() -> None:
    line = Line()
    line.push([None] * 4)
    line.push("aa")

    assert line.drain() == "-a-a--"


def test_priority_comes_before_turns() -> None:
    line = Line()
    line.push("ab")
    line.push("bbb", priority=-1)
    line.push("a", priority=1)

    assert line.drain() == "bbbaba"


@pytest.mark.parametrize("priorities", [(7, 3, 5), (-3, -7, -5), (0.5, 0.25, 0.375)])
def test_a_more_urgent_call_passes_those_of_its_own_tenant(priorities: tuple[float, ...]) -> None:
    line = Line()
    for priority in priorities:
        line.push("a", priority)

    assert [line.start().priority for _ in priorities] == sorted(priorities)


def test_turns_at_one_priority_do_not_count_at_another() -> None:
    line = Line()
    line.push("aaa")
    line.push("c" * 50, priority=-1)
    line.turns(50)
    line.push("bb")

    assert line.drain() == "ababa"


def test_an_urgent_call_passes_those_of_its_own_tenant_and_costs_it_no_turn_below() -> None:
    line = Line()
    line.push("abab")
    line.push("a", priority=-1)

    assert line.drain() == "aabab"


def test_cancelling_costs_nothing() -> None:
    line, twin = Line(), Line()
    for each in (line, twin):
        each.push("ccc")
    doomed = line.push("a" * 100)
    for each in (line, twin):
        each.push("bbb")

    for item in doomed:
        line.queue.discard(item.number)

    for each in (line, twin):
        each.push("aaa")
    assert line.drain() == twin.drain() == "cbacbacba"


def test_whoever_follows_a_cancelled_head_has_its_turn() -> None:
    line = Line()
    line.push("cc")
    head, *_ = line.push("aaa")
    line.push("bb")
    line.start()

    line.queue.discard(head.number)

    assert line.drain() == "abcab"


def test_a_place_is_not_held_by_a_tenant_that_does_not_wait() -> None:
    line = Line()
    line.push("aa")
    line.start()
    second = line.queue.peek()
    assert second is not None
    line.queue.discard(second.number)
    line.push("b" * 10)
    line.turns(8)

    line.push("aaa")

    assert line.drain() == "ababa"


def test_a_tenant_that_was_away_has_no_credit() -> None:
    line = Line()
    line.push("ab")
    line.drain()
    line.push("a" * 50)
    line.turns(40)

    line.push("bbbb")

    assert line.turns(9) == "babababaa"


def test_a_tenant_whose_call_runs_for_long_gathers_no_credit_meanwhile() -> None:
    line = Line()
    line.push("b")
    long = line.start()
    line.push("a" * 50)
    line.turns(40)

    line.push("bbbb")

    assert line.turns(9) == "babababaa"
    assert long in line.running


def test_a_tenant_that_used_what_nobody_wanted_owes_nothing() -> None:
    line = Line()
    line.push("a" * 50)
    line.drain()

    line.push("aaa")
    line.push("bbb")

    assert line.drain() == "ababab"


def test_a_tenant_with_one_call_at_a_time_has_every_second_turn() -> None:
    line = Line()
    line.push("a" * 50)
    line.push("b")

    names = ""
    running = line.start()
    for _ in range(10):
        names += running.tenant or "-"
        line.end(running)
        following = line.start()  # the slot goes on before the caller is back
        if running.tenant == "b":
            line.push("b")
        running = following

    assert names == "ababababab"


@pytest.mark.parametrize("names", ["bc", "bcdefghijklmnopqrstuvwxyz"])
def test_tenants_that_come_back_at_once_do_not_starve_one_that_waits(names: str) -> None:
    line = Line()
    line.push("a" * 50)
    line.push(names)

    starts = ""
    running = line.start()
    for _ in range(10 * (len(names) + 1)):
        starts += running.tenant or "-"
        line.end(running)
        following = line.start()
        if running.tenant != "a":
            line.push([running.tenant])
        running = following

    assert starts.count("a") >= 9


def test_strangers_that_come_without_end_do_not_starve_one_that_waits() -> None:
    line = Line()
    line.push("aaaa")
    strangers = (f"stranger {number}" for number in count())
    line.push([next(strangers) for _ in range(3)])

    starts = []
    for _ in range(19):
        running = line.start()
        starts.append(running.tenant)
        if running.tenant != "a":
            line.push([next(strangers)])  # there is always one more
        line.end(running)

    assert [at for at, tenant in enumerate(starts) if tenant == "a"] == [0, 7, 11, 15]


def test_a_call_that_comes_back_is_in_its_old_place_and_pays_nothing() -> None:
    line = Line()
    line.push("aabbcc")
    first, *_ = [line.start() for _ in range(3)]

    line.queue.push(first, first.priority, first.number)
    line.running.remove(first)

    assert line.queue.peek() is first
    assert line.tenants.running("a") == 0
    assert line.start() is first
    assert line.drain() == "abc"


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_that_stepped_aside_comes_back_for_nothing(waits: bool) -> None:
    line = Line(max_running_per_tenant=1)
    line.push("aabb")
    first = line.start()

    line.queue.set_aside(first)
    assert line.tenants.running("a") == 0
    assert line.queue.ready == 2
    if waits:
        line.queue.push(first, first.priority, first.number)
        assert line.queue.pop() is first
    line.queue.started(first)

    assert line.tenants.running("a") == 1
    line.end(first)
    assert line.drain() == "bab"


def test_a_call_that_came_back_and_is_cancelled_leaves_nothing() -> None:
    line = Line()
    (only,) = line.push("a")
    line.start()
    line.queue.push(only, only.priority, only.number)

    line.queue.discard(only.number)

    line.queue.check()
    assert not line.queue._lines
    assert not line.queue._charged


def test_a_call_that_waits_again_and_goes_on_without_a_slot_pays_no_second_time() -> None:
    line = Line()
    (first,) = line.push("a")
    line.start()
    line.push("aaabbbccc")
    names = ""
    for _ in range(9):
        line.queue.push(first, 0, first.number)
        line.queue.discard(first.number)
        line.queue.set_aside(first)
        names += line.turns(1)

    assert names == "bcabcabca"
    line.queue.ended(first)
    line.queue.check()
    assert repr(line.queue) == "<FairQueue: 0 queued, 0 tenants, 0 ready>"


def test_the_end_of_the_first_run_of_a_call_that_waits_again_is_not_its_end() -> None:
    line = Line()
    line.push("ab")
    first = line.start()

    line.queue.push(first, first.priority, first.number)
    line.queue.ended(first)

    line.queue.check()
    assert line.queue.pop() is first


def test_one_that_was_popped_and_dropped_costs_nothing() -> None:
    line = Line()
    line.push("aaabbb")

    line.queue.pop()
    line.queue.check()

    assert line.drain() == "ababb"


def test_a_tenant_at_its_bound_is_passed_over_and_blocks_nobody() -> None:
    line = Line(max_running_per_tenant=2)
    line.push("aaaa")
    line.push("b")
    started = [line.start() for _ in range(3)]

    assert [item.tenant for item in started] == ["a", "b", "a"]
    assert (line.queue.size, line.queue.ready, line.queue.peek()) == (2, 0, None)
    with pytest.raises(IndexError):
        line.queue.pop()

    line.end(started[0])
    assert line.start().tenant == "a"


def test_a_tenant_passed_over_gathers_no_credit() -> None:
    line = Line(max_running_per_tenant=1)
    line.push("a" * 10)
    held = line.start()
    line.push("b" * 40)
    line.turns(30)

    line.tenants.max_running_per_tenant = None

    assert line.turns(6) == "ababab"
    line.end(held)


def test_tenants_below_their_bound_again_come_after_those_whose_turn_it_is() -> None:
    line = Line(max_running_per_tenant=1)
    line.push("aaee")
    held = [line.start(), line.start()]
    line.push("bbbbcccc")
    assert line.turns(5) == "bcbcb"  # and c has not had its turn of the third round

    for item in held:
        line.end(item)

    assert line.turns(2) == "ca"
    assert [item.tenant for item in line.queue.ordered()] == ["e", "b", "c"]
    assert line.drain() == "ebc"


def test_the_bound_may_change_while_calls_wait() -> None:
    line = Line()
    line.push("aaaabb")
    for _ in range(3):
        line.start()

    line.tenants.max_running_per_tenant = 1
    line.queue.check()
    assert line.queue.ready == 0

    line.tenants.max_running_per_tenant = 2
    line.queue.check()
    assert [line.start().tenant, line.queue.ready] == ["b", 0]


def test_the_bound_holds_for_all_queues_together() -> None:
    line = Line(max_running_per_tenant=1)
    other: FairQueue[Item] = FairQueue(line.tenants)
    line.push("aa")
    nightly = Item("a", 100)
    other.push(nightly, 0, 100)

    running = line.start()
    assert (line.queue.ready, other.ready) == (0, 0)

    line.end(running)
    assert (line.queue.ready, other.ready) == (1, 1)
    other.started(other.pop())
    assert line.queue.ready == 0
    other.check()


def test_a_plain_queue_is_taken_over_with_those_that_run() -> None:
    plain: PriorityQueue[Item] = PriorityQueue()
    items = [Item(None if number < 6 else "a", number, 1 if number == 2 else 0) for number in range(8)]
    for item in items[1:]:
        plain.push(item, item.priority, item.number)

    queue = FairQueue.from_queue(plain, items[:1], tenants := RunningTenants(2))

    queue.check()
    assert tenants.running(None) == 1
    assert queue.ordered() == [items[number] for number in (6, 1, 7, 3, 4, 5, 2)]
    queue.started(queue.pop())
    queue.started(queue.pop())
    assert (queue.ready, queue.peek()) == (1, items[7])  # no tenant has come to its bound


def test_a_dict_of_those_that_run_tells_the_queue() -> None:
    line = Line(max_running_per_tenant=2)
    first, second, third = line.push("aaa")
    line.queue.started(line.queue.pop())
    running: RunningItems[Item] = RunningItems([first], line.queue)

    running[line.queue.pop()] = None
    assert (list(running), line.queue.ready) == ([first, second], 0)

    del running[first]
    assert line.queue.peek() is third

    running.set_aside(second)
    line.queue.push(second, 0, second.number)
    assert line.queue.peek() is second
    assert not running
    assert line.tenants.running("a") == 0


def test_an_empty_queue_has_nothing_to_pop_and_nothing_to_see() -> None:
    queue: FairQueue[Item] = FairQueue()

    assert queue.peek() is None
    assert not queue
    assert list(queue) == queue.ordered() == list(queue.in_run()) == []
    with pytest.raises(IndexError):
        queue.pop()
    queue.check()


def test_the_order_is_foretold_and_those_at_their_bound_come_last() -> None:
    line = Line(max_running_per_tenant=1)
    items = line.push("aaabb")
    line.push("c", priority=5)
    urgent = line.push("b", priority=-1)
    line.start()
    line.start()

    # b's urgent call runs, and a's first one: both are at their bound.
    assert [item.tenant for item in line.queue.ordered()] == ["c", "b", "a", "b", "a"]
    line.tenants.max_running_per_tenant = None
    foretold = line.queue.ordered()
    assert [line.start() for _ in foretold] == foretold
    assert line.running[0] is urgent[0]
    assert line.running[1] is items[0]


def test_the_old_place_of_a_call_that_came_back_is_foretold() -> None:
    line = Line()
    line.push("ab")
    first = line.start()
    line.queue.set_aside(first)
    line.queue.push(first, first.priority, first.number)

    foretold = line.queue.ordered()

    assert foretold[0] is first
    assert [line.start() for _ in foretold] == foretold


def test_it_tells_its_state_in_one_line() -> None:
    line = Line(max_running_per_tenant=1)
    line.push("aaabb")
    line.start()

    assert repr(line.queue) == "<FairQueue: 4 queued, 2 tenants, 1 ready>"


def test_readers_of_other_threads_may_look_at_any_instruction() -> None:
    line = Line(max_running_per_tenant=2)
    line.push("aab")
    line.start()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        for seen in (line.queue.ordered(), list(line.queue)):
            assert len(set(seen)) == len(seen)
        repr(line.queue)

    items = [Item(tenant, number) for number, tenant in enumerate("abcabc", start=100)]
    with EveryInstruction(look):
        for item in items:
            line.queue.push(item, 0, item.number)
        line.queue.started(item := line.queue.pop())
        line.queue.discard(items[4].number)
        line.queue.ended(item)
        line.queue._shrink()

    assert looks > 100


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
    if order == "random":
        random.Random(7).shuffle(numbers)
    elif order == "last to first":
        numbers.reverse()

    for number in numbers:
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
