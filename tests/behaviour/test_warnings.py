"""What looks wrong is said once, through the log and in `explain`, with its numbers; a healthy twin hears nothing.

Keeps MISSION.md's table of symptoms as far as the scheduler speaks up by itself. Reads change nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from llm_traffic_scheduler import Decision, FixedPolicy, LimitRecord, TrafficScheduler
from llm_traffic_scheduler.testing import run_virtual
from tests.support import Law, armed_timers, hold, make_scheduler, noop, other_tasks, settle

Chat: TypeAlias = tuple[float, float, int]  # seconds between arrivals, seconds that each lasts, how many at once
Batch: TypeAlias = tuple[float, float]
SPARKS: Chat = (2.0, 0.05, 20)
SHORT: Batch = (0.1, 0.9)

LOGGER = "llm_traffic_scheduler"


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What has been logged so far, and must have been a warning."""
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@contextmanager
def traffic(scheduler: TrafficScheduler, kind: Any, every: float, lasts: float, at_once: int = 1) -> Iterator[None]:
    """`at_once` calls of so many seconds, each so many seconds, until the end of the block."""
    calls: set[asyncio.Task[None]] = set()

    async def come() -> None:
        while True:
            for _ in range(at_once):
                call = asyncio.create_task(scheduler.submit(kind, asyncio.sleep, lasts))
                calls.add(call)
                call.add_done_callback(calls.discard)
            await asyncio.sleep(every)

    coming = asyncio.create_task(come())
    try:
        yield
    finally:
        coming.cancel()
        for call in calls:
            call.cancel()


async def a_day(
    seconds: float = 600.0, *, chat: Chat = (0.5, 0.2, 1), batch: Batch = (4.0, 20.0), **settings: Any
) -> str:
    """Chat, and batch beside it; returns what the scheduler says of itself while both go on."""
    scheduler = make_scheduler(max_concurrency=8, name="gateway", **settings)
    with traffic(scheduler, "interactive", *chat), traffic(scheduler, "batch", *batch):
        await asyncio.sleep(seconds)
        explanation = scheduler.explain()
    await settle()
    return explanation


async def test_thresholds_that_never_bite_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    explanation = await a_day(interactive_rps_threshold=100.0, interactive_p95_threshold=30.0)

    (warning,) = warned(caplog)
    assert warning.startswith("scheduler 'gateway': the pressure has not once reached 5% in")
    assert "interactive_rps_threshold=100: highest rate 2/s" in warning
    assert "interactive_p95_threshold=30: highest P95 0.2" in warning
    assert warning.replace("scheduler 'gateway': ", "warned: ") in explanation.splitlines()


async def test_a_threshold_that_always_bites_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    explanation = await a_day(interactive_p95_threshold=0.1)

    (warning,) = warned(caplog)
    assert "interactive_p95_threshold=0.1 was reached all through" in warning
    assert "at least P95 0.2" in warning
    assert "warned: interactive_p95_threshold=0.1" in explanation


async def test_a_limit_that_flutters_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    explanation = await a_day(200.0, chat=SPARKS, batch=SHORT, interactive_rps_threshold=20.0, window=0.5)

    (warning,) = warned(caplog)
    assert "the batch limit turned" in warning
    assert "between 1 and 6" in warning
    assert "lengthen window (0.5 s now) or give smoothing" in warning
    assert "the batch limit turned" in explanation


@pytest.mark.parametrize(
    "settings",
    [
        {"interactive_rps_threshold": 4.0, "interactive_p95_threshold": 0.5},
        {"interactive_p95_threshold": 0.5, "smoothing": 5.0},
        {
            "chat": SPARKS,
            "batch": SHORT,
            "interactive_rps_threshold": 20.0,
            "window": 10.0,
        },  # as what flutters, longer window
        {"chat": SPARKS, "batch": SHORT, "interactive_rps_threshold": 20.0, "window": 0.5, "smoothing": 10.0},
        {"policy": FixedPolicy(3)},
        # Moves with each call by design.
        {
            "policy": Law(lambda now, signals: Decision(1 + 5 * (signals.interactive_running < 2))),
            "chat": (0.5, 0.2, 3),
            "batch": SHORT,
        },
    ],
)
@pytest.mark.slow
async def test_a_healthy_scheduler_hears_nothing(caplog: pytest.LogCaptureFixture, settings: dict[str, Any]) -> None:
    explanation = await a_day(**settings)

    assert warned(caplog) == []
    assert "warned" not in explanation
    assert "the batch limit turned" not in explanation


async def hung(**settings: Any) -> TrafficScheduler:
    """Six batch calls that do not come back and two that wait behind them, for a minute and a bit."""
    scheduler = make_scheduler(max_concurrency=8, name="gateway", **settings)
    for number in range(8):
        hold(scheduler, "batch", label=f"page {number}")
    await asyncio.sleep(61.0)
    return scheduler


STILL = (
    "no batch call has started or ended for 61 s, and {} wait: 6 of 8 slots taken, by 6 batch calls (the oldest "
    "'page 0' for 61 s): a run_timeout ends calls that hang, shorter pieces and checkpoint() let long ones take turns; "
    "see calls()"
)


@pytest.mark.parametrize("kind, waiting", [("interactive", 2), ("batch", 2)])
async def test_batch_that_stands_still_is_warned_of_at_the_next_event_and_shown_at_once(
    caplog: pytest.LogCaptureFixture, kind: Any, waiting: int
) -> None:
    scheduler = await hung()

    assert "no batch call has started or ended for 61 s: 6 of 8 slots taken" in scheduler.explain()
    assert warned(caplog) == []  # nobody is told by a look of somebody else's
    for _ in range(5):
        hold(scheduler, kind)
        await settle()
    waiting += kind == "batch"

    assert warned(caplog) == [f"scheduler 'gateway': {STILL.format(waiting)}"]


async def test_batch_that_moves_is_not_said_to_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(max_concurrency=8)
    held = [hold(scheduler, "batch") for _ in range(30)]
    with traffic(scheduler, "interactive", 1.0, 0.1):
        for call in held[:20]:
            await asyncio.sleep(59.0)
            call.release()
            assert "no batch call has started" not in scheduler.explain()

    assert warned(caplog) == []


async def test_batch_that_ends_and_may_not_start_has_moved(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=Law(lambda now, signals: Decision(6 if now < 50 else 1)))
    held = [hold(scheduler, "batch") for _ in range(8)]
    await asyncio.sleep(50.0)
    await scheduler.submit("interactive", noop)
    held[0].release()
    await asyncio.sleep(40.0)

    await scheduler.submit("interactive", noop)
    assert "no batch call has started" not in scheduler.explain()
    await asyncio.sleep(29.0)
    await scheduler.submit("interactive", noop)
    assert warned(caplog) == []

    # The end at 50 was noticed at 60, when the first interactive call left the window.
    await asyncio.sleep(2.0)
    assert "no batch call has started or ended for 61 s" in scheduler.explain()


async def test_an_end_shows_at_once_even_where_nothing_may_start_after_it() -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=Law(lambda now, signals: Decision(6 if now < 50 else 1)))
    held = [hold(scheduler, "batch") for _ in range(8)]
    await asyncio.sleep(61.0)
    assert "no batch call has started or ended for 61 s" in scheduler.explain()

    held[0].release()
    await settle()

    assert scheduler.snapshot().batch_running == 5
    assert "no batch call has started" not in scheduler.explain()


async def test_a_start_without_any_end_is_a_move() -> None:
    law = Law(lambda now, signals: Decision(1 if now < 50 else 2, valid_until=50.0))
    scheduler = make_scheduler(max_concurrency=8, policy=law)
    for _ in range(4):
        hold(scheduler, "batch")

    await asyncio.sleep(100.0)
    assert scheduler.snapshot().batch_running == 2
    assert "no batch call has started" not in scheduler.explain()

    await asyncio.sleep(15.0)
    assert "no batch call has started or ended for 65 s" in scheduler.explain()


async def test_batch_that_has_begun_to_wait_just_now_does_not_stand_still() -> None:
    scheduler = make_scheduler(max_concurrency=2)
    hold(scheduler, "batch")
    await asyncio.sleep(200.0)
    hold(scheduler, "batch")
    await asyncio.sleep(59.0)

    assert "no batch call has started" not in scheduler.explain()


@pytest.mark.parametrize("pause", [True, False])
async def test_batch_that_is_paused_or_does_not_wait_does_not_stand_still(
    caplog: pytest.LogCaptureFixture, pause: bool
) -> None:
    scheduler = make_scheduler(max_concurrency=8)
    for _ in range(6 + 2 * pause):
        hold(scheduler, "batch")
    await settle()
    if pause:
        scheduler.pause("batch")
    await asyncio.sleep(300.0)

    await scheduler.submit("interactive", noop)

    assert "no batch call has started" not in scheduler.explain()
    assert warned(caplog) == []


async def test_interactive_calls_that_hold_every_slot_are_named() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    hold(scheduler, "batch")
    for _ in range(3):
        hold(scheduler, label="agent")
    hold(scheduler, "batch")
    await asyncio.sleep(90.0)

    assert "4 of 4 slots taken, by 3 interactive calls (the oldest 'agent' for 90 s) and 1 batch call" in (
        scheduler.explain()
    )
    assert "raise max_concurrency if the backend can serve more at once" in scheduler.explain()


async def test_calls_that_swallow_cancellation_are_named_as_what_stands_still() -> None:
    scheduler = make_scheduler(max_concurrency=2)
    stop = asyncio.Event()

    async def deaf() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(scheduler.submit("batch", deaf, run_timeout=1.0))
    await settle()
    hold(scheduler, "batch")
    await asyncio.sleep(90.0)

    assert "1 past their run timeout" not in scheduler.explain()
    assert "one is past its run timeout and swallows cancellation" in scheduler.explain()
    stop.set()
    await task


async def test_new_settings_make_it_news_again(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = await hung()
    await scheduler.submit("interactive", noop)
    assert len(warned(caplog)) == 1
    assert "warned" not in scheduler.explain()  # it shows as it is now

    scheduler.configure(batch_queue_timeout=900.0)
    await asyncio.sleep(30.0)
    await scheduler.submit("interactive", noop)
    scheduler.configure(batch_queue_timeout=900.0)  # no change

    assert len(warned(caplog)) == 2


async def test_what_was_warned_of_is_forgotten_with_the_settings_it_was_about(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=0.1)
    with traffic(scheduler, "interactive", 0.5, 0.2), traffic(scheduler, "batch", 4.0, 20.0):
        await asyncio.sleep(300.0)
        assert "warned: interactive_p95_threshold=0.1" in scheduler.explain()

        scheduler.configure(interactive_p95_threshold=0.4)
        assert "warned" not in scheduler.explain()
        await asyncio.sleep(600.0)

    assert len(warned(caplog)) == 1


async def test_what_was_seen_before_new_settings_says_nothing_about_them(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_rps_threshold=100.0)
    with traffic(scheduler, "interactive", 0.5, 0.2), traffic(scheduler, "batch", 4.0, 20.0):
        await asyncio.sleep(5.0)
        await asyncio.gather(*(scheduler.submit("interactive", noop) for _ in range(100)))
        await asyncio.sleep(1.0)
        scheduler.configure(interactive_rps_threshold=90.0, window=1.0)
        await asyncio.sleep(100.0)

    (warning,) = warned(caplog)
    assert "interactive_rps_threshold=90: highest rate 2/s" in warning


async def test_batch_that_the_rate_alone_holds_back_is_told_so() -> None:
    explanation = await a_day(60.0, interactive_rps_threshold=2.0, interactive_p95_threshold=5.0)

    assert "interactive_rps_threshold (2) holds batch back by the rate alone, with P95 at 4% of its thr" in explanation


def test_another_loop_is_no_reason_to_say_it_again(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(max_concurrency=8)

    async def hang() -> None:
        for _ in range(8):
            hold(scheduler, "batch")
        await asyncio.sleep(61.0)
        await scheduler.submit("interactive", noop)

    run_virtual(hang())
    run_virtual(hang())

    assert len(warned(caplog)) == 1


async def test_looking_out_takes_no_timer_and_no_task() -> None:
    scheduler = await hung()
    await scheduler.submit("interactive", noop)

    assert armed_timers() == []
    assert {task.get_coro().__name__ for task in other_tasks()} <= {"submit", "run"}  # type: ignore[union-attr]


async def test_a_log_handler_that_raises_costs_nobody_a_slot() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler = Broken()
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        scheduler = await hung()
        await scheduler.submit("interactive", noop)
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)

    assert scheduler.snapshot().interactive_running == 0
    scheduler.check()


async def test_the_limits_history_tells_when_it_moved_and_why() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=0.5)
    held = [hold(scheduler, "batch") for _ in range(7)]
    await asyncio.sleep(5.0)
    await scheduler.submit("interactive", asyncio.sleep, 1.0)
    held[0].release()  # whose place is asked for
    await asyncio.sleep(20.0)

    first, fell, rose = scheduler.limit_history()

    assert first == LimitRecord(0.0, 6, 0.0, "calm")
    assert (fell.time, fell.limit, fell.reason) == (6.0, 1, "latency")
    assert fell.pressure == pytest.approx(2.0, rel=0.01)
    assert 15.9 <= rose.time <= 16.0
    assert (rose.limit, rose.pressure, rose.reason) == (6, 0.0, "calm")
    assert "batch limit: at 6 for" in scheduler.explain()


def test_the_limits_history_is_empty_before_anything_was_asked_and_on_another_loop() -> None:
    scheduler = make_scheduler(max_concurrency=8)
    assert scheduler.limit_history() == ()

    async def use() -> None:
        call = asyncio.create_task(scheduler.submit("batch", asyncio.sleep, 1.0))
        await scheduler.submit("batch", asyncio.sleep, 1.0)
        await call

    for _ in range(2):
        run_virtual(use())
        assert len(scheduler.limit_history()) == 1


async def test_the_limits_history_can_be_read_from_any_thread() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=0.5)
    await scheduler.submit("batch", noop)

    assert await asyncio.to_thread(scheduler.limit_history) == scheduler.limit_history()


async def test_records_come_in_the_order_of_time() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_rps_threshold=20.0, window=0.5)
    with traffic(scheduler, "interactive", 0.7, 0.05, 20), traffic(scheduler, "batch", 0.3, 1.0):
        await asyncio.sleep(60.0)

    history = scheduler.limit_history()
    assert len(history) > 50
    assert all(before.time <= after.time for before, after in pairwise(history))
    assert all((before.limit, before.reason) != (after.limit, after.reason) for before, after in pairwise(history))
