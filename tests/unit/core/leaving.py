"""In which order those leave that wait in a queue.

`from tests.unit.core.leaving import leaving`
"""

from __future__ import annotations

import random
from collections.abc import Iterable

__all__ = ["leaving"]


def leaving(numbers: Iterable[int], order: str) -> list[int]:
    """`numbers` as they are, "last to first", or shuffled, always in the same way, for "random"."""
    left = list(numbers)
    if order == "random":
        random.Random(7).shuffle(left)
    elif order == "last to first":
        left.reverse()
    return left
