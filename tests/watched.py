"""Where a test keeps its own books: who was cancelled by whom, and which calls inside of calls count.

The scheduler cancels tasks itself, and so does `asyncio.gather`; and a call in a lent slot is in no total.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.call_options import CallOptions
from llm_traffic_scheduler.core.admission import GONE, LENT_ON, RUNNING
from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.nested import owner_of
from llm_traffic_scheduler.surroundings import active, lineage
from llm_traffic_scheduler.work import Kind

__all__ = [
    "Admitted",
    "Told",
    "Watched",
    "owed_to_calls_around",
    "own_task",
    "slot_owner",
    "tell",
    "tenants_remembered",
]

_PACKAGE: Final = "llm_traffic_scheduler."


class Told(asyncio.Task[Any]):
    """A task that counts the cancels that others than the scheduler send to it.

    Attributes:
        cancels: so many.
        swallowed: code in it has heard a cancel and not passed it on.
    """

    def __init__(
        self, coro: Coroutine[Any, Any, Any], on_cancel: Callable[[Told], object] | None, **options: Any
    ) -> None:
        self.cancels = 0
        self.swallowed = False
        self._on_cancel = on_cancel
        super().__init__(coro, **options)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        if not sys._getframe(1).f_globals["__name__"].startswith(_PACKAGE):
            self.cancels += 1
            if self._on_cancel is not None:
                self._on_cancel(self)
        return True


def tell(coro: Coroutine[Any, Any, Any], on_cancel: Callable[[Told], object] | None = None) -> Told:
    """Start it in a task of this sort; at once, where the loop's tasks start at once."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {} if loop.get_task_factory() is None else {"eager_start": True}
    return Told(coro, on_cancel, loop=loop, **options)


def own_task() -> Told:
    """The one this code runs in."""
    task = asyncio.current_task()
    assert isinstance(task, Told)
    return task


def owed_to_calls_around() -> int:
    """Cancels of the scheduler's that calls around this code will take back, in the same task."""
    task = asyncio.current_task()
    around = [node for node in lineage(active.get()) if isinstance(node, Call) and node.task is task]
    return sum(call.extras.own_cancels for call in around if call.extras is not None)


def slot_owner(call: Call) -> Call | None:
    """Whose slot the call's code runs in; None while it has given it up."""
    owner = owner_of(call)
    return owner if owner.state in (RUNNING, LENT_ON) or not owner.gave_way_once else None


def tenants_remembered(scheduler: TrafficScheduler) -> set[str | None]:
    """Those of which the scheduler knows anything; nobody, once nothing runs and nothing waits."""
    admission = scheduler._home.admission
    if admission.tenants is None:
        return set()
    known = set(admission.tenants._counts)
    for queue in (admission.interactive_queue, admission.batch_queue):
        assert isinstance(queue, FairQueue)
        known |= queue._lines.keys()
    return known


class Admitted:
    """What a test has seen of one call that came in.

    Attributes:
        inside: it came from inside of another call of its scheduler.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.inside = call.nesting is not None
        self.lent = self._shares = False
        self._task = asyncio.current_task()
        if call.waiter is None:
            self._look()
        elif call.parent is not None:
            call.waiter.add_done_callback(self._look)

    def _look(self, _: object = None) -> None:
        nesting = self.call.nesting
        lender = None if nesting is None else nesting.lender
        self.lent = lender is not None
        self._shares = lender is not None and lender.task is self._task

    @property
    def counted(self) -> bool:
        """Once it has ended: it is in the totals. In a lent slot only if it gave that up, which the whole task does."""
        return not self.lent or (self.call.gave_way_once and not self._shares)

    @property
    def over(self) -> bool:
        """It has ended and shares no slot; nor does it seek one, or lend its own."""
        nesting = self.call.nesting
        tied = nesting is not None and (nesting.lender or nesting.guest or nesting.wanting or nesting.hosts)
        return self.call.state == GONE and not tied


class Watched(TrafficScheduler):
    """A scheduler that notes under its label what has come in."""

    def __init__(self, **settings: Any) -> None:
        self.admitted: dict[str, Admitted] = {}
        super().__init__(**settings)

    def _admit(self, kind: Kind | None, options: CallOptions) -> Call:
        call = super()._admit(kind, options)
        if call.label is not None:
            self.admitted[call.label] = Admitted(call)
        return call
