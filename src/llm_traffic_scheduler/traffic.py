"""The kind and the options in force for the code that runs here, and for what it starts.

Floor: third. Batch is contagious: what is inside of batch work is batch work, whatever it calls itself, so that the
nightly evaluation can call the same functions as the chat endpoint.
"""

from __future__ import annotations

from contextvars import Token
from types import TracebackType
from typing import Literal

from .call import Call
from .core.admission import GONE
from .core.checks import number, text_or_none, timeout
from .errors import SchedulerMisuse
from .surroundings import Scope, active, around, leave_block, tenant_in_force
from .work import Kind, kind_name

__all__ = [
    "Traffic",
    "enter_bulk",
    "is_interactive",
    "kind_in_force",
    "living",
    "living_call",
    "options_in_force",
    "traffic",
]


def traffic(
    kind: Kind, /, *, priority: float | None = None, tenant: str | None = None, queue_timeout: float | None = None
) -> Traffic:
    """Put a kind and options in force for every scheduler: `with traffic("batch"): ...`.

    Inside, calls may leave out the kind (None), and those that give no `priority`, `tenant` or `queue_timeout` have
    these. Child tasks, and threads of `asyncio.to_thread`, inherit them, and keep them when the block is left. Inside
    of batch, in such a block or in a batch call, everything is batch: a call that says "interactive" runs as batch and
    is no interactive arrival or sample.

    Raises:
        ConfigError, SchedulerMisuse: an argument is impossible.
    """
    interactive = kind_name(kind) == "interactive"
    if priority is not None and type(priority) is not int:
        priority = number("priority", priority)
    if queue_timeout is not None:
        timeout("queue_timeout", queue_timeout)
    return Traffic(interactive, priority, text_or_none("tenant", tenant), queue_timeout)


class Traffic:
    """What `traffic` returns; entered once."""

    __slots__ = ("_given", "_scope", "_token")

    def __init__(
        self, interactive: bool, priority: float | None, tenant: str | None, queue_timeout: float | None
    ) -> None:
        self._given: tuple[bool, float | None, str | None, float | None] | None
        self._given = interactive, priority, tenant, queue_timeout
        self._scope: Scope | None = None
        self._token: Token[Call | Scope | None] | None = None

    def __enter__(self) -> None:
        if self._given is None:
            raise SchedulerMisuse("a traffic() block is entered once: write `with traffic(...)` each time")
        (interactive, priority, tenant, queue_timeout), self._given = self._given, None
        inside = around()
        outer = options_in_force(inside)
        if inside is not None and not inside.interactive:
            interactive = False
        if tenant is None:  # nearer than the block around may be a call, which has one of its own
            tenant = tenant_in_force(inside)
        if outer is not None:
            priority = outer.priority if priority is None else priority
            queue_timeout = outer.queue_timeout if queue_timeout is None else queue_timeout
        self._scope = Scope(interactive, priority, tenant, queue_timeout, living_call(inside))
        self._token = active.set(self._scope)

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        (scope, self._scope), (token, self._token) = (self._scope, None), (self._token, None)
        if scope is None or token is None:
            raise SchedulerMisuse("a traffic() block is left once, after it was entered: write `with`")
        leave_block(scope, token)


def enter_bulk(interactive: bool) -> Scope:
    """Put a scope in force for one call of `map` or `as_completed`, which no full queue turns away; for a task's whole
    rest. Everything else is as outside of it, and when its function runs, the scope is to be taken out.
    """
    inside = around()
    tenant, inside = tenant_in_force(inside), living(inside)
    outer = options_in_force(inside)
    priority, queue_timeout = (None, None) if outer is None else (outer.priority, outer.queue_timeout)
    scope = Scope(interactive, priority, tenant, queue_timeout, living_call(inside))
    scope.bulk = True
    active.set(scope)
    return scope


def kind_in_force() -> Literal["interactive", "batch"] | None:
    """What a call would run as here that leaves its kind out; None where that is refused.

    Threads: any; each sees its own.
    """
    inside = around()
    if inside is None:
        return None
    return "interactive" if inside.interactive else "batch"


def is_interactive(kind: Kind | None, inside: Call | Scope | None) -> bool:
    """Whether a call that says `kind` is interactive where it is submitted.

    Raises:
        ConfigError, SchedulerMisuse: it says none, or none that exists.
    """
    if kind is None and inside is not None:
        return inside.interactive
    interactive = kind_name(kind) == "interactive"  # type: ignore[arg-type]
    return interactive and (inside is None or inside.interactive)


def options_in_force(inside: Call | Scope | None) -> Scope | None:
    """The nearest `traffic` block."""
    while inside is not None and not isinstance(inside, Scope):
        inside = inside.parent
    return inside


def living(inside: Call | Scope | None) -> Call | Scope | None:
    """`inside` without calls that have ended, which nobody has to remember: neither here nor in what it returns."""
    node = _without_gone(inside)
    if isinstance(node, Scope):
        node.parent = living_call(node.parent)
    elif node is not None:
        node.parent = _without_gone(node.parent)
    return node


def _without_gone(node: Call | Scope | None) -> Call | Scope | None:
    while isinstance(node, Call) and node.state == GONE:
        node = node.parent
    return node


def living_call(node: Call | Scope | None) -> Call | None:
    """The nearest call around that has not ended."""
    while node is not None and not (isinstance(node, Call) and node.state != GONE):
        node = node.parent
    return node
