"""Who uses which slot, read from the scheduler's own records, and what must hold of them at any instant."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llm_traffic_scheduler.call import Call
from llm_traffic_scheduler.core.admission import AWAY, GONE, LENT_ON, QUEUED, RUNNING
from llm_traffic_scheduler.dispatcher import Dispatcher
from llm_traffic_scheduler.nested import lends, owner_of
from llm_traffic_scheduler.surroundings import lineage

__all__ = ["check_slots", "relatives"]


def relatives(home: Dispatcher, known: Iterable[Call]) -> list[Call]:
    """The calls that have not ended, and all that they point at."""
    found: dict[Call, None] = {}
    ahead = [*home.admission.calls(), *(call for call in known if call.state != GONE)]
    while ahead:
        call = ahead.pop()
        if call in found:
            continue
        found[call] = None
        if (nesting := call.nesting) is not None:
            near = (nesting.lender, nesting.guest, *nesting.hosts, *nesting.wanting)
            ahead += [other for other in near if other is not None]
    return list(found)


def check_slots(home: Dispatcher, known: Iterable[Call], returning: Collection[Call]) -> None:
    """Each slot is used by one call at a time, and each call that waits for one is in the right places.

    `returning`: those that may have their slot back and have not woken yet.
    """
    admission = home.admission
    running = {**admission.interactive_running, **admission.batch_running}
    calls = relatives(home, known)
    queued = {*admission.interactive_queue, *admission.batch_queue}
    for call in calls:
        _check_links(call)
        if call.nesting is not None and lends(call) and call not in returning:
            assert all(other.left for other in call.nesting.wanting), f"somebody wants the idle slot of {call}"
        assert (call.state == QUEUED) == (call in queued), call
        nesting = call.nesting
        lodges = nesting is not None and nesting.lender is not None
        if call.state in (RUNNING, LENT_ON):
            assert lodges != (call in running), call
            assert lodges or call.state == RUNNING or (nesting is not None and nesting.guest is not None), call
        else:
            assert call not in running, call
            assert call.state != AWAY or lodges or call in admission.away, call
        if lodges and call.state in (RUNNING, LENT_ON):
            assert owner_of(call) in running, (call, owner_of(call))
        if call.state == QUEUED:
            _check_waiting(home, call)


def _check_links(call: Call) -> None:
    nesting = call.nesting
    if nesting is None:
        return
    if (guest := nesting.guest) is not None:
        assert guest.nesting is not None
        assert guest.nesting.lender is call
        assert guest.state != GONE
        assert call.state != GONE
    if (lender := nesting.lender) is not None:
        assert lender.nesting is not None
        assert lender.nesting.guest is call
    for other in nesting.wanting:
        assert other.nesting is not None
        assert call in other.nesting.hosts
        assert other.state == QUEUED


def _check_waiting(home: Dispatcher, call: Call) -> None:
    """It waits for the slots of those around it that go on, up to the first that may be of its own task."""
    hosts = () if call.nesting is None else call.nesting.hosts
    for host in hosts:
        assert host.nesting is not None
        assert call in host.nesting.wanting
    around = [each for each in lineage(call.parent) if isinstance(each, Call) and each.home is home]
    living = [each for each in around if each.state in (RUNNING, QUEUED, AWAY)]
    wanted = [each for each in living if each in hosts]
    assert call.left or (wanted == living[: len(wanted)] and bool(wanted) == bool(living)), call
