"""What the code that runs here is inside of: calls, and `traffic` blocks.

Floor: third. A context variable, so child tasks and threads of `asyncio.to_thread` inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar, Token
from typing import Final

from .call import Call
from .core.admission import RUNNING

__all__ = [
    "Scope",
    "active",
    "active_call",
    "around",
    "is_bulk",
    "leave",
    "leave_block",
    "lineage",
    "tenant_in_force",
]


class Scope:
    """A `traffic` block: the kind in force in it, and what its calls take that say nothing themselves.

    `interactive` is False in batch, and inside of it; the rest is merged with what is around. `bulk`: the call that
    is submitted here next is one of `map` or `as_completed`, which wait for room: no full queue turns it away.
    """

    __slots__ = ("bulk", "interactive", "parent", "priority", "queue_timeout", "tenant", "undo")

    def __init__(
        self,
        interactive: bool,
        priority: float | None,
        tenant: str | None,
        queue_timeout: float | None,
        parent: Call | None,
    ) -> None:
        self.interactive = interactive
        self.priority = priority
        self.tenant = tenant
        self.queue_timeout = queue_timeout
        self.parent = parent
        self.bulk = False
        self.undo: Token[Call | Scope | None] | None = None  # it was left where its token could not be used


# The call in whose slot this code runs, or the `traffic` block around it, whichever is nearer. Child tasks inherit it,
# so a call in it may have ended.
active: Final[ContextVar[Call | Scope | None]] = ContextVar("llm_traffic_scheduler_call", default=None)


def lineage(node: Call | Scope | None) -> Iterator[Call | Scope]:
    """`node` and what it is inside of, from the inside out."""
    while node is not None:
        yield node
        node = node.parent


def is_bulk(node: Call | Scope | None) -> bool:
    """A call submitted here is one of `map` or `as_completed`."""
    return isinstance(node, Scope) and node.bulk


def tenant_in_force(node: Call | Scope | None) -> str | None:
    """Whose work the code here is. Each call and block has got its tenant from what is around it, if it said none."""
    return None if node is None else node.tenant


def around() -> Call | Scope | None:
    """What this code is inside of.

    Async generators and fixtures leave blocks out of turn, or in another context than they entered them in. Such a
    block is in force until somebody looks where it was entered: here. In a copy of that context, a child task's, it
    is inherited and stays.
    """
    node = active.get()
    while node is not None and (token := node.undo) is not None:
        try:
            active.reset(token)
        except ValueError:
            break
        node.undo = None
        node = active.get()
    return node


def leave(node: Call | Scope, token: Token[Call | Scope | None]) -> None:
    """Undo `active.set(node)`, and what was set inside and not undone; later, if this is another context."""
    try:
        active.reset(token)
    except ValueError:
        node.undo = token


def leave_block(node: Call | Scope, token: Token[Call | Scope | None]) -> None:
    """Undo `active.set(node)` where blocks inside of it may go on: then when they are over."""
    if active.get() is node:
        leave(node, token)
    else:
        node.undo = token


def active_call() -> Call | None:
    """The call in whose slot this code runs; None outside, and once the slot is given back."""
    call = next((node for node in lineage(around()) if isinstance(node, Call)), None)
    return call if call is not None and call.state == RUNNING else None
