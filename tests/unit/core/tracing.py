"""Work counted in lines of Python, and a look before every instruction: what no busy machine disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["EveryInstruction", "lines_run"]


def lines_run(action: Callable[[], object]) -> int:
    """Lines of Python that `action` executes."""
    lines = 0

    def count(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


class EveryInstruction:
    """Runs `look` at every call, line, return and bytecode instruction: wherever threads might change."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._before = sys.gettrace()

    def __enter__(self) -> Self:
        # 3.12 reports instructions only if some frame asked for them before the trace function was set.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace)
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes = True
        # Nothing is traced while a trace function runs, so the look itself is not interrupted.
        self._look()
        return self._trace
