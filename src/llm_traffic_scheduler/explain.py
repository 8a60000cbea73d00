"""Says in words why the scheduler does what it does.

Floor: third, without asyncio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from .advice import Circumstances, advice, held_since
from .core.metrics import TrafficSnapshot
from .policies.base import Decision, LimitPolicy, Signals
from .snapshot import REASONS, Reason, SchedulerSnapshot

__all__ = ["describe", "explain", "outlook"]

_NOTHING: Final = Circumstances()


def describe(
    decision: Decision, signals: Signals, policy: LimitPolicy | None = None, now: float = 0.0
) -> tuple[Reason, str]:
    """The reason as one of the closed set of codes, and as a sentence: the policy's own if it has one."""
    place = f"{decision.limit} of {signals.batch_max} batch calls may run"
    said = _said(policy, "describe", str, now, decision, signals)
    why = said[0] if said else _sentence(decision, signals)
    reason = cast("Reason", decision.reason) if decision.reason in REASONS else "policy"
    return reason, f"{place}: {why}"


def outlook(decision: Decision, signals: Signals, policy: LimitPolicy, now: float) -> tuple[str, ...]:
    """What would have to change for the limit to move, in the policy's words; empty if it has none."""
    return _said(policy, "outlook", (tuple, list), now, decision, signals)


def _said(
    policy: LimitPolicy | None,
    method: str,
    form: type | tuple[type, ...],
    now: float,
    decision: Decision,
    signals: Signals,
) -> tuple[str, ...]:
    """What the policy says of a decision of its own, in this form, in plain strings; none of them is empty.

    Reads change nothing, so its faults are not even counted.
    """
    if policy is None or decision.reason == "policy_failed":
        return ()
    try:
        say: Callable[[float, Decision, Signals], object] | None = getattr(policy, method, None)
        said = None if say is None else say(now, decision, signals)
        if not isinstance(said, form):
            return ()
        lines = said if isinstance(said, (tuple, list)) else (said,)
        return tuple(text for line in lines if isinstance(line, str) and (text := str.__str__(line)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return ()


def _sentence(decision: Decision, signals: Signals) -> str:
    """For policies without words."""
    return {
        "calm": "no interactive traffic in the window",
        "arrivals": f"{signals.rps:.3g} interactive calls per second are {decision.pressure:.0%} of the threshold",
        "latency": f"an interactive P95 of {signals.p95:.3g} s is {decision.pressure:.0%} of the threshold",
        "throttled": "the backend has asked us to wait",
        "fixed": "the limit is fixed",
        "external": f"the outside gauge shows a pressure of {decision.pressure:.2f}",
        "external_stale": "the outside gauge has shown nothing usable of late, so the fallback or the minimum holds",
        "learning": "the policy is learning from the first interactive calls",
        "budget": "interactive calls take their share of what the backend bears",
        "headroom": "slots are kept free for the interactive calls to come",
        "idle": "no interactive call has come for long, so batch may have more and more",
        "ramp": "batch starts again step by step",
        "stalled": "most of the interactive calls that run are late",
        "policy_failed": "the policy raised, see the log; its last decision holds for one window, then the minimum",
    }.get(decision.reason, f"the policy says {decision.reason!r} at pressure {decision.pressure:.2f}")


def explain(snapshot: SchedulerSnapshot, around: Circumstances = _NOTHING) -> str:
    """A few lines for an operator: who runs, who waits, what the limit is and why, what would move it, what to do."""
    traffic = snapshot.interactive
    lines = [
        f"scheduler {snapshot.name!r}{' is closed' if snapshot.closed else ''}: "
        f"{snapshot.running} of {snapshot.max_concurrency} slots taken",
        f"interactive: {snapshot.interactive_running} running, {snapshot.interactive_queued} waiting "
        f"(longest {snapshot.oldest_interactive_wait:.3g} s), {traffic.rps:.3g} arrivals/s, {_latencies(traffic)}",
        f"batch: {snapshot.batch_running} running, {snapshot.batch_queued} waiting "
        f"(longest {snapshot.oldest_batch_wait:.3g} s)",
        f"batch limit: {snapshot.detail}",
    ]
    if since := held_since(snapshot, around.history, around.now):
        lines.append(f"batch limit: {since}")
    lines += [f"batch limit: {line}" for line in around.outlook]
    if hint := _obstacle(snapshot, bool(around.outlook)):
        lines.append(hint)
    lines += _peculiarities(snapshot)
    symptoms = advice(snapshot, around)
    lines += symptoms.values()
    # What shows as it is now need not be said again as it was when it was logged.
    lines += [f"warned: {warning}" for kind, warning in around.warnings.items() if kind not in symptoms]
    return "\n".join(lines)


def _peculiarities(snapshot: SchedulerSnapshot) -> list[str]:
    """What is not so most of the time."""
    lines = [f"{kind} is paused: nothing of it starts until resume({kind!r})" for kind in sorted(snapshot.paused)]
    if released := snapshot.released:
        state = "is inside released() and needs" if released == 1 else "are inside released() and need"
        lines.append(f"{released} of those that wait {state} no slot now")
    if tenants := snapshot.tenants_at_bound:
        run = "tenant runs" if tenants == 1 else "tenants run"
        lines.append(f"{tenants} {run} as many calls as max_running_per_tenant allows")
    if overdue := snapshot.overdue:
        state = "its run timeout runs on and keeps its slot: it swallows"
        if overdue > 1:
            state = "their run timeout run on and keep their slots: they swallow"
        lines.append(f"{overdue} past {state} cancellation")
    if snapshot.policy_faults or snapshot.listener_faults:
        lines.append(f"faults: {snapshot.policy_faults} of the policy, {snapshot.listener_faults} of listeners")
    return lines


def _obstacle(snapshot: SchedulerSnapshot, has_outlook: bool) -> str:
    """What keeps waiting batch work from starting."""
    if not snapshot.batch_queued or "batch" in snapshot.paused:
        return ""
    if snapshot.running >= snapshot.max_concurrency:
        return (
            "batch waits for a slot: running calls are not stopped, and interactive calls that wait go first; "
            "lasting interactive load leaves batch one start per batch_starvation_timeout"
        )
    if snapshot.batch_running >= snapshot.batch_limit:
        if has_outlook:
            return "batch waits for its limit"
        return "batch waits for its limit: it rises when the pressure falls, or with batch_max_concurrency"
    return ""


def _latencies(traffic: TrafficSnapshot) -> str:
    if not traffic.sample_count:
        return "no call in the window has ended"
    calls = "1 call" if traffic.sample_count == 1 else f"{traffic.sample_count} calls"
    return f"P50 {traffic.p50:.3g} s, P95 {traffic.p95:.3g} s, P99 {traffic.p99:.3g} s of {calls}"
