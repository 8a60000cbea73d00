"""Tells listeners what happened, after the state is whole, and keeps their faults from doing harm.

Floor: third.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn

from .events import Event

__all__ = ["Listener", "Listeners"]

Listener = Callable[[Event], None]

_log: Final = logging.getLogger("llm_traffic_scheduler")


class Listeners:
    """The callbacks of one scheduler, in the order they were added, and a count of what went wrong in them.

    What a callback does to the scheduler takes effect after the current operation: the events
    that follow from it are told after the present ones, in a loop and not by recursion. Where `callbacks` is empty, nobody builds an event.
    """

    __slots__ = ("_flushing", "_logged", "_name", "_queue", "callbacks", "listener_faults", "policy_faults")

    def __init__(self, name: str) -> None:
        self._name = name
        self.callbacks: tuple[Listener, ...] = ()
        self._queue: deque[Event] = deque()
        self._flushing = False
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self.policy_faults = self.listener_faults = 0

    def add(self, callback: Listener) -> None:
        self.callbacks = (*self.callbacks, callback)

    def remove(self, callback: Listener) -> None:
        """Take out one registration of `callback`; ValueError if there is none."""
        callbacks = list(self.callbacks)
        callbacks.remove(callback)
        self.callbacks = tuple(callbacks)

    def emit(self, event: Event) -> None:
        """Keep `event` for the next `flush`."""
        self._queue.append(event)

    def flush(self) -> None:
        """Tell what has been kept; does nothing from within a callback, since the outer flush goes on."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._queue:
                event = self._queue.popleft()
                for callback in self.callbacks:
                    try:
                        callback(event)
                    except BaseException as error:
                        self.listener_faults += 1
                        self._fault("listener", error)
        finally:
            self._flushing = False

    def policy_fault(self, error: BaseException) -> None:
        """A policy raised, or gave an answer that is none."""
        self.policy_faults += 1
        self._fault("policy", error)

    def _fault(self, where: str, error: BaseException) -> None:
        if (where, type(error)) not in self._logged:
            self._logged.add((where, type(error)))
            # A log handler of the user's may raise as well, in the middle of a release.
            with contextlib.suppress(Exception):
                _log.error(
                    "a %s of scheduler %r raised; it is logged once per kind of error, and counted",
                    where,
                    self._name,
                    exc_info=error,
                )
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            # These are meant for the process. They go on from a callback of their own, where no slot is at stake.
            asyncio.get_running_loop().call_soon(_reraise, error)


def _reraise(error: BaseException) -> NoReturn:
    raise error
