"""What type checkers know of snapshots, reports, events and errors.

Checked by `mypy --strict`, never run, as public_api.py says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, assert_never, assert_type

from llm_traffic_scheduler import (
    CallFinished,
    CallInfo,
    CallQueued,
    CallRejected,
    CallStarted,
    CloseReport,
    Event,
    KindTotals,
    LimitChanged,
    LimitRecord,
    QueueFull,
    QueueTimeout,
    Reason,
    Rejected,
    RunTimeout,
    SchedulerSnapshot,
    TrafficKind,
    TrafficScheduler,
    TrafficSnapshot,
)
from tests.typing.asked import scheduler


def a_snapshot_is_whole_and_cannot_be_changed() -> None:
    snapshot = scheduler.snapshot()
    assert_type(snapshot, SchedulerSnapshot)
    assert_type(snapshot.name, str)
    assert_type(
        (snapshot.max_concurrency, snapshot.batch_max_concurrency, snapshot.batch_min_concurrency), tuple[int, int, int]
    )
    assert_type((snapshot.running, snapshot.interactive_running, snapshot.batch_running), tuple[int, int, int])
    assert_type((snapshot.interactive_queued, snapshot.batch_queued, snapshot.overdue), tuple[int, int, int])
    assert_type((snapshot.batch_limit, snapshot.pressure, snapshot.detail), tuple[int, float, str])
    assert_type(snapshot.reason, Reason)
    assert_type(snapshot.paused, frozenset[str])
    assert_type((snapshot.oldest_interactive_wait, snapshot.oldest_batch_wait), tuple[float, float])
    assert_type((snapshot.oldest_interactive_running, snapshot.oldest_batch_running), tuple[float, float])
    assert_type(snapshot.interactive, TrafficSnapshot)
    assert_type((snapshot.interactive.rps, snapshot.interactive.sample_count), tuple[float, int])
    assert_type(
        (snapshot.interactive.p50, snapshot.interactive.p95, snapshot.interactive.p99), tuple[float, float, float]
    )
    assert_type(snapshot.totals, Mapping[str, KindTotals])
    totals = snapshot.totals["batch"]
    assert_type((totals.submitted, totals.started, totals.completed, totals.failed), tuple[int, int, int, int])
    assert_type((totals.cancelled, totals.timed_out, totals.rejected, totals.preempted), tuple[int, int, int, int])

    snapshot.running = 3  # type: ignore[misc]
    snapshot.totals["batch"] = totals  # type: ignore[index]
    snapshot.interactive.p95 = 0.0  # type: ignore[misc]


def calls_can_be_looked_at() -> None:
    assert_type(scheduler.explain(), str)
    assert_type(scheduler.limit_history(), tuple[LimitRecord, ...])
    for record in scheduler.limit_history():
        assert_type((record.time, record.limit, record.pressure, record.reason), tuple[float, int, float, str])
    assert_type(scheduler.calls(), tuple[CallInfo, ...])
    for call in scheduler.calls():
        assert_type((call.kind, call.label), tuple[str, str | None])
        assert_type(call.state, Literal["queued", "released", "running", "overdue"])
        assert_type((call.age, call.waited), tuple[float, float])


async def the_end_is_reported() -> None:
    assert_type(await scheduler.close(), CloseReport)
    report = await scheduler.close(timeout=None, finish_queued=["batch", TrafficKind.INTERACTIVE])
    assert_type((report.finished, report.rejected, report.cancelled, report.abandoned), tuple[int, int, int, int])
    await scheduler.drain()
    async with TrafficScheduler(max_concurrency=2) as other:
        assert_type(other, TrafficScheduler)

    await scheduler.close(5)  # type: ignore[call-arg]
    await scheduler.close(finish_queued=["urgent"])  # type: ignore[list-item]


def events_are_a_closed_union(event: Event) -> str:
    match event:
        case CallQueued():
            return f"{event.queued} wait"
        case CallStarted():
            return f"after {event.waited} s"
        case CallFinished():
            assert_type(event.outcome, Literal["completed", "failed", "cancelled", "timed_out"])
            assert_type((event.ran, event.first_token, event.tokens), tuple[float, float | None, int])
            return event.outcome
        case CallRejected():
            assert_type(event.reason, Literal["queue_full", "queue_timeout", "closed"])
            return event.reason
        case LimitChanged():
            return f"{event.before} to {event.after}"
        case _:
            assert_never(event)


def one_event_forgotten_is_noticed(event: Event) -> None:
    if isinstance(event, (CallQueued, CallStarted, CallRejected, LimitChanged)):
        return
    assert_never(event)  # type: ignore[arg-type]


def listeners_take_one_event() -> None:
    def count(event: Event) -> None: ...
    def only_starts(event: CallStarted) -> None: ...

    scheduler.add_listener(count)
    scheduler.remove_listener(count)
    scheduler.add_listener(only_starts)  # type: ignore[arg-type]
    scheduler.add_listener(lambda: None)  # type: ignore[arg-type, misc]


def errors_carry_their_numbers(error: Rejected, full: QueueFull, late: QueueTimeout, ran: RunTimeout) -> None:
    assert_type((error.kind, error.retry_after), tuple[str, float | None])
    assert_type((full.queued, full.limit), tuple[int, int])
    assert_type(late.waited, float)
    as_builtin: list[TimeoutError] = [late, ran]
    del as_builtin
