"""Calls that are refused, and what their callers are told.

Floor: third, without asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import nested
from .call import Call, Verdict
from .core.admission import QUEUED, Admission
from .errors import QueueFull, QueueTimeout, Rejected, SchedulerClosed
from .observation import tell_ended, tell_failed
from .surroundings import is_bulk

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["part_with_dropped", "refusal", "refuse", "refuse_queued", "turned_away"]


def refuse_queued(home: Dispatcher, kinds: frozenset[str], *, nested_too: bool) -> None:
    """Refuse what waits of these kinds because the scheduler closes.

    Those that have started are not refused any more, and those inside of others only `nested_too`.
    """
    now, aside = home.clock(), home.admission.aside
    waiting = [call for call in home.admission.calls() if call.state == QUEUED and call.kind in kinds]
    for call in [call for call in waiting if aside.get(call) is None or (nested_too and aside[call])]:
        home.admission.withdraw(call)
        refuse(home, call, Verdict.CLOSED, now)
    home.settle(now)


def refuse(home: Dispatcher, call: Call, verdict: Verdict, now: float) -> None:
    """Wake the caller of a call that was taken out of the queue, with the verdict."""
    waiter = call.waiter
    assert waiter is not None
    if waiter.done():  # cancelled in this pass; its own clean-up finds it gone
        home.leave_queue(call, now)
        return
    call.started_at = now  # the end of its wait
    _count(home, call, verdict, now)
    waiter.set_result(verdict)


def part_with_dropped(home: Dispatcher, now: float) -> None:
    """Account for the calls that were found gone as they were to start. The policy hears of it, so look again."""
    while home.admission.dropped:
        home.leave_queue(home.admission.dropped.pop(), now)
    home.settle(now)


def turned_away(home: Dispatcher, call: Call, now: float) -> Rejected:
    """Count a call that could not even wait; returns what to raise."""
    call.started_at = now
    bound = home.admission.bound(call.interactive)
    full = bound is not None and home.admission.newcomers(call.interactive) >= bound and call.nesting is None
    full = full and not is_bulk(call.parent)
    verdict = Verdict.FULL if full else Verdict.TIMEOUT
    error = refusal(home, call, verdict)  # before a listener can change the numbers
    _count(home, call, verdict, now)
    home.settle(now)
    return error


def refusal(home: Dispatcher, call: Call, verdict: Verdict) -> Rejected:
    """What the refused call's caller gets, with the numbers of this moment; a fresh exception for each."""
    queued, admission = _queued(home, call), home.admission
    retry_after = home.rates.seconds_for(queued + 1, home.clock(), home.ended(), 0 if call.interactive else 1)
    kind, waited = call.kind, max(0.0, call.started_at - call.submitted)
    if verdict is Verdict.CLOSED:
        return SchedulerClosed(
            f"{call.title} had waited {waited:.3g} s when scheduler {home.name!r} was closed: submit it to another",
            kind=kind,
        )
    if verdict is Verdict.FULL:
        bound, newcomers = admission.bound(call.interactive), admission.newcomers(call.interactive)
        assert bound is not None
        return QueueFull(
            f"no room for the {call.title}: the {kind} queue of scheduler {home.name!r} holds {newcomers} of {bound} "
            f"calls: try again {_later(retry_after)} or raise max_queued_{kind}",
            kind=kind,
            queued=newcomers,
            limit=bound,
            retry_after=retry_after,
        )
    return QueueTimeout(
        f"{call.title} of scheduler {home.name!r} got no slot in {waited:.3g} s; {queued} other {kind} calls wait, "
        f"{admission.running} of {admission.limits.max_concurrency} slots are taken: {_remedy(call, admission)}",
        kind=kind,
        waited=waited,
        retry_after=retry_after,
    )


def _queued(home: Dispatcher, call: Call) -> int:
    return (home.admission.interactive_queue if call.interactive else home.admission.batch_queue).size


def _count(home: Dispatcher, call: Call, verdict: Verdict, now: float) -> None:
    home.tallies[call.kind].rejected += 1
    nested.want_no_more(call)
    if call.observed:
        if verdict is Verdict.TIMEOUT:
            tell_failed(call, now, "rejected")
        else:
            tell_ended(call, now, "rejected")
    home.listeners.rejected(call, verdict)


def _later(retry_after: float | None) -> str:
    return "later" if retry_after is None else f"in {retry_after:.3g} s"


def _remedy(call: Call, admission: Admission[Call]) -> str:
    """What keeps the call from a slot, if one is free, and what to do."""
    kind, limits = call.kind, admission.limits
    if kind in admission.paused:
        return f"{kind} is paused until resume({kind!r})"
    tenants = admission.tenants
    if tenants is not None and tenants.at_bound(call.tenant):
        whose = "calls without a tenant" if call.tenant is None else f"calls of tenant {call.tenant!r}"
        running = tenants.running(call.tenant)
        return f"{running} {whose} run, as many as max_running_per_tenant allows: raise that, or queue_timeout"
    if kind == "batch" and admission.running < limits.max_concurrency:
        return f"{len(admission.batch_running)} by batch calls, which is their limit now; see explain()"
    return "raise queue_timeout, or submit fewer calls at once"
