"""Who is told how many items are done: a function, a bar on the terminal, or nobody.

Floor: third, without asyncio. Loads tqdm only where a bar was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .errors import ConfigError

__all__ = ["Progress", "Tell", "teller"]

Progress: TypeAlias = bool | Callable[[int, int | None], object] | None
"""True: a bar; a function: called with the items done and, where it is known, their number."""


class Tell:
    """Passes on how many are done, until it is closed."""

    def __init__(self, tell: Callable[[int, int | None], object], total: int | None) -> None:
        self._tell = tell
        self._total = total

    def done(self, number: int) -> None:
        """So many items have ended."""
        self._tell(number, self._total)

    def close(self) -> None:
        """No more is to come."""


class _Bar(Tell):
    """A tqdm bar on stderr, from the first item on. The number done is what it shows, however often it looks."""

    def __init__(self, bar: Callable[..., Any], total: int | None, label: str | None) -> None:
        self._make = bar
        self._bar: Any = None
        self._total = total
        self._label = label

    def done(self, number: int) -> None:
        if self._bar is None:
            self._bar = self._make(total=self._total, desc=self._label)
        self._bar.update(number - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def teller(progress: object, total: int | None, label: str | None) -> Tell:
    """Who is to be told.

    Raises:
        ConfigError: `progress` is nothing of what it may be, or a bar, and tqdm is not installed.
    """
    if progress is None or progress is False:
        return Tell(lambda done, total: None, total)
    if progress is not True:
        if not callable(progress):
            raise ConfigError(f"progress must be True, False, None or a function of (done, total), got {progress!r}")
        return Tell(progress, total)
    try:
        from tqdm import tqdm
    except ImportError:
        raise ConfigError(
            "progress=True needs tqdm: pip install 'llm-traffic-scheduler[progress]', "
            "or give a function of (done, total)"
        ) from None

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        monitor_interval = 0  # no thread that watches for slow loops: it would outlive the bar

    return _Bar(Bar, total, label)
