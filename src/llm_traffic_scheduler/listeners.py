"""Tells listeners what happened, after the state is whole, and keeps their faults from doing harm.

Floor: third.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Final, NoReturn

from .call import Call, Verdict
from .errors import SchedulerMisuse
from .events import (
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    Ending,
    Event,
    LimitChanged,
    RejectionReason,
)
from .policies.base import Decision

__all__ = ["Listener", "Listeners"]

Listener = Callable[[Event], None]

_REASONS: Final[dict[Verdict, RejectionReason]] = {
    Verdict.FULL: "queue_full",
    Verdict.TIMEOUT: "queue_timeout",
    Verdict.CLOSED: "closed",
}

_KINDS_LOGGED: Final = 100  # of errors; what comes after them is counted only

_log: Final = logging.getLogger("llm_traffic_scheduler")


class Listeners:
    """The callbacks of one scheduler, in the order they were added, and a count of what went wrong in them.

    What a callback does to the scheduler takes effect after the current operation: the events
    that follow from it are told after the present ones, in a loop and not by recursion. Without a
    callback no event is even made.

    Callbacks run in a context of their own: whoever happens to release a slot has nothing to do with the call
    that is told of, and a task started in a callback must not pass for part of that one's call.
    """

    __slots__ = (
        "_context",
        "_fatal",
        "_flushing",
        "_logged",
        "_queue",
        "_warned",
        "callbacks",
        "listener_faults",
        "name",
        "policy_faults",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self._context = Context()
        self.callbacks: tuple[Listener, ...] = ()
        self._queue: deque[Event] = deque()
        self._fatal: BaseException | None = None
        self._flushing = False
        self._logged: set[tuple[str, str, str]] = set()
        self._warned: Mapping[str, str] = {}
        self.policy_faults = self.listener_faults = 0

    def add(self, callback: Listener) -> None:
        self.callbacks = (*self.callbacks, callback)

    def remove(self, callback: Listener) -> None:
        """Take out one registration of `callback`; ValueError if there is none."""
        callbacks = list(self.callbacks)
        callbacks.remove(callback)
        self.callbacks = tuple(callbacks)

    def queued(self, call: Call, queued: int) -> None:
        """The call waits; with it `queued` calls of its kind do."""
        if self.callbacks:
            self._queue.append(CallQueued(call.queued_at, call.kind, call.label, queued))

    def started(self, call: Call) -> None:
        """The call has a slot."""
        if self.callbacks:
            at = call.started_at
            self._queue.append(CallStarted(at, call.kind, call.label, call.waited(at)))

    def finished(self, call: Call, outcome: Ending, now: float) -> None:
        """The call has ended, or has left the queue (then `started_at` is when)."""
        if not self.callbacks:
            return
        slot = None if call.extras is None else call.extras.slot
        first = None if slot is None or slot.first_token_at is None else slot.first_token_at - call.submitted
        waited = call.waited(now)
        ran = max(0.0, now - call.started_at)
        tokens = 0 if slot is None else slot.token_count
        self._queue.append(CallFinished(now, call.kind, call.label, outcome, waited, ran, first, tokens))

    def rejected(self, call: Call, verdict: Verdict) -> None:
        """The call was refused at `started_at`."""
        if self.callbacks:
            at = call.started_at
            waited = max(0.0, at - call.submitted)
            self._queue.append(CallRejected(at, call.kind, call.label, _REASONS[verdict], waited))

    def limit_changed(self, now: float, before: Decision, after: Decision) -> None:
        """Another batch limit is in force."""
        if self.callbacks:
            self._queue.append(LimitChanged(now, before.limit, after.limit, after.pressure, after.reason))

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
                        if (answer := self._context.run(callback, event)) is not None:
                            _refuse_to_await(answer)
                    except BaseException as error:
                        self.listener_faults += 1
                        self._fault("listener", error)
        finally:
            self._flushing = False

    def policy_fault(self, error: BaseException) -> None:
        """A policy raised, or gave an answer that is none."""
        self.policy_faults += 1
        self._fault("policy", error)

    def warn(self, kind: str, message: str) -> None:
        """Log that something looks wrong, unless this kind of thing has been logged since the settings changed."""
        if kind not in self._warned:
            self._warned = {**self._warned, kind: message}
            # As in `_fault`: a log handler may raise in the middle of a release.
            with contextlib.suppress(Exception):
                _log.warning("scheduler %r: %s", self.name, message)

    @property
    def warnings(self) -> Mapping[str, str]:
        """What has been logged since the settings changed, by kind. Threads: any; it is replaced, never changed."""
        return self._warned

    def forget_warnings(self) -> None:
        """The settings have changed: whatever looks wrong now is news."""
        self._warned = {}

    def _fault(self, where: str, error: BaseException) -> None:
        # By name: libraries that make an exception class for each answer would fill the log, and memory.
        key = where, type(error).__module__, type(error).__qualname__
        if key not in self._logged and len(self._logged) < _KINDS_LOGGED:
            self._logged.add(key)
            # A log handler of the user's may raise as well, in the middle of a release.
            with contextlib.suppress(Exception):
                _log.error(
                    "a %s of scheduler %r raised; it is logged once per kind of error, and counted",
                    where,
                    self.name,
                    exc_info=error,
                )
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            # These are meant for the process. They go on from a callback of their own, where no slot is at stake,
            # or at the end of the present operation if no loop runs.
            try:
                asyncio.get_running_loop().call_soon(_reraise, error)
            except RuntimeError:
                self._fatal = error

    def raise_fatal(self) -> None:
        """Raise what was meant for the process and found no loop to be raised from."""
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            raise fatal


def _refuse_to_await(answer: object) -> None:
    if inspect.iscoroutine(answer):
        answer.close()
        raise SchedulerMisuse(
            "a listener is a plain function, and what it does is done when it returns; this one returned a coroutine: "
            "start a task in it, and keep the task"
        )


def _reraise(error: BaseException) -> NoReturn:
    raise error
