"""What may be said about a single call, whichever way it is submitted, checked at the door.

Floor: third, without asyncio.
"""

from __future__ import annotations

import math
from typing import TypedDict

from .call import Call, Extras, Scope
from .core.checks import number, text_or_none, timeout
from .settings import Settings

__all__ = ["CallOptions", "parse", "refuse_unknown"]


class CallOptions(TypedDict, total=False):
    """What every way of running a call takes; see `TrafficScheduler.submit`."""

    priority: float
    queue_timeout: float | None
    run_timeout: float | None
    label: str | None
    observe: bool
    tenant: str | None


def parse(call: Call, options: CallOptions, defaults: Settings, around: Scope | None) -> float:
    """Check the options and write what they say into the call; returns the seconds it may wait.

    What they leave out is as the `traffic` block around says, else as the scheduler's settings do.

    Raises:
        TypeError: an option that does not exist.
        ConfigError: one that is impossible.
    """
    refuse_unknown(options)
    kind = call.kind
    waits, runs = options.get("queue_timeout"), options.get("run_timeout")
    if waits is None and around is not None:
        waits = around.queue_timeout
    waits = timeout("queue_timeout", getattr(defaults, f"{kind}_queue_timeout") if waits is None else waits)
    runs = getattr(defaults, f"{kind}_run_timeout") if runs is None else runs
    runs = timeout("run_timeout", runs, above_zero=True)
    label, tenant = text_or_none("label", options.get("label")), text_or_none("tenant", options.get("tenant"))
    if tenant is None and around is not None:
        tenant = around.tenant
    call.extras = None
    if label is not None or tenant is not None or runs != math.inf:
        call.extras = Extras(label, runs, tenant)
    priority = options.get("priority", 0 if around is None or around.priority is None else around.priority)
    if type(priority) is not int:  # an int may be larger than any float
        priority = number("priority", priority)
    call.priority = priority
    call.observed = call.interactive and bool(options.get("observe", True))
    return waits


def refuse_unknown(options: CallOptions) -> None:
    """Raise TypeError for an option that does not exist."""
    if unknown := sorted(options.keys() - CallOptions.__annotations__.keys()):
        raise TypeError(
            f"unknown option {unknown[0]!r}: a call takes {', '.join(CallOptions.__annotations__)}; "
            "for keyword arguments of the function itself write a lambda"
        )
