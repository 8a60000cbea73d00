"""What holds while a policy raises: its last decision for one window, then the lowest limit.

Floor: second. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.admission import Limits
from .base import Decision

__all__ = ["Fallback"]


class Fallback:
    """Since when the policy has been failing, and what is decided in its place."""

    __slots__ = ("_failed_at", "_on_fault")

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._on_fault = on_fault
        self._failed_at: float | None = None

    @property
    def active(self) -> bool:
        """The policy has raised, and has not answered since."""
        return self._failed_at is not None

    def fault(self, now: float, error: BaseException) -> None:
        """The policy has raised."""
        if self._failed_at is None:
            self._failed_at = now
        self._on_fault(error)

    def forgive(self) -> None:
        """It has answered, or is another one."""
        self._failed_at = None

    def decision(self, now: float, last: Decision | None, limits: Limits, window: float) -> Decision:
        """What holds at `now`; `window` in seconds. Threads: any."""
        if last is None:
            return Decision(limits.batch_min, 0.0, "policy_failed")
        failed_at = self._failed_at  # once: the policy may answer again at any moment
        limit = last.limit if failed_at is None or now - failed_at < window else limits.batch_min
        return Decision(min(limits.batch_max, max(limits.batch_min, limit)), last.pressure, "policy_failed")
