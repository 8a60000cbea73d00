"""Work counted in lines of Python, across awaits: how the cost of something grows, on however busy a machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Lines", "counted_lines"]


class Lines:
    """How many lines have run."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        """What `sys.settrace` takes."""
        self.count += event == "line"
        return self.trace


@contextmanager
def counted_lines() -> Iterator[Lines]:
    """Count the lines that run inside, in whatever task of this thread."""
    lines = Lines()
    before = sys.gettrace()
    sys.settrace(lines.trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
