"""What an operator sees: `snapshot`, `explain` and `calls` tell the truth and change nothing. Promises 26 and 33."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest

from llm_traffic_scheduler import (
    Decision,
    Event,
    FixedPolicy,
    LimitPolicy,
    PressurePolicy,
    SchedulerClosed,
    SchedulerSnapshot,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.snapshot import Reason
from llm_traffic_scheduler.testing import run_virtual
from tests.support import Law, Recorder, account, armed_timers, hold, make_scheduler, noop, other_tasks, settle


def read(scheduler: TrafficScheduler) -> Any:
    """Everything there is to read."""
    return scheduler.snapshot(), scheduler.explain(), scheduler.calls(), repr(scheduler)


class Slices:
    """A law with a memory: its limit depends on how often it was advanced."""

    def __init__(self) -> None:
        self.count = 0

    def advance(self, now: float, signals: Signals) -> None:
        self.count += 1

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(1 + self.count % 4, signals.p95, valid_until=now + 0.35)


async def story(policy: LimitPolicy, watched: bool) -> tuple[list[Event], SchedulerSnapshot]:
    """Sixty steps of the same traffic, with or without somebody who reads at every occasion."""
    rng = random.Random(1)
    scheduler = make_scheduler(max_concurrency=6, window=2.0, policy=policy, max_queued_interactive=6)
    recorder = Recorder(scheduler)
    if watched:
        scheduler.add_listener(lambda event: read(scheduler))
    for n in range(60):
        kind: Any = rng.choice(["interactive", "batch"])
        seconds = rng.expovariate(6)
        call = scheduler.submit(kind, asyncio.sleep, seconds, queue_timeout=rng.choice([None, 0.3]), label=str(n))
        task = asyncio.create_task(call)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        if rng.random() < 0.05:
            asyncio.get_running_loop().call_later(0.2, task.cancel)
        pause = rng.choice([0.01, 0.05, 0.05, 0.4])
        for _ in range(4):
            await asyncio.sleep(pause / 4)
            if watched:
                read(scheduler)
    if watched:
        read(scheduler)
    await asyncio.sleep(5.0)
    return recorder.events, scheduler.snapshot()


@pytest.mark.parametrize(
    "make_policy",
    [
        lambda: PressurePolicy(rps_threshold=15, p95_threshold=0.3),
        lambda: PressurePolicy(rps_threshold=15, p95_threshold=0.3, smoothing=1.0),
        Slices,
        lambda: FixedPolicy(2),
    ],
)
def test_reading_changes_nothing_that_ever_happens(make_policy: Callable[[], LimitPolicy]) -> None:
    alone = run_virtual(story(make_policy(), watched=False))
    watched = run_virtual(story(make_policy(), watched=True))

    assert watched == alone
    assert len(alone[0]) > 120


async def test_two_readings_at_one_instant_are_equal_and_leave_no_timer_and_no_task() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=1.0, smoothing=2.0)
    for _ in range(20):
        await scheduler.submit("interactive", asyncio.sleep, 0.4)
    await asyncio.sleep(3.21)

    assert read(scheduler) == read(scheduler)
    assert armed_timers() == []
    assert other_tasks() == set()


def test_a_scheduler_can_be_read_before_any_loop_runs() -> None:
    scheduler = TrafficScheduler(max_concurrency=8, name="gateway")

    snapshot = scheduler.snapshot()

    assert (snapshot.name, snapshot.max_concurrency, snapshot.batch_max_concurrency) == ("gateway", 8, 6)
    assert snapshot.batch_limit == 6
    assert scheduler.calls() == ()
    assert "'gateway': 0 of 8 slots taken" in scheduler.explain()


async def test_a_snapshot_is_a_frozen_and_complete_picture() -> None:
    scheduler = TrafficScheduler(max_concurrency=3, batch_max_concurrency=2, name="gateway", policy=FixedPolicy(1))
    hold(scheduler), hold(scheduler, "batch")
    await asyncio.sleep(1)
    hold(scheduler, "batch")
    await asyncio.sleep(2)
    hold(scheduler)
    await settle()
    hold(scheduler), hold(scheduler)
    await asyncio.sleep(4)

    snapshot = scheduler.snapshot()

    seen = {field.name: getattr(snapshot, field.name) for field in dataclasses.fields(snapshot)}
    assert seen.pop("detail") == "1 of 2 batch calls may run: the limit is fixed"
    assert {name: seen.pop(name) for name in ("interactive", "totals")}
    assert seen == {
        "name": "gateway",
        "max_concurrency": 3,
        "batch_max_concurrency": 2,
        "batch_min_concurrency": 1,
        "running": 3,
        "interactive_running": 2,
        "batch_running": 1,
        "interactive_queued": 2,
        "batch_queued": 1,
        "batch_limit": 1,
        "pressure": 0.0,
        "reason": "fixed",
        "paused": frozenset(),
        "overdue": 0,
        "oldest_interactive_wait": 4.0,
        "oldest_batch_wait": 6.0,
        "oldest_interactive_running": 7.0,
        "oldest_batch_running": 7.0,
        "policy_faults": 0,
        "listener_faults": 0,
        "timer_lateness": 0.0,
        "released": 0,
        "tenants_at_bound": 0,
        "closed": False,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.running = 0  # type: ignore[misc]


async def test_calls_lists_each_call_with_its_state_its_age_and_its_wait() -> None:
    scheduler = make_scheduler()
    hold(scheduler, label="chat")
    first = hold(scheduler, "batch", label="embed")
    await asyncio.sleep(1)
    hold(scheduler, "batch", label="next", priority=1)
    hold(scheduler, "batch", label="urgent", priority=-1)
    await asyncio.sleep(2)

    seen = [(call.kind, call.label, call.state, call.age, call.waited) for call in scheduler.calls()]
    assert seen == [
        ("interactive", "chat", "running", 3.0, 0.0),
        ("batch", "embed", "running", 3.0, 0.0),
        ("batch", "urgent", "queued", 2.0, 2.0),
        ("batch", "next", "queued", 2.0, 2.0),
    ]

    first.release()
    await asyncio.sleep(5)
    assert [(call.label, call.state, call.waited) for call in scheduler.calls()][1] == ("urgent", "running", 2.0)


@pytest.mark.parametrize(
    "policy, reason, words",
    [
        (PressurePolicy(p95_threshold=1.0), "calm", "no interactive traffic in the window"),
        (FixedPolicy(3), "fixed", "3 of 6 batch calls may run: the limit is fixed"),
        (Law(lambda now, s: Decision(2, 0.25, "home-made")), "policy", "the policy says 'home-made' at pressure 0.25"),
        (Law(lambda now, s: Decision(2, 0.25, "latency")), "latency", "is 25% of the threshold"),
        (Law(lambda now, s: Decision(2, 9.5)), "policy", "pressure 9.50"),  # never clamped when shown
        (Law(lambda now, s: Decision(2, float("nan"))), "policy", "pressure nan"),
    ],
)
def test_the_reason_is_one_of_a_closed_set_and_the_detail_a_sentence(policy: Any, reason: str, words: str) -> None:
    snapshot = make_scheduler(max_concurrency=8, policy=policy).snapshot()

    assert snapshot.reason == reason
    assert snapshot.reason in get_args(Reason)
    assert words in snapshot.detail
    assert snapshot.detail.startswith(f"{snapshot.batch_limit} of 6 batch calls may run: ")


async def test_explain_says_who_waits_and_why() -> None:
    scheduler = make_scheduler(max_concurrency=4, interactive_p95_threshold=0.5, name="gateway")
    await scheduler.submit("interactive", asyncio.sleep, 1.0)
    hold(scheduler, "batch"), hold(scheduler, "batch")
    await asyncio.sleep(2.0)

    p95 = f"{scheduler.snapshot().interactive.p95:.3g} s"
    assert scheduler.explain().splitlines() == [
        "scheduler 'gateway': 1 of 4 slots taken",
        f"interactive: 0 running, 0 waiting (longest 0 s), 0.1 arrivals/s, P50 {p95}, P95 {p95}, P99 {p95} of 1 call",
        "batch: 1 running, 1 waiting (longest 2 s)",
        f"batch limit: 1 of 3 batch calls may run: an interactive P95 of {p95} is "
        f"{scheduler.snapshot().pressure:.0%} of the threshold (0.5 s)",
        "batch limit: at 1 for 2 s, by 'latency' for 2 s",
        f"batch limit: it rises to 2 with a P95 below 0.375 s (now {p95}), and to all 3 with a P95 below 0.125 s",
        "batch limit: it is down at its minimum of 1 from a P95 of 0.5 s on, which is pressure 1",
        "batch waits for its limit",
        f"P95 {p95} stays high (threshold 0.5 s) with only 1 batch running, which is as little as batch_min_concurrency"
        " (1) allows: look at the backend (other clients or instances of this service use it too?) and find by a load "
        "test whether it serves max_concurrency (4) calls at once, and within the threshold",
    ]

    for _ in range(3):
        hold(scheduler)
    await settle()
    assert scheduler.explain().splitlines()[7] == (
        "batch waits for a slot: running calls are not stopped, and interactive calls that wait go first; "
        "lasting interactive load leaves batch one start per batch_starvation_timeout"
    )


async def test_every_submit_is_accounted_for_at_every_moment() -> None:
    rng = random.Random(9)
    scheduler = make_scheduler(max_concurrency=4, max_queued_batch=2, max_queued_interactive=2)
    submitted: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    tasks: list[asyncio.Task[None]] = []

    async def work(ending: str) -> None:
        await asyncio.sleep(rng.expovariate(10))
        if ending == "fail":
            raise ConnectionError

    async def call(kind: Any) -> None:
        submitted[kind] += 1
        await scheduler.submit(
            kind, work, rng.choice(["fail", "end"]), queue_timeout=rng.choice([None, 0, 0.1]), run_timeout=0.15
        )

    def check(*_: object) -> None:
        for kind in ("interactive", "batch"):
            assert account(scheduler, kind).submitted == submitted[kind]

    scheduler.add_listener(check)
    for _ in range(400):
        tasks.append(asyncio.create_task(call(rng.choice(["interactive", "batch"]))))
        tasks[-1].add_done_callback(lambda task: task.cancelled() or task.exception())
        if rng.random() < 0.1:
            rng.choice(tasks[-8:]).cancel()
        await settle(rng.choice([0, 1, 2, 3]))
        check()
        await asyncio.sleep(rng.choice([0, 0, 0.02, 0.05]))
        check()
    scheduler.pause("batch")
    await asyncio.sleep(10)
    await scheduler.close(timeout=0.05)
    with pytest.raises(SchedulerClosed):
        await scheduler.submit("interactive", noop)  # counts nowhere
    check()

    for result in await asyncio.gather(*tasks, return_exceptions=True):
        outcomes["completed" if result is None else type(result).__name__] += 1
    totals = [account(scheduler, kind) for kind in ("interactive", "batch")]
    assert sum(each.completed for each in totals) == outcomes["completed"]
    assert sum(each.failed for each in totals) == outcomes["ConnectionError"]
    assert sum(each.timed_out for each in totals) == outcomes["RunTimeout"]
    assert sum(each.rejected for each in totals) == sum(
        outcomes[name] for name in ("QueueFull", "QueueTimeout", "SchedulerClosed")
    )
    # A task that was cancelled before its first step never submitted anything.
    unsubmitted = len(tasks) - submitted.total()
    assert sum(each.cancelled for each in totals) == outcomes["CancelledError"] - unsubmitted
    assert len(outcomes) == 7, outcomes
    assert scheduler.snapshot().listener_faults == 0


async def test_started_counts_the_calls_that_got_a_slot() -> None:
    scheduler = make_scheduler()
    hold(scheduler), hold(scheduler)
    await settle()
    waiting, leaver = hold(scheduler), hold(scheduler)
    hold(scheduler, queue_timeout=0)
    await settle()
    leaver.cancel()
    await settle()

    totals = account(scheduler, "interactive")
    assert (totals.submitted, totals.started, totals.cancelled, totals.rejected) == (5, 2, 1, 1)
    assert not waiting.started
