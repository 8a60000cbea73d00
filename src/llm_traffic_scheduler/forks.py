"""A forked child starts with schedulers at rest.

Floor: third. The child has the parent's calls in memory and nothing that will ever end them.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet

__all__ = ["survive_forks"]


class Forked(Protocol):
    """Whoever has to be told."""

    def after_fork(self) -> None: ...


# Module state, because os.register_at_fork cannot be undone: one hook for the process, and weak references. Looking at
# os.getpid() in each call instead costs a system call on every Python of ours.
_survivors: Final[WeakSet[Forked]] = WeakSet()


def survive_forks(scheduler: Forked) -> None:
    """Call `scheduler.after_fork()` in every child forked from now on, as long as it lives."""
    _survivors.add(scheduler)


def _after_fork() -> None:
    for scheduler in list(_survivors):
        scheduler.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_after_fork)
