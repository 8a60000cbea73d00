"""A warning for calls of two schedulers that may wait for each other for ever.

Floor: third. A call that holds a slot of one scheduler and waits for one of another is common; a circle of such calls
stands still, and nobody would say a word.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Final

from .call import Call
from .core.admission import QUEUED, RUNNING
from .surroundings import lineage

__all__ = ["PATIENCE", "PossibleDeadlock", "watch_for_circles"]

PATIENCE: Final = 5.0
"""Seconds that a call waits before it is looked at."""


class PossibleDeadlock(RuntimeWarning):
    """Calls of several schedulers hold what the others wait for; none may ever go on."""


def watch_for_circles(call: Call) -> None:
    """Warn if a call that waits, and holds a slot of another scheduler, is part of a circle after PATIENCE seconds.

    Each scheduler knows who waits for it and holds a slot elsewhere, by where: ten thousand calls that wait, each of
    which looks at all the others, would stop the loop for seconds.
    """
    waiter, loop = call.waiter, call.home.loop
    if waiter is None or loop is None or not (holders := _held_elsewhere(call)):
        return
    ways = call.home.crossing
    for holder in holders:
        ways.setdefault(holder.home, OrderedDict()).setdefault(call, holder)
    timer = loop.call_later(PATIENCE, _look, call)

    def over(_: object) -> None:
        timer.cancel()
        _forget(call, holders)

    waiter.add_done_callback(over)


def _forget(call: Call, holders: list[Call]) -> None:
    ways = call.home.crossing
    call.home.warned.discard(call)
    for home in {holder.home for holder in holders}:
        del ways[home][call]
        if not ways[home]:
            del ways[home]


def _held_elsewhere(call: Call) -> list[Call]:
    around = (node for node in lineage(call.parent) if isinstance(node, Call))
    return [node for node in around if node.home is not call.home and node.state == RUNNING]


def _look(first: Call) -> None:
    circle = _circle(first)
    if not circle:
        return
    if any(call in call.home.warned for call, _ in circle):
        return
    first.home.warned.add(first)
    names = "; ".join(
        f"{holder.title} holds a slot of {holder.home.name!r}, and inside of it {call.title} waits for one of "
        f"{call.home.name!r}"
        for call, holder in circle
    )
    warnings.warn(
        f"calls of several schedulers wait for each other's slots in a circle and may never go on: {names}: "
        "submit to them in the same order everywhere, or give the inner calls a queue_timeout",
        PossibleDeadlock,
        stacklevel=1,
    )


def _circle(first: Call) -> list[tuple[Call, Call]]:
    """Waiting calls and what holds a slot for them, from `first` back to its own scheduler; empty without a way."""
    paths: list[list[tuple[Call, Call]]] = [[(first, holder)] for holder in _held_elsewhere(first)]
    seen = set()
    while paths:
        path = paths.pop()
        reached = path[-1][1].home
        if reached is first.home:
            return path
        if reached in seen:
            continue
        seen.add(reached)
        # Whoever waits for a slot of the scheduler that was reached, waits for those that hold one there.
        ways = list(reached.crossing.values())
        paths += [[*path, step] for step in map(_first, ways) if step is not None]
    return []


def _first(way: OrderedDict[Call, Call]) -> tuple[Call, Call] | None:
    """A call of these that waits still, and what holds a slot for it still."""
    try:
        return next((step for step in way.items() if step[0].state == QUEUED and step[1].state == RUNNING), None)
    except RuntimeError:  # that scheduler is another thread's, and has just changed it
        return None
