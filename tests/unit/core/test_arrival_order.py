"""Who has waited longest is known whatever the priorities, and at no cost in memory.

Keeps the core's part of promise 7 (the longest wait is visible) and of promise 14 (no memory left behind).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llm_traffic_scheduler.core.arrival_order import ArrivalOrder


@dataclass(eq=False, slots=True)
class Guest:
    waiting: bool = True


def seat(number: int, *, left: int = 0) -> tuple[ArrivalOrder[Guest], list[Guest]]:
    """An order of `number` guests, of whom the first `left` wait no more."""
    guests = [Guest(waiting=index >= left) for index in range(number)]
    order: ArrivalOrder[Guest] = ArrivalOrder()
    order.extend(guests)
    return order, guests


def test_the_oldest_is_the_first_that_still_waits() -> None:
    order, guests = seat(4, left=2)

    assert list(order.live()) == guests[2:]


@pytest.mark.parametrize("number", [0, 1, 5])
def test_nobody_is_oldest_when_nobody_waits(number: int) -> None:
    order, _ = seat(number, left=number)

    assert list(order.live()) == []


def test_looking_changes_nothing() -> None:
    order, guests = seat(10, left=9)

    list(order.live())

    assert list(order) == guests


def test_a_sweep_lets_go_of_those_that_left_the_front() -> None:
    order, guests = seat(50, left=49)

    order.sweep(1)

    assert list(order) == guests[49:]


def test_a_sweep_lets_go_of_those_that_left_from_behind_a_patient_one() -> None:
    order, (patient, *others) = seat(200)
    for guest in others:
        guest.waiting = False

    order.sweep(1)

    assert list(order) == [patient]


def test_a_sweep_keeps_everyone_who_waits_in_order() -> None:
    order, guests = seat(100)
    for guest in guests[::3]:
        guest.waiting = False
    waiting = [guest for guest in guests if guest.waiting]

    order.sweep(len(waiting))

    assert list(order.live()) == waiting
    assert len(order) <= 2 * len(waiting)
