"""`held_slot` for a synchronous client: a thread reads the response, and nobody may close it but that thread.

Floor: fourth.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Any, Protocol

from llm_traffic_scheduler import QueueTimeout, TrafficScheduler, current_slot

from .body_account import BodyAccount
from .http_rules import Response, Unsuccessful
from .http_words import impatient

__all__ = ["SyncBody", "SyncHeldSlot", "SyncHeldStream"]


class SyncBody(Protocol):
    """A body of an HTTP response."""

    def __iter__(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class SyncHeldSlot:
    """`HeldSlot` for a synchronous client, whose thread waits; `give_back` may be called from any thread.

    A thread cannot be cancelled, so no run timeout ends it.
    """

    __slots__ = ("_block", "_context", "slot")

    _block: Any  # of slot_from_thread(); None: it has been left

    def __init__(self, scheduler: TrafficScheduler, patience: float) -> None:
        queue_timeout, _ = scheduler.timeouts_in_force()
        self._context = copy_context()
        block: Any = scheduler.slot_from_thread(queue_timeout=min(queue_timeout, patience), run_timeout=math.inf)
        try:
            self._context.run(block.__enter__)
        except QueueTimeout as error:
            if queue_timeout <= patience:
                raise
            raise impatient(error, patience) from None
        self._block = block
        slot = self._context.run(current_slot)
        assert slot is not None
        self.slot = slot

    def give_back(self, error: BaseException | None = None) -> None:
        """The call has ended, with `error` if it failed. Only the first time counts."""
        block, self._block = self._block, None
        if block is not None:
            self._context.run(block.__exit__, None if error is None else type(error), error, None)

    def let_go(self) -> None:
        """`give_back` for a call that nobody has any more: the loop is told, and not waited for."""
        block, self._block = self._block, None
        if block is not None:
            self._context.run(block.leave, asyncio.CancelledError())

    @property
    def over(self) -> bool:
        """The slot has been given back."""
        return self._block is None


class SyncHeldStream:
    """A response's body whose call ends with it: read, failed or closed."""

    __slots__ = ("_account", "_body", "_chunks", "_error", "_held", "_read_at")

    def __init__(self, response: Response, held: SyncHeldSlot, error: Unsuccessful | None) -> None:
        self._body: SyncBody = response.stream
        self._chunks: Iterator[bytes] = iter(self._body)
        self._held = held
        self._error = error
        self._account = BodyAccount(held.slot, response, searched=error is None)
        self._read_at = monotonic()

    def read(self) -> bytes:
        """The next bytes; StopIteration when there are no more."""
        self._account.thought += monotonic() - self._read_at
        try:
            chunk = next(self._chunks)
            self._read_at = monotonic()
            self._account.came(chunk)
        except StopIteration:
            self._end(self._error)
            raise
        except BaseException as error:
            self._end(error)
            raise
        return chunk

    def close(self) -> None:
        """Close the body, then the call."""
        self._account.thought += monotonic() - self._read_at
        try:
            self._body.close()
        finally:
            self._end(self._error or self._account.unread())

    @property
    def over(self) -> bool:
        """The slot has been given back."""
        return self._held.over

    def drop(self) -> None:
        """Nobody has the body any more; called from whatever code the collector interrupts.

        That may hold a lock that the loop waits for, so the loop is not waited for.
        """
        with suppress(Exception):
            try:
                self._account.close()
            finally:
                self._held.let_go()

    def _end(self, error: BaseException | None) -> None:
        try:
            if not self.over:
                self._account.close()
        finally:
            self._held.give_back(error)
