"""The calls that run, where tenants share.

Floor: ground.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from .fair_queue import FairQueue, Tenanted

__all__ = ["RunningItems"]

ItemT = TypeVar("ItemT", bound=Tenanted)


class RunningItems(dict[ItemT, None]):
    """Those that run, in the order in which they started; tells the queue of each that enters or leaves.

    Takes the place of a plain dict, so that whoever starts and ends calls need not know that tenants share.
    Items come by `running[item] = None` and go by `del`, or by `set_aside` if they have not ended.
    """

    __slots__ = ("_queue",)

    def __init__(self, items: Iterable[ItemT], queue: FairQueue[ItemT]) -> None:
        """Take over `items`, of which the queue has been told."""
        super().__init__(dict.fromkeys(items))
        self._queue = queue

    def __setitem__(self, item: ItemT, value: None) -> None:
        super().__setitem__(item, value)
        self._queue.started(item)

    def __delitem__(self, item: ItemT) -> None:
        super().__delitem__(item)
        self._queue.ended(item)

    def set_aside(self, item: ItemT) -> None:
        """The item has given up its slot, and will start again."""
        super().__delitem__(item)
        self._queue.set_aside(item)
