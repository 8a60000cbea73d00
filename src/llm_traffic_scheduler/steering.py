"""Changing a scheduler while it runs: its arguments, and which kinds may start.

Floor: third. These are methods of `TrafficScheduler`; what ends it is in `shutdown.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from .settings import Changes
from .work import Kind, kind_name

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["configure", "pause", "resume"]


def configure(scheduler: TrafficScheduler, **changes: Unpack[Changes]) -> None:
    """Change any argument of the constructor but `name`; all of them or, on an error, none.

    Calls that run go on; a raised limit starts waiting calls at once. Equal values change nothing. A policy
    replaces the thresholds and a threshold replaces the policy. A new `window` keeps the traffic that fits it.

    Raises:
        ConfigError: as the constructor; nothing was changed.
        SchedulerMisuse: another thread than the loop's calls this, or the policy.
    """
    scheduler._own_thread("configure")
    old, new = scheduler._settings, scheduler._settings.changed(dict(changes))
    if new == old:
        return
    policy = scheduler._policy if new.law == old.law else new.make_policy()  # before anything is changed, it may raise
    scheduler._claim(policy)
    scheduler._settings = new
    scheduler._never_plain = new.bounds_waits_or_runs or scheduler._shutdown is not None
    home = scheduler._home
    now = home.clock()
    if policy is not scheduler._policy:
        scheduler._policy = policy
        scheduler._reset_policy()
        home.governor.set_policy(policy)
    if new.window != old.window:
        home.governor.set_window(home.governor.window.resized(new.window, now), now)
    home.admission.set_limits(new.limits)
    home.governor.forget()
    home.watchman.forget(now)
    scheduler._listeners.forget_warnings()
    _settle(scheduler, now)


def pause(scheduler: TrafficScheduler, kind: Kind) -> None:
    """Let nothing of this kind start until `resume(kind)`; what runs goes on.

    Raises:
        ConfigError, SchedulerMisuse: it is no kind.
        SchedulerMisuse: as `configure`.
    """
    scheduler._own_thread("pause")
    _set_paused(scheduler, scheduler._home.admission.paused | {kind_name(kind)})


def resume(scheduler: TrafficScheduler, kind: Kind) -> None:
    """Undo `pause(kind)`; what waits and may run starts at once.

    Raises:
        ConfigError, SchedulerMisuse: as `pause`.
    """
    scheduler._own_thread("resume")
    _set_paused(scheduler, scheduler._home.admission.paused - {kind_name(kind)})


def _set_paused(scheduler: TrafficScheduler, paused: frozenset[str]) -> None:
    now = scheduler._home.clock()
    scheduler._home.admission.set_paused(paused, now)
    _settle(scheduler, now)


def _settle(scheduler: TrafficScheduler, now: float) -> None:
    scheduler._home.settle(now)
    scheduler._listeners.raise_fatal()
