"""Who waits for a scheduler to be idle.

Floor: third.
"""

from __future__ import annotations

import asyncio

__all__ = ["IdleWaiters"]


class IdleWaiters:
    """Futures that are done once nothing runs and nothing waits; false while nobody asks."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self._futures)

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Wait with `waiter`."""
        self._futures.append(waiter)

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Wait with it no more."""
        if waiter in self._futures:
            self._futures.remove(waiter)

    def tell(self) -> None:
        """It is idle now."""
        for waiter in self._futures:
            if not waiter.done():
                waiter.set_result(None)
        self._futures.clear()

    def abandon(self, *, wake: bool) -> None:
        """It will never be; cancel those who wait if their loop can still run."""
        if wake:
            for waiter in self._futures:
                waiter.cancel()
        self._futures.clear()
