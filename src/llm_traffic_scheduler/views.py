"""Pictures of a scheduler, taken from any thread without touching it.

Floor: third.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypedDict, TypeVar

from .advice import Circumstances
from .call import Call
from .core.admission import AWAY, QUEUED, Admission
from .core.metrics import WindowReading
from .dispatcher import Dispatcher
from .explain import describe, explain, outlook
from .listeners import Listeners
from .policies.base import Decision, Signals
from .policies.diagnosis import STILL_FOR
from .policies.history import LimitRecord
from .policies.pressure import PressurePolicy
from .snapshot import CallInfo, KindTotals, SchedulerSnapshot, Tally
from .watchman import holders

__all__ = ["call_infos", "explanation", "limit_history", "take_snapshot"]

T = TypeVar("T")

# A reader in another thread meets a dict or deque that changes under its iteration now and then. The owner's
# operations take microseconds, so a second look is nearly always enough.
_ATTEMPTS: Final = 100


def _steady(look: Callable[[], T], mark: Callable[[], object]) -> T:
    """What `look` returns while `mark` stands still; the last look if it never does."""
    for _ in range(_ATTEMPTS):
        before = mark()
        try:
            seen = look()
        except RuntimeError:
            continue
        if mark() == before:
            return seen
    return look()


def _mark(home: Dispatcher, tallies: dict[str, Tally]) -> tuple[object, ...]:
    admission = home.admission
    return (
        *(tally.ended for tally in tallies.values()),
        *admission.counts,
        len(admission.aside),
        len(admission.away),
    )


def call_infos(home: Dispatcher) -> tuple[CallInfo, ...]:
    """Every call that runs or waits."""
    now = home.clock()
    return _steady(lambda: tuple(_call_info(call, now) for call in home.admission.calls()), lambda: None)


def _call_info(call: Call, now: float) -> CallInfo:
    return CallInfo(
        kind=call.kind,
        label=call.label,
        tenant=call.tenant,
        state=_state(call, now),
        age=max(0.0, now - call.submitted + (0.0 if call.extras is None else call.extras.thought)),
        waited=call.waited(now),
    )


def _state(call: Call, now: float) -> Literal["queued", "released", "running", "overdue"]:
    if call.state == QUEUED:
        return "queued"
    if call.state == AWAY:
        return "released"
    return "overdue" if call.overdue(now) else "running"


def take_snapshot(
    name: str, home: Dispatcher, tallies: dict[str, Tally], listeners: Listeners, closed: bool
) -> SchedulerSnapshot:
    """The scheduler as it is now."""

    def look() -> SchedulerSnapshot:
        return _snapshot(name, home, tallies, listeners, closed, _look(home))

    return _steady(look, lambda: _mark(home, tallies))


def explanation(name: str, home: Dispatcher, tallies: dict[str, Tally], listeners: Listeners, closed: bool) -> str:
    """The scheduler as it is now, in words."""

    def look() -> tuple[SchedulerSnapshot, Circumstances]:
        seen = _look(home)
        return _snapshot(name, home, tallies, listeners, closed, seen), _circumstances(home, listeners, seen)

    return explain(*_steady(look, lambda: _mark(home, tallies)))


def limit_history(home: Dispatcher) -> tuple[LimitRecord, ...]:
    """The last changes of the batch limit, oldest first."""
    return _steady(home.governor.history.records, lambda: None)


class _Seen(NamedTuple):
    now: float
    decision: Decision
    signals: Signals
    reading: WindowReading


def _look(home: Dispatcher) -> _Seen:
    now = home.clock()
    return _Seen(now, *home.governor.read(now))


def _circumstances(home: Dispatcher, listeners: Listeners, seen: _Seen) -> Circumstances:
    governor, still = home.governor, home.watchman.still_for(seen.now)
    return Circumstances(
        now=seen.now,
        outlook=outlook(seen.decision, seen.signals, governor.policy, seen.now),
        history=governor.history.records(),
        p95_threshold=governor.threshold,
        rps_threshold=governor.policy.rps_threshold if isinstance(governor.policy, PressurePolicy) else None,
        flutters=not governor.follows_calls,
        window=governor.window.length,
        still_for=still,
        holders=holders(home.admission, seen.now) if still >= STILL_FOR else "",
        warnings=listeners.warnings,
    )


def _snapshot(
    name: str, home: Dispatcher, tallies: dict[str, Tally], listeners: Listeners, closed: bool, seen: _Seen
) -> SchedulerSnapshot:
    now, decision, signals, reading = seen
    admission = home.admission
    reason, detail = describe(decision, signals, home.governor.policy, now)
    return SchedulerSnapshot(
        name=name,
        max_concurrency=signals.max_concurrency,
        batch_max_concurrency=signals.batch_max,
        batch_min_concurrency=signals.batch_min,
        running=signals.interactive_running + signals.batch_running,
        interactive_running=signals.interactive_running,
        batch_running=signals.batch_running,
        interactive_queued=_queued(admission, True),
        batch_queued=_queued(admission, False),
        batch_limit=decision.limit,
        pressure=decision.pressure,
        reason=reason,
        detail=detail,
        paused=admission.paused,
        overdue=_overdue(home, now),
        oldest_interactive_wait=admission.oldest_wait(True, now),
        oldest_batch_wait=admission.oldest_wait(False, now),
        oldest_interactive_running=_oldest(admission.interactive_running, now),
        oldest_batch_running=_oldest(admission.batch_running, now),
        interactive=reading.snapshot(),
        totals={kind: _totals(tally, admission, kind == "interactive") for kind, tally in tallies.items()},
        policy_faults=listeners.policy_faults,
        listener_faults=listeners.listener_faults,
        timer_lateness=home.lateness,
        **_besides(admission, closed),
    )


class _Besides(TypedDict):
    released: int
    tenants_at_bound: int
    closed: bool


def _besides(admission: Admission[Call], closed: bool) -> _Besides:
    released = sum(call.state == AWAY for call in list(admission.away))
    at_bound = 0 if admission.tenants is None else admission.tenants.number_at_bound
    return {"released": released, "tenants_at_bound": at_bound, "closed": closed}


def _queued(admission: Admission[Call], interactive: bool) -> int:
    """Calls that count as queued: without those that may never count, with those that are away."""
    queue = admission.interactive_queue if interactive else admission.batch_queue
    hidden = admission.aside.number(interactive, nested=True)
    return queue.size - hidden + sum(call.interactive == interactive for call in list(admission.away))


def _totals(tally: Tally, admission: Admission[Call], interactive: bool) -> KindTotals:
    running = admission.interactive_running if interactive else admission.batch_running
    away = sum(call.interactive == interactive for call in list(admission.away))
    started_before = away + admission.aside.number(interactive, nested=False)
    return tally.totals(_queued(admission, interactive), len(running), started_before)


def _overdue(home: Dispatcher, now: float) -> int:
    running = [*home.admission.interactive_running, *home.admission.batch_running]
    return sum(call.overdue(now) for call in running)


def _oldest(running: dict[Call, None], now: float) -> float:
    # In the order of their starts, so the first has run longest.
    first = next(iter(running), None)
    return 0.0 if first is None else max(0.0, now - first.started_at)
