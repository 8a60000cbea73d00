"""Everything a scheduler can be told, checked where it is set.

Floor: third, without asyncio. The constructor and `configure` build the same frozen object, so a run-time
change is checked exactly like the first value, and takes effect whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypedDict

from .core.admission import Limits
from .core.checks import count, seconds, timeout
from .errors import ConfigError
from .policies.adaptive import AdaptivePolicy
from .policies.base import LimitPolicy, check_policy
from .policies.pressure import PressurePolicy

__all__ = ["Changes", "Settings"]

_SHORTEST_WINDOW: Final = 0.001
_LONGEST_WINDOW: Final = 1e9
_THRESHOLDS: Final = ("interactive_rps_threshold", "interactive_p95_threshold")
_TIMEOUTS: Final = ("interactive_queue_timeout", "batch_queue_timeout", "interactive_run_timeout", "batch_run_timeout")


class Changes(TypedDict, total=False):
    """What `configure` takes: any argument of the constructor but `name`."""

    max_concurrency: int
    batch_max_concurrency: int | None
    batch_min_concurrency: int
    interactive_rps_threshold: float | None
    interactive_p95_threshold: float | None
    window: float
    smoothing: float | None
    policy: LimitPolicy | None
    interactive_queue_timeout: float | None
    batch_queue_timeout: float | None
    interactive_run_timeout: float | None
    batch_run_timeout: float | None
    max_queued_interactive: int | None
    max_queued_batch: int | None
    max_running_per_tenant: int | None
    batch_starvation_timeout: float | None
    close_timeout: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The constructor's arguments as given, already checked.

    Raises:
        ConfigError: naming the argument, the rule and the value.
    """

    max_concurrency: int
    batch_max_concurrency: int | None = None
    batch_min_concurrency: int = 1
    interactive_rps_threshold: float | None = None
    interactive_p95_threshold: float | None = None
    window: float = 10.0
    smoothing: float | None = None
    policy: LimitPolicy | None = None
    interactive_queue_timeout: float | None = None
    batch_queue_timeout: float | None = None
    interactive_run_timeout: float | None = None
    batch_run_timeout: float | None = None
    max_queued_interactive: int | None = None
    max_queued_batch: int | None = None
    max_running_per_tenant: int | None = None
    batch_starvation_timeout: float | None = 30.0
    close_timeout: float | None = 20.0

    def __post_init__(self) -> None:
        count("max_concurrency", self.max_concurrency, at_least=2)
        self._check_batch_bounds()
        if not _SHORTEST_WINDOW <= seconds("window", self.window) <= _LONGEST_WINDOW:
            raise ConfigError(f"window must be {_SHORTEST_WINDOW} to {_LONGEST_WINDOW:g} seconds, got {self.window!r}")
        self._check_law()
        for name in _TIMEOUTS:
            timeout(name, getattr(self, name), above_zero="run" in name)
        for name in ("max_queued_interactive", "max_queued_batch"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))
        if self.max_running_per_tenant is not None:
            count("max_running_per_tenant", self.max_running_per_tenant, at_least=1)
        for name in ("batch_starvation_timeout", "close_timeout"):
            if getattr(self, name) is not None and timeout(name, getattr(self, name)) < 0:
                raise ConfigError(f"{name} must be at least 0 seconds or None, got {getattr(self, name)!r}")

    def _check_batch_bounds(self) -> None:
        if self.batch_max_concurrency is not None:
            count("batch_max_concurrency", self.batch_max_concurrency, at_least=1)
            if not self.batch_max_concurrency < self.max_concurrency:
                raise ConfigError(
                    f"batch_max_concurrency must be below max_concurrency ({self.max_concurrency}), "
                    f"got {self.batch_max_concurrency}: interactive calls need a slot that batch can never hold"
                )
        count("batch_min_concurrency", self.batch_min_concurrency, at_least=1)
        if not self.batch_min_concurrency <= self.batch_max:
            raise ConfigError(
                f"batch_min_concurrency must be at most batch_max_concurrency ({self.batch_max}), "
                f"got {self.batch_min_concurrency}"
            )

    def _check_law(self) -> None:
        given = [name for name in (*_THRESHOLDS, "smoothing") if getattr(self, name) is not None]
        for name in given:
            seconds(name, getattr(self, name))
        if self.policy is None:
            if given == ["smoothing"]:
                raise ConfigError(
                    f"smoothing needs a threshold to smooth the pressure of, got smoothing={self.smoothing!r} alone: "
                    "give interactive_rps_threshold or interactive_p95_threshold"
                )
            return
        if given:
            raise ConfigError(f"policy takes the place of the law built from {', '.join(given)}: give one or the other")
        check_policy("policy", self.policy)

    @property
    def batch_max(self) -> int:
        """`batch_max_concurrency`, or three quarters of the cap, at least 1, where it was left out."""
        if self.batch_max_concurrency is None:
            return max(1, self.max_concurrency * 3 // 4)
        return self.batch_max_concurrency

    @property
    def limits(self) -> Limits:
        """What admission has to know."""
        return Limits(
            max_concurrency=self.max_concurrency,
            batch_max=self.batch_max,
            batch_min=self.batch_min_concurrency,
            max_queued_interactive=self.max_queued_interactive,
            max_queued_batch=self.max_queued_batch,
            max_running_per_tenant=self.max_running_per_tenant,
            starvation_timeout=self.batch_starvation_timeout,
        )

    @property
    def law(self) -> tuple[object, ...]:
        """What decides which policy is in force; equal laws keep the policy and what it has learnt."""
        return (self.interactive_rps_threshold, self.interactive_p95_threshold, self.smoothing, self.policy)

    def make_policy(self) -> LimitPolicy:
        """The policy given, the pressure law of the thresholds, or with neither the adaptive law without a target."""
        if self.policy is not None:
            return self.policy
        if self.interactive_rps_threshold is None and self.interactive_p95_threshold is None:
            return AdaptivePolicy()
        return PressurePolicy(self.interactive_rps_threshold, self.interactive_p95_threshold, self.smoothing)

    @property
    def bounds_waits_or_runs(self) -> bool:
        """Some calls have a timeout although they give none."""
        return any(getattr(self, name) is not None for name in _TIMEOUTS)

    def changed(self, changes: dict[str, Any]) -> Settings:
        """These settings with `changes`; a policy replaces the thresholds, and a threshold the policy.

        Raises:
            ConfigError: an unknown name, or what the result may not be.
        """
        if unknown := sorted(changes.keys() - {field.name for field in fields(self)}):
            raise ConfigError(f"configure() takes the constructor's arguments but name, got {', '.join(unknown)}")
        if changes.get("policy") is not None:
            changes = {**dict.fromkeys((*_THRESHOLDS, "smoothing")), **changes}
        elif any(changes.get(name) is not None for name in _THRESHOLDS):
            changes = {"policy": None, **changes}
        return replace(self, **changes)
