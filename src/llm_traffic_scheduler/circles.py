"""A warning for calls of two schedulers that may wait for each other for ever.

Floor: third. A call that holds a slot of one scheduler and waits for one of another is common; a circle of such calls
stands still, and nobody would say a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Final

from .call import Call, lineage
from .core.admission import QUEUED, RUNNING

__all__ = ["PATIENCE", "PossibleDeadlock", "watch_for_circles"]

PATIENCE: Final = 5.0
"""Seconds that a call waits before it is looked at."""

# Module state, for a circle is between schedulers: calls that wait while they hold a slot elsewhere. Each is taken out
# when its wait ends, at the latest with its loop.
_crossing: Final[set[Call]] = set()
_told: Final[set[Call]] = set()  # those of them that have warned of their circle


class PossibleDeadlock(RuntimeWarning):
    """Calls of several schedulers hold what the others wait for; none may ever go on."""


def watch_for_circles(call: Call) -> None:
    """Warn if a call that waits, and holds a slot of another scheduler, is part of a circle after PATIENCE seconds."""
    waiter, loop = call.waiter, call.home.loop
    if waiter is None or loop is None or not any(_held_elsewhere(call)):
        return
    _crossing.add(call)
    timer = loop.call_later(PATIENCE, _look, call)

    def over(_: object) -> None:
        timer.cancel()
        _crossing.discard(call)
        _told.discard(call)

    waiter.add_done_callback(over)


def _held_elsewhere(call: Call) -> Iterator[Call]:
    for node in lineage(call.parent):
        if isinstance(node, Call) and node.home is not call.home and node.state == RUNNING:
            yield node


def _look(first: Call) -> None:
    circle = _circle(first)
    if not circle:
        return
    if not _told.isdisjoint(call for call, _ in circle):
        return
    _told.add(first)
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
        for call in [call for call in _crossing if call.home is reached and call.state == QUEUED]:
            paths += [[*path, (call, holder)] for holder in _held_elsewhere(call)]
    return []
