"""Tenants at their bound on what runs at once: passed over, and blocking nobody. Promise 2, in the core."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler.core.fair_queue import FairQueue
from tests.unit.core.tenant_line import Item, Line


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
