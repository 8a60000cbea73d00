"""Says in words why the scheduler does what it does.

Floor: third, without asyncio.
"""

from __future__ import annotations

from typing import cast

from .core.metrics import TrafficSnapshot
from .policies.base import Decision, Signals
from .snapshot import REASONS, Reason, SchedulerSnapshot

__all__ = ["describe", "explain"]


def describe(decision: Decision, signals: Signals) -> tuple[Reason, str]:
    """The reason as one of the closed set of codes, and as a sentence."""
    place = f"{decision.limit} of {signals.batch_max} batch calls may run"
    why = {
        "calm": "no interactive traffic in the window",
        "arrivals": f"{signals.rps:.3g} interactive calls per second are {decision.pressure:.0%} of the threshold",
        "latency": f"an interactive P95 of {signals.p95:.3g} s is {decision.pressure:.0%} of the threshold",
        "throttled": "the backend has asked us to wait",
        "fixed": "the limit is fixed",
        "external": f"the outside gauge shows a pressure of {decision.pressure:.2f}",
        "external_stale": "the outside gauge has shown nothing usable of late, so the fallback or the minimum holds",
        "policy_failed": "the policy raised, see the log; its last decision holds for one window, then the minimum",
    }.get(decision.reason, f"the policy says {decision.reason!r} at pressure {decision.pressure:.2f}")
    reason = cast("Reason", decision.reason) if decision.reason in REASONS else "policy"
    return reason, f"{place}: {why}"


def explain(snapshot: SchedulerSnapshot) -> str:
    """A few lines for an operator: who runs, who waits, what the limit is and why."""
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
    if hint := _obstacle(snapshot):
        lines.append(hint)
    lines += [f"{kind} is paused: nothing of it starts until resume({kind!r})" for kind in sorted(snapshot.paused)]
    if snapshot.released:
        lines.append(f"{snapshot.released} of those that wait are inside released() and need no slot now")
    if snapshot.tenants_at_bound:
        lines.append(f"{snapshot.tenants_at_bound} tenants run as many calls as max_running_per_tenant allows")
    if snapshot.overdue:
        lines.append(
            f"{snapshot.overdue} past their run timeout run on and keep their slots: they swallow cancellation"
        )
    if snapshot.policy_faults or snapshot.listener_faults:
        lines.append(f"faults: {snapshot.policy_faults} of the policy, {snapshot.listener_faults} of listeners")
    return "\n".join(lines)


def _obstacle(snapshot: SchedulerSnapshot) -> str:
    """What keeps waiting batch work from starting."""
    if not snapshot.batch_queued or "batch" in snapshot.paused:
        return ""
    if snapshot.running >= snapshot.max_concurrency:
        return (
            "batch waits for a slot: running calls are not stopped, and interactive calls that wait go first; "
            "lasting interactive load leaves batch one start per batch_starvation_timeout"
        )
    if snapshot.batch_running >= snapshot.batch_limit:
        if snapshot.reason == "fixed":
            return "batch waits for its limit, which is fixed: raise batch_max_concurrency"
        return "batch waits for its limit: it rises when the pressure falls, or with batch_max_concurrency"
    return ""


def _latencies(traffic: TrafficSnapshot) -> str:
    if not traffic.sample_count:
        return "no call in the window has ended"
    return f"P50 {traffic.p50:.3g} s, P95 {traffic.p95:.3g} s, P99 {traffic.p99:.3g} s of {traffic.sample_count} calls"
