"""What may be said about a single call, whichever way it is submitted, checked at the door.

Floor: third, without asyncio.
"""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypedDict

from .call import Call, Extras
from .core.checks import number, text_or_none, timeout
from .errors import ConfigError, SchedulerMisuse
from .preemption import Preemptible
from .settings import Settings
from .surroundings import Scope, around, tenant_in_force
from .traffic import is_interactive, options_in_force
from .work import Kind, kind_name

if TYPE_CHECKING:
    from .scheduler import TrafficScheduler

__all__ = ["CallOptions", "check_options", "parse", "refuse_preemptible", "refuse_unknown", "timeouts_in_force"]


class CallOptions(TypedDict, total=False):
    """What every way of running a call takes; see `TrafficScheduler.submit`."""

    priority: float
    queue_timeout: float | None
    run_timeout: float | None
    label: str | None
    observe: bool
    tenant: str | None
    preemptible: bool


_KNOWN: Final = frozenset(CallOptions.__annotations__)


def parse(call: Call, options: CallOptions, defaults: Settings, inside: Call | Scope | None) -> float:
    """Check the options and write what they say into the call; returns the seconds it may wait.

    What they leave out is as what it is `inside` of says, else as the scheduler's settings do.

    Raises:
        TypeError: an option that does not exist.
        ConfigError: one that is impossible.
    """
    refuse_unknown(options)
    scope = options_in_force(inside)
    waits, runs = _bounds(call.interactive, options, defaults, scope)
    label, tenant = text_or_none("label", options.get("label")), text_or_none("tenant", options.get("tenant"))
    if tenant is None:
        tenant = tenant_in_force(inside)
    call.extras = None
    if label is not None or tenant is not None or runs != math.inf:
        call.extras = Extras(label, runs, tenant)
    priority = options.get("priority", 0 if scope is None or scope.priority is None else scope.priority)
    if type(priority) is not int:  # an int may be larger than any float
        priority = number("priority", priority)
    call.priority = priority
    if not isinstance(observe := options.get("observe", True), bool):
        raise ConfigError(f"observe must be True or False, got {observe!r}")
    call.observed = call.interactive and observe
    if (preemptible := options.get("preemptible", False)) is not False:
        if preemptible is not True:
            raise ConfigError(f"preemptible must be True or False, got {preemptible!r}")
        if not call.interactive:
            call.more().preemptible = Preemptible()
    return waits


def refuse_preemptible(options: CallOptions, where: str) -> None:
    """Raise SchedulerMisuse for a block that is to be preempted, which nobody can run again; `where` is its door."""
    if options.get("preemptible"):
        raise SchedulerMisuse(
            f"{where}() cannot run its block again, and a preempted call is run again: "
            'make the block a function and write submit("batch", function, preemptible=True)'
        )


def refuse_unknown(options: CallOptions) -> None:
    """Raise TypeError for an option that does not exist."""
    if not options.keys() <= _KNOWN:
        unknown = sorted(options.keys() - _KNOWN)
        close = get_close_matches(unknown[0], _KNOWN, 1)
        raise TypeError(
            f"unknown option {unknown[0]!r}{f', did you mean {close[0]!r}?' if close else ':'} a call takes "
            f"{', '.join(CallOptions.__annotations__)}; for keyword arguments of the function itself write a lambda"
        )


def check_options(kind: Kind | None, options: CallOptions, defaults: Settings) -> None:
    """Refuse what `submit` would refuse, before there is a call; None is the kind in force when there is one."""
    call = Call()
    call.interactive = kind is None or kind_name(kind) == "interactive"
    parse(call, options, defaults, None)


def timeouts_in_force(scheduler: TrafficScheduler, kind: Kind | None = None, /) -> tuple[float, float]:
    """`queue_timeout` and `run_timeout` of a call submitted here that gives none, in seconds; infinity: no bound.

    For code that has a bound of its own, and wants the smaller one.

    Raises:
        ConfigError, SchedulerMisuse: as `submit`, about the kind.
    Threads: any.
    """
    inside = around()
    return _bounds(is_interactive(kind, inside), CallOptions(), scheduler._settings, options_in_force(inside))


def _bounds(interactive: bool, options: CallOptions, defaults: Settings, scope: Scope | None) -> tuple[float, float]:
    """Seconds that a call may wait, and run: as it says, else the `traffic` block around, else the settings."""
    waits, runs = options.get("queue_timeout"), options.get("run_timeout")
    if waits is None and scope is not None:
        waits = scope.queue_timeout
    if waits is None:
        waits = defaults.interactive_queue_timeout if interactive else defaults.batch_queue_timeout
    if runs is None:
        runs = defaults.interactive_run_timeout if interactive else defaults.batch_run_timeout
    return timeout("queue_timeout", waits), timeout("run_timeout", runs, above_zero=True)
