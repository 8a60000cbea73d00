"""What the caller of a refused call is told.

Floor: third, without asyncio.
"""

from __future__ import annotations

from .core.admission import Admission
from .errors import QueueFull, QueueTimeout, Rejected, SchedulerClosed
from .slot import Call, Verdict

__all__ = ["refusal"]


def refusal(
    call: Call, verdict: Verdict, admission: Admission[Call], queued: int, retry_after: float | None
) -> Rejected:
    """The exception for `verdict`, with the numbers of this moment; `queued` calls of its kind wait."""
    kind, waited = call.kind, max(0.0, call.started_at - call.submitted)
    if verdict is Verdict.CLOSED:
        return SchedulerClosed(f"{call.title} waited {waited:.3g} s when the scheduler was closed", kind=kind)
    if verdict is Verdict.FULL:
        bound = admission.bound(call.interactive)
        assert bound is not None
        return QueueFull(
            f"the {kind} queue holds {queued} of {bound} calls: try again later or raise max_queued_{kind}",
            kind=kind,
            queued=queued,
            limit=bound,
            retry_after=retry_after,
        )
    return QueueTimeout(
        f"{call.title} got no slot in {waited:.3g} s; {queued} {kind} calls wait, {admission.running} of "
        f"{admission.limits.max_concurrency} slots are taken{_obstacle(kind, admission)}: "
        "raise queue_timeout, or submit fewer calls at once",
        kind=kind,
        waited=waited,
        retry_after=retry_after,
    )


def _obstacle(kind: str, admission: Admission[Call]) -> str:
    """What keeps this kind from a slot that is free."""
    if kind in admission.paused:
        return f", {kind} is paused until resume({kind!r})"
    if kind == "batch" and admission.running < admission.limits.max_concurrency:
        return f", {len(admission.batch_running)} by batch calls, which is their limit now"
    return ""
