"""Turns of tenants, whatever they have done before.

Keeps the core's part of promise 2 (tenants). Those at their bound: test_fair_queue_bounds.py; calls that come back:
test_fair_queue_again.py; what turns cost, and what is left of those who have gone: test_fair_queue_cost.py.
"""

from __future__ import annotations

from itertools import count

import pytest

from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.priority_queue import PriorityQueue
from llm_traffic_scheduler.core.running_items import RunningItems
from llm_traffic_scheduler.core.running_tenants import RunningTenants
from tests.unit.core.tenant_line import Item, Line
from tests.unit.core.tracing import EveryInstruction


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


def test_one_that_was_popped_and_dropped_costs_nothing() -> None:
    line = Line()
    line.push("aaabbb")

    line.queue.pop()
    line.queue.check()

    assert line.drain() == "ababb"


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
