"""What always holds of an `Admission`, as assertions for tests.

Floor: ground. These are methods of `Admission`, which change nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .admissible import AWAY, LENT_ON, QUEUED, RUNNING

if TYPE_CHECKING:
    from .admission import Admission

__all__ = ["check", "check_conserving"]


def check(admission: Admission[Any]) -> None:
    """Assert every invariant but work conservation, which needs `now`; for tests."""
    for queue in (admission.interactive_queue, admission.batch_queue, admission._deadlines):
        queue.check()
    assert admission.timed or not admission._deadlines
    held_back = (
        admission.batch_queue.ready
        and admission.running < admission._cap
        and len(admission.batch_running) < admission._batch_ceiling
    )
    assert admission.timed or not held_back
    assert len(admission.batch_running) <= max(admission.limits.batch_max, admission.running)
    assert all(call.state in (RUNNING, LENT_ON) and call.interactive for call in admission.interactive_running)
    assert all(call.state in (RUNNING, LENT_ON) and not call.interactive for call in admission.batch_running)
    assert all(call.state in (AWAY, RUNNING, LENT_ON) for call in admission.away)
    waiting = [*admission.interactive_queue, *admission.batch_queue]
    assert all(call.state == QUEUED for call in waiting)
    assert set(admission.aside) <= set(waiting)
    kinds = [(call.interactive, nested) for call, nested in admission.aside.items()]
    assert all(admission.aside.number(*kind) == kinds.count(kind) for kind in admission.aside._numbers)
    assert len(admission._deadlines) == sum(call.deadline < math.inf for call in waiting)
    for interactive, queue in ((True, admission.interactive_queue), (False, admission.batch_queue)):
        stragglers = admission._stragglers(interactive)
        assert {*queue.in_run(), *stragglers.live()} == set(queue)
        assert len(stragglers) <= 2 * len(queue) + 1


def check_conserving(admission: Admission[Any], now: float) -> None:
    """Assert that no call that may run is waiting; for tests, after `expire` and `fill`."""
    free = admission.running < admission.limits.max_concurrency
    assert not (free and admission.interactive_queue.ready and "interactive" not in admission.paused)
    assert not (free and admission.batch_queue.ready and admission._batch_allowed(now))
