"""Calls that come back into a queue of tenants: to their old place, and for nothing. Promise 2, in the core."""

from __future__ import annotations

import pytest

from tests.unit.core.tenant_line import Line


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


def test_the_old_place_of_a_call_that_came_back_is_foretold() -> None:
    line = Line()
    line.push("ab")
    first = line.start()
    line.queue.set_aside(first)
    line.queue.push(first, first.priority, first.number)

    foretold = line.queue.ordered()

    assert foretold[0] is first
    assert [line.start() for _ in foretold] == foretold
