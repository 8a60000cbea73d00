"""No call that may run is waiting, and nothing ticks when nothing waits: promise 6 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from llm_traffic_scheduler import (
    CallFinished,
    Decision,
    Ended,
    LimitPolicy,
    PressurePolicy,
    Signals,
    TrafficScheduler,
)
from tests.support import Held, Law, Recorder, armed_timers, hold, make_scheduler, noop, now, other_tasks, settle

SLICE = 0.1  # a hundredth of the ten seconds of the window


def yielding_to_latency(max_concurrency: int = 8, **settings: float) -> TrafficScheduler:
    """Six batch calls when interactive traffic is at ease, one when its P95 is a second."""
    return make_scheduler(max_concurrency=max_concurrency, interactive_p95_threshold=1.0, **settings)


async def interactive_call(scheduler: TrafficScheduler, seconds: float) -> None:
    await scheduler.submit("interactive", asyncio.sleep, seconds)


async def test_a_release_starts_what_may_run() -> None:
    scheduler = make_scheduler()
    first = hold(scheduler)
    running = [hold(scheduler)]
    waiting = hold(scheduler, "batch")
    await settle()

    first.release()
    await settle()

    assert waiting.started
    assert not running[0].task.done()


async def test_a_call_that_dies_while_it_runs_starts_what_may_run() -> None:
    scheduler = make_scheduler()
    endings: list[Callable[[Held], None]] = [Held.cancel, lambda held: held.fail(RuntimeError("backend"))]
    for end in endings:
        running = [hold(scheduler), hold(scheduler)]
        await settle()
        waiting = hold(scheduler)
        await settle()

        end(running[0])
        await settle()

        assert waiting.started
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            await running[0].task
        running[1].release()
        waiting.release()
        await settle()


async def test_a_submit_that_moves_the_limit_starts_what_may_run() -> None:
    # An odd law: interactive traffic makes room for batch. Whatever the law, nobody may be forgotten.
    scheduler = make_scheduler(max_concurrency=8, policy=Law(lambda now, s: Decision(1 + s.interactive_running)))
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert [held.started for held in batch] == [True, False, False, False]

    hold(scheduler)
    await settle()

    assert [held.started for held in batch] == [True, True, False, False]


@pytest.mark.parametrize("leave", ["cancel", "timeout"])
async def test_a_waiting_call_that_leaves_starts_what_may_run(leave: str) -> None:
    # Each waiting interactive call costs batch a slot; a pause makes one wait although slots are free.
    scheduler = make_scheduler(max_concurrency=8, policy=Law(lambda now, s: Decision(3 - s.interactive_queued)))
    scheduler.pause("interactive")
    person = hold(scheduler, queue_timeout=5)
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert [held.started for held in batch] == [True, True, False, False]

    if leave == "cancel":
        person.cancel()
        await settle()
    else:
        await asyncio.sleep(5)
        await settle()

    assert [held.started for held in batch] == [True, True, True, False]


async def test_the_limit_rises_when_samples_leave_the_window_although_nobody_calls() -> None:
    scheduler = yielding_to_latency()
    begin = now()
    await interactive_call(scheduler, 2.0)
    batch = [hold(scheduler, "batch") for _ in range(8)]
    await settle()
    assert sum(held.started for held in batch) == 1

    await asyncio.sleep(begin + 2.0 + 10.0 - SLICE - 0.01 - now())
    assert sum(held.started for held in batch) == 1
    await asyncio.sleep(begin + 2.0 + 10.0 + 0.001 - now())

    assert sum(held.started for held in batch) == 6
    scheduler.check()


async def test_the_limit_rises_when_arrivals_leave_the_window_although_nobody_calls() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_rps_threshold=1.0)
    for _ in range(10):
        await scheduler.submit("interactive", noop)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await settle()
    assert sum(held.started for held in batch) == 1

    await asyncio.sleep(10.001)

    assert all(held.started for held in batch)


async def test_a_smoothed_limit_rises_step_by_step_although_nobody_calls() -> None:
    scheduler = yielding_to_latency(smoothing=5.0)
    for _ in range(30):
        await interactive_call(scheduler, 1.5)
    batch = [hold(scheduler, "batch") for _ in range(8)]
    await settle()

    seen = []
    for _ in range(100):
        await asyncio.sleep(0.3)
        running = scheduler.snapshot().batch_running
        assert running == min(6, scheduler.snapshot().batch_limit)
        if running not in seen:
            seen.append(running)

    assert seen == [1, 2, 3, 4, 5, 6]
    assert sum(held.started for held in batch) == 6


async def test_a_law_that_opens_at_an_instant_of_its_own_is_asked_at_that_instant() -> None:
    def opens_at_5(now: float, signals: Signals) -> Decision:
        return Decision(1, valid_until=5.0) if now < 5 else Decision(3)

    scheduler = make_scheduler(max_concurrency=8, policy=Law(opens_at_5, reads=frozenset()))
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await asyncio.sleep(5 - 1e-3)
    assert sum(held.started for held in batch) == 1

    await asyncio.sleep(2e-3)

    assert sum(held.started for held in batch) == 3


@pytest.mark.parametrize("valid_until", [-float("inf"), 0.0, float("nan")])
async def test_a_law_whose_answer_has_always_expired_is_asked_once_a_slice_and_not_in_a_spin(
    valid_until: float,
) -> None:
    asked: list[float] = []

    def decide(now: float, signals: Signals) -> Decision:
        asked.append(now)
        return Decision(1 if now < 20 else 2, valid_until=valid_until)

    scheduler = make_scheduler(max_concurrency=8, policy=Law(decide))
    batch = [hold(scheduler, "batch") for _ in range(2)]
    await asyncio.sleep(19)
    assert len(asked) < 5 * 19 / SLICE

    await asyncio.sleep(1 + 2 * SLICE)

    assert all(held.started for held in batch)


async def test_one_timer_stands_for_all_that_wait() -> None:
    scheduler = yielding_to_latency()
    await interactive_call(scheduler, 2.0)
    for n in range(200):
        hold(scheduler, "batch", queue_timeout=100 - n / 10)
        hold(scheduler, queue_timeout=50 - n / 10)
    await settle()

    assert scheduler.snapshot().batch_queued == 199
    assert len(armed_timers()) == 1


@pytest.mark.parametrize("end", ["release", "cancel", "timeout"])
async def test_an_idle_scheduler_holds_no_timer_and_no_task(end: str) -> None:
    scheduler = yielding_to_latency(batch_starvation_timeout=1.0)
    await interactive_call(scheduler, 2.0)
    calls = [hold(scheduler, kind, run_timeout=30, queue_timeout=5) for kind in ["interactive", "batch"] * 10]
    await settle()
    assert armed_timers()

    if end == "timeout":
        await asyncio.sleep(100)
    for held in calls:
        held.cancel() if end == "cancel" else held.release()
    await settle()

    assert scheduler.snapshot().totals["batch"].submitted == 10
    assert armed_timers() == []
    assert other_tasks() == set()
    scheduler.check()


async def test_a_scheduler_whose_calls_only_run_holds_no_admission_timer() -> None:
    scheduler = yielding_to_latency()
    await interactive_call(scheduler, 2.0)
    hold(scheduler), hold(scheduler, "batch")
    await settle()

    assert armed_timers() == []


async def test_no_timer_stands_for_a_limit_that_cannot_help_because_every_slot_is_taken() -> None:
    scheduler = yielding_to_latency()
    await interactive_call(scheduler, 2.0)
    for _ in range(8):
        hold(scheduler)
    hold(scheduler, "batch")
    await settle()

    assert armed_timers() == []


async def test_no_task_is_created_for_a_call_that_waits_or_runs() -> None:
    scheduler = make_scheduler()
    calls = [hold(scheduler, kind) for kind in ["interactive", "batch"] * 5]
    await settle()

    assert other_tasks() == {held.task for held in calls}


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_is_forgotten_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    policies: list[LimitPolicy] = [
        PressurePolicy(rps_threshold=20, p95_threshold=0.3),
        PressurePolicy(p95_threshold=0.2, smoothing=0.5),
        Law(lambda now, s: Decision(6 - s.interactive_running, valid_until=now + 0.3)),
    ]
    scheduler = make_scheduler(max_concurrency=8, window=2.0, policy=policies[0])
    calls: list[Held] = []

    def arrive() -> None:
        kind = rng.choice(["interactive", "batch"])
        calls.append(hold(scheduler, kind, queue_timeout=rng.choice([None, 0, 0.5]), priority=rng.randint(-1, 1)))

    actions: list[Callable[[], object]] = [
        arrive,
        arrive,
        arrive,
        lambda: rng.choice(calls).release(),
        lambda: rng.choice(calls).release(),
        lambda: rng.choice(calls).cancel(),
        lambda: scheduler.configure(max_concurrency=rng.randint(8, 12)),
        lambda: scheduler.configure(policy=rng.choice(policies)),
        lambda: rng.choice([scheduler.pause, scheduler.resume])(rng.choice(["interactive", "batch"])),
        lambda: scheduler.resume("interactive"),
    ]
    arrive()
    for _ in range(400):
        rng.choice(actions)()
        await settle(4)
        scheduler.check()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.expovariate(8))
            scheduler.check()
        calls = [held for held in calls if not held.task.done()] or calls[-1:]

    scheduler.resume("interactive")
    scheduler.resume("batch")
    for held in calls:
        held.release()
    await asyncio.sleep(10)
    assert scheduler.snapshot().running == 0
    assert armed_timers() == []


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_call_whose_slot_a_child_keeps_is_news_at_once(fails: bool) -> None:
    ended: list[Ended] = []
    law = Law(
        lambda now, signals: Decision(1 + len(ended)),
        observe=lambda now, event: ended.append(event) if isinstance(event, Ended) else None,
    )
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2, policy=law)
    running, room, leave = hold(scheduler, "batch"), hold(scheduler), asyncio.Event()
    children: list[asyncio.Task[None]] = []

    async def parent() -> None:
        children.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 100)))
        await leave.wait()
        assert not fails, "as it is told"

    await settle()
    call = asyncio.create_task(scheduler.submit("interactive", parent))
    await settle()  # the child is in the slot of its parent, for there was no other
    room.release()
    await settle()
    ended.clear()
    waiting, recorder = hold(scheduler, "batch"), Recorder(scheduler)
    await settle()
    assert not waiting.started

    leave.set()
    await asyncio.wait({call})
    await settle()

    assert (call.exception() is not None) == fails
    assert waiting.started
    assert [event.outcome for event in recorder.of(CallFinished)] == ["failed" if fails else "completed"]
    for each in (running, waiting):
        each.release()
    await asyncio.gather(*children)
