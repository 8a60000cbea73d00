"""A task that notes how its own await ended, for the tests of cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from tests.behaviour.doors import start

__all__ = ["Caller", "cancelling", "forever"]


async def forever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


def cancelling() -> int:
    """How many cancels the running task is still owed."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Caller:
    """A task that awaits something and notes the error, and how many cancels were owed then."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.error: BaseException | None = None
        self.owed = -1
        self.task = start(self._await(awaitable))

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        try:
            return await awaitable
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.owed = cancelling()

    async def ended(self) -> tuple[type[BaseException] | None, int]:
        """Type of the error, and the count of cancels that are still owed."""
        await asyncio.wait([self.task])
        return (None if self.error is None else type(self.error)), self.owed
