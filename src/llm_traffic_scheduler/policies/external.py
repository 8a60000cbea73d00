"""Batch gives way in proportion to a gauge outside of the process: a GPU's queue, a number in Redis.

Floor: second. Pure: the gauge is read in `advance` only, and its reading brings its own time. The staleness rule is
Prometheus' one, which drops a series that nobody scrapes any more instead of drawing its last value for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import iscoroutinefunction
from typing import Final, TypeAlias

from ..core.checks import number, seconds
from ..errors import ConfigError
from .base import Decision, LimitPolicy, Observation, Signals, observer_of, reads_of, replica_of, reset
from .parts import check_parts, each
from .pressure import limit_at

__all__ = ["ExternalPolicy", "GaugeReading", "GaugeSource"]

# Rides out two reports that fail, of a poller that asks every five seconds.
_MAX_AGE: Final = 15.0
_REFRESH: Final = 1.0
_OWN_READS: Final = frozenset({"batch_max", "batch_min", "throttled_until"})


@dataclass(frozen=True, slots=True)
class GaugeReading:
    """What an outside gauge showed, and when.

    Attributes:
        pressure: 0 = batch may have everything, 1 = batch must give way; above 1 is allowed.
        at: seconds, on the clock of the scheduler's event loop.
    """

    pressure: float
    at: float


GaugeSource: TypeAlias = Callable[[], float | GaugeReading | None]
"""Returns the latest reading at once: with its time, or as a number that holds now; None while there is none."""


class ExternalPolicy:
    """`limit = batch_max - (batch_max - batch_min) * pressure`, with the pressure that an outside gauge shows.

    The pressure is at least 1 while the backend has asked us to wait.

    A reading counts for `max_age`. From then on, and before the first one, the limit is that of `fallback`, or
    `batch_min` without one, and the reason is "external_stale". A reading that is no finite number of at least 0, and
    whatever the source raises, counts as no reading: the one before goes on to hold until its age is over. Each is a
    fault of the policy, counted in the snapshot and logged once per kind. One report that is read twice counts once.

    With `also`, the smaller of both limits holds at every moment. The two policies inside see the reading as
    `Signals.external`, None while it is stale, and hear of single calls if they want to.

    The source is asked where the policy is advanced: at the first event of a slice of the window (a hundredth of it),
    after a quiet spell a few times in a row. While batch work waits, a look follows every `refresh` seconds although
    nothing happens; while none waits, nobody polls. So a new reading acts within `refresh` or a slice, whichever is
    longer.

    Args:
        source: a `Gauge`, or a function without arguments that returns the latest reading, at once and without
            waiting for the network. It is called on the event loop's thread, and on any that takes a snapshot.
        max_age: seconds for which a reading counts; more than a slice, for a function that returns plain numbers. A
            reading dated further ahead than this is from another clock, and counts as stale.
        refresh: seconds after which waiting batch work looks at the gauge again.
        fallback: decides while the reading is stale.
        also: a second law whose limit is never exceeded; stale readings do not silence it. For it to rule alone
            meanwhile, give `fallback=FixedPolicy(batch_max)`.

    Raises:
        ConfigError: an argument that is not what it should be, or one policy object in two places.
    """

    __slots__ = ("_quiet", "_reading", "_seen", "_source", "_told", "also", "fallback", "max_age", "refresh")

    def __init__(
        self,
        source: GaugeSource,
        *,
        max_age: float = _MAX_AGE,
        refresh: float = _REFRESH,
        fallback: LimitPolicy | None = None,
        also: LimitPolicy | None = None,
    ) -> None:
        if not callable(source) or isinstance(source, type) or iscoroutinefunction(source):
            raise ConfigError(
                f"source must be a Gauge or a plain function that returns the latest reading, got {source!r}"
            )
        self._source = source
        self.max_age = seconds("max_age", max_age)
        self.refresh = seconds("refresh", refresh)
        self.fallback, self.also = fallback, also
        named = (("fallback", fallback), ("also", also))
        check_parts((name, policy) for name, policy in named if policy is not None)
        self._told = self.policies_inside
        self._quiet = False
        self._forget()

    @property
    def policies_inside(self) -> tuple[LimitPolicy, ...]:
        """`fallback` and `also`, as far as given."""
        return tuple(policy for policy in (self.fallback, self.also) if policy is not None)

    @property
    def reading(self) -> GaugeReading | None:
        """The last usable reading, stale or not."""
        return self._reading

    @property
    def reads(self) -> frozenset[str]:
        """The signals that `decide` looks at."""
        return _OWN_READS.union(*map(reads_of, self.policies_inside))

    @property
    def p95_threshold(self) -> float | None:
        """The lowest of those of the policies inside: it makes calls count that the other one does not mind."""
        return min(
            (bar for policy in self.policies_inside if (bar := getattr(policy, "p95_threshold", None)) is not None),
            default=None,
        )

    def reset(self) -> None:
        """Forget the reading: its time was that of another clock."""
        self._forget()
        each(partial(reset, policy) for policy in self._told)

    def _forget(self) -> None:
        self._reading: GaugeReading | None = None
        self._seen: GaugeReading | None = None

    def replica(self) -> ExternalPolicy:
        """An independent copy that looks at the same gauge, and tells nobody what is wrong with it."""
        twin = copy(self)
        twin._quiet = True
        twin._source = cache(self._source)  # it is advanced up to a hundred times for one picture
        if self.fallback is not None:
            twin.fallback = replica_of(self.fallback)
        if self.also is not None:
            twin.also = replica_of(self.also)
        # One that cannot be copied must not be told anything twice: a snapshot shows it as it is.
        pairs = zip(twin.policies_inside, self.policies_inside, strict=True)
        twin._told = tuple(copied for copied, own in pairs if copied is not own)
        return twin

    def advance(self, now: float, signals: Signals) -> None:
        """Look at the gauge, and tell the policies inside what holds from `now` on.

        Raises:
            Whatever is wrong with the reading, after the rest is done: so it is counted and logged.
        """
        try:
            self._look(now)
        except Exception:
            if not self._quiet:
                raise
        finally:
            if self._told:
                seen = self._with_reading(now, signals)
                each(partial(policy.advance, now, seen) for policy in self._told)

    @property
    def observing(self) -> bool:
        """A policy inside needs single calls."""
        return any(observer_of(policy) is not None for policy in self.policies_inside)

    def observe(self, now: float, event: Observation) -> None:
        """Pass it on to those inside that need it."""
        observers = [observer for policy in self._told if (observer := observer_of(policy)) is not None]
        each(partial(observe, now, event) for observe in observers)

    def _look(self, now: float) -> None:
        value = self._source()
        if value is None or value is self._seen:
            return
        pressure, at = value, now
        if isinstance(value, GaugeReading):
            self._seen = value
            pressure, at = value.pressure, number("the time of an outside gauge's reading", value.at)
        as_float = number("an outside gauge's reading", pressure)
        if as_float < 0:
            raise ConfigError(f"an outside gauge's reading must be at least 0, got {pressure!r}")
        self._reading = GaugeReading(as_float, at)

    def decide(self, now: float, signals: Signals) -> Decision:
        """The law on the last reading; valid until it is stale, at most for `refresh`."""
        if self.policies_inside:
            signals = self._with_reading(now, signals)
        own = self._by_gauge(now, signals)
        if self.also is None:
            return own
        other = self.also.decide(now, signals)
        valid_until = min(own.valid_until, other.valid_until)
        if not other.limit < own.limit:
            return replace(own, valid_until=valid_until)
        reason = own.reason if self._pressure(now) is None else other.reason
        return Decision(other.limit, other.pressure, reason, valid_until)

    def _by_gauge(self, now: float, signals: Signals) -> Decision:
        pressure = self._pressure(now)
        valid_until = min(now + self.refresh, self._next_change(now))
        if pressure is not None:
            reason = "external"
            if now < signals.throttled_until:
                reason = "throttled" if pressure < 1 else reason
                pressure, valid_until = max(1.0, pressure), min(valid_until, signals.throttled_until)
            return Decision(limit_at(pressure, signals), pressure, reason, valid_until)
        if self.fallback is None:
            return Decision(signals.batch_min, 1.0, "external_stale", valid_until)
        instead = self.fallback.decide(now, signals)
        return replace(instead, reason="external_stale", valid_until=min(valid_until, instead.valid_until))

    def _pressure(self, now: float) -> float | None:
        """What the gauge shows at `now`, None if that is stale."""
        reading = self._reading
        if reading is None or not reading.at - self.max_age <= now < reading.at + self.max_age:
            return None
        return reading.pressure

    def _next_change(self, now: float) -> float:
        """When the reading becomes stale, or counts after all if it is dated ahead; infinity after that."""
        reading = self._reading
        edges = () if reading is None else (reading.at - self.max_age, reading.at + self.max_age)
        return min((edge for edge in edges if edge > now), default=math.inf)

    def _with_reading(self, now: float, signals: Signals) -> Signals:
        return replace(signals, external=self._pressure(now))

    def __repr__(self) -> str:
        inside = "".join(
            f", {name}={policy!r}"
            for name, policy in (("fallback", self.fallback), ("also", self.also))
            if policy is not None
        )
        return f"ExternalPolicy({self._source!r}, max_age={self.max_age}, refresh={self.refresh}{inside})"
