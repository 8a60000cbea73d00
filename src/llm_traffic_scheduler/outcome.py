"""What became of one item of `as_completed`.

Floor: third, without asyncio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Outcome"]

ItemT_co = TypeVar("ItemT_co", covariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ItemT_co, ResultT_co]):
    """What became of one item: a result, or an error.

    Attributes:
        index: the item's place among the items, from 0.
        item: the item itself.
        result: what the function returned; None if there is an error. See `get`.
        error: what the function raised, or why its call was refused; None if it returned.
    """

    index: int
    item: ItemT_co
    result: ResultT_co | None
    error: BaseException | None

    def get(self) -> ResultT_co:
        """The result, as `submit` would have returned it; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # a result may well be None
