"""Changing a scheduler while it works: `configure`."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, Decision, FixedPolicy, PressurePolicy, QueueTimeout, RunTimeout, Signals
from tests.support import Law, Recorder, hold, make_scheduler, noop, settle


class Learning:
    """A law that counts the slices it has seen; what it knows shows as its pressure."""

    def __init__(self) -> None:
        self.seen = 0

    def advance(self, now: float, signals: Signals) -> None:
        self.seen += 1

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(2, float(self.seen))


@pytest.mark.parametrize(
    "changes, rule",
    [
        (
            {"max_concurrency": 20, "batch_max_concurrency": 20},
            "batch_max_concurrency must be below max_concurrency (20)",
        ),
        ({"max_concurrency": 3}, "batch_max_concurrency must be below max_concurrency (3), got 5"),
        ({"max_queued_batch": 7, "window": -1.0}, "window must be a finite number above 0, got -1.0"),
        ({"batch_min_concurrency": 6}, "batch_min_concurrency must be at most batch_max_concurrency (5), got 6"),
        ({"interactive_p95_threshold": 2.0, "policy": FixedPolicy(2)}, "policy takes the place of the law built from"),
        ({"interactive_rps_threshold": None, "smoothing": 3.0}, "smoothing needs a threshold"),
        (
            {"interactive_queue_timeout": 1.0, "batch_run_timeout": 0},
            "batch_run_timeout must be above 0 seconds, got 0",
        ),
        ({"max_concurrency": 20, "name": "other"}, "configure() takes the constructor's arguments but name, got name"),
        ({"max_concurrency": 20, "max_concurency": 20}, "arguments but name, got max_concurency"),
    ],
)
async def test_on_an_error_nothing_is_changed(changes: dict[str, Any], rule: str) -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=5, interactive_rps_threshold=1.0)
    recorder = Recorder()
    for _ in range(10):
        hold(scheduler), hold(scheduler, "batch")
    await settle()
    scheduler.add_listener(recorder)
    before = scheduler.snapshot(), scheduler.calls()

    with pytest.raises(ConfigError, match=re.escape(rule)):
        scheduler.configure(**changes)

    assert (scheduler.snapshot(), scheduler.calls()) == before
    scheduler.configure(max_concurrency=9)  # what was refused has left nothing behind
    assert scheduler.snapshot().batch_max_concurrency == 5
    assert scheduler.snapshot().max_concurrency == 9
    assert [call.state for call in scheduler.calls()].count("running") == 9


async def test_several_values_may_change_at_once_though_one_alone_would_be_refused() -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, batch_min_concurrency=2)

    scheduler.configure(max_concurrency=2, batch_max_concurrency=1, batch_min_concurrency=1)
    scheduler.configure(max_concurrency=30, batch_max_concurrency=25, batch_min_concurrency=20)

    snapshot = scheduler.snapshot()
    assert (snapshot.max_concurrency, snapshot.batch_max_concurrency, snapshot.batch_min_concurrency) == (30, 25, 20)


async def test_equal_values_change_nothing_and_keep_what_was_learnt() -> None:
    law = Learning()
    scheduler = make_scheduler(max_concurrency=8, policy=law, window=5.0, batch_starvation_timeout=None)
    for _ in range(10):
        await scheduler.submit("interactive", asyncio.sleep, 0.2)
    hold(scheduler, "batch")
    await settle()
    recorder = Recorder(scheduler)
    before = scheduler.snapshot()
    assert before.pressure == law.seen > 0

    scheduler.configure()
    scheduler.configure(
        max_concurrency=8,
        batch_max_concurrency=None,
        batch_min_concurrency=1,
        window=5,
        policy=law,
        smoothing=None,
        interactive_p95_threshold=None,
        interactive_queue_timeout=None,
        batch_starvation_timeout=None,
        close_timeout=20,
    )

    assert scheduler.snapshot() == before
    assert recorder.events == []


async def test_equal_thresholds_keep_the_average_and_new_ones_start_afresh() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=1.0, smoothing=60.0)
    for _ in range(30):
        await scheduler.submit("interactive", asyncio.sleep, 1.0)
    learnt = scheduler.snapshot().pressure
    assert 0.2 < learnt < 0.9

    scheduler.configure(interactive_p95_threshold=1.0, smoothing=60.0, max_concurrency=9)
    assert scheduler.snapshot().pressure == learnt

    scheduler.configure(smoothing=None)
    assert scheduler.snapshot().pressure == pytest.approx(1.0, rel=0.01)


async def test_a_policy_replaces_the_thresholds() -> None:
    scheduler = make_scheduler(
        max_concurrency=8, interactive_p95_threshold=0.1, interactive_rps_threshold=0.1, smoothing=2.0
    )
    await scheduler.submit("interactive", asyncio.sleep, 1.0)
    assert scheduler.snapshot().reason in ("latency", "arrivals")

    scheduler.configure(policy=FixedPolicy(4))

    assert (scheduler.snapshot().batch_limit, scheduler.snapshot().reason) == (4, "fixed")
    scheduler.configure(window=20.0)  # the thresholds are gone: there is nothing to collide with
    assert scheduler.snapshot().batch_limit == 4


@pytest.mark.parametrize("threshold", [{"interactive_p95_threshold": 2.0}, {"interactive_rps_threshold": 0.2}])
async def test_a_threshold_replaces_the_policy(threshold: dict[str, float]) -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=FixedPolicy(4))
    await scheduler.submit("interactive", asyncio.sleep, 1.0)

    scheduler.configure(**threshold)  # type: ignore[arg-type]

    assert scheduler.snapshot().pressure == pytest.approx(0.5, rel=0.01)
    assert scheduler.snapshot().reason in ("latency", "arrivals")


async def test_without_a_policy_and_thresholds_batch_may_have_all_that_its_maximum_allows() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_rps_threshold=0.1)
    await scheduler.submit("interactive", noop)
    assert scheduler.snapshot().batch_limit == 1

    scheduler.configure(interactive_rps_threshold=None)
    assert scheduler.snapshot().batch_limit == 6
    scheduler.configure(max_concurrency=100)
    assert scheduler.snapshot().batch_limit == 75
    scheduler.configure(policy=FixedPolicy(2))
    scheduler.configure(policy=None)
    assert scheduler.snapshot().batch_limit == 75


async def test_a_batch_maximum_left_out_follows_the_cap_and_a_given_one_stays() -> None:
    scheduler = make_scheduler(max_concurrency=8)
    for cap, batch_max in [(16, 12), (4, 3), (2, 1)]:
        scheduler.configure(max_concurrency=cap)
        assert scheduler.snapshot().batch_max_concurrency == batch_max

    scheduler.configure(max_concurrency=16, batch_max_concurrency=5)
    scheduler.configure(max_concurrency=32)
    assert scheduler.snapshot().batch_max_concurrency == 5

    scheduler.configure(batch_max_concurrency=None)
    assert scheduler.snapshot().batch_max_concurrency == 24


async def test_a_cap_too_small_for_the_minimum_of_batch_is_refused_when_the_maximum_follows_it() -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_min_concurrency=5)

    with pytest.raises(ConfigError, match=r"batch_min_concurrency must be at most batch_max_concurrency \(3\), got 5"):
        scheduler.configure(max_concurrency=4)


async def test_a_changed_window_keeps_the_traffic_that_fits_it() -> None:
    scheduler = make_scheduler(max_concurrency=8, window=30.0)
    for seconds in (4.0, 0.5, 0.5, 0.5):
        await scheduler.submit("interactive", asyncio.sleep, seconds)
        await asyncio.sleep(4)
    assert scheduler.snapshot().interactive.sample_count == 4

    scheduler.configure(window=15.0)

    traffic = scheduler.snapshot().interactive
    assert traffic.sample_count == 3  # the one of 4 s ended 17.5 s ago
    assert traffic.p95 == pytest.approx(0.5, rel=0.01)
    assert traffic.rps == pytest.approx(3 / 15)


async def test_a_longer_window_does_not_take_what_it_has_not_seen_for_quiet() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_rps_threshold=10.0, window=5.0)
    for _ in range(400):
        await scheduler.submit("interactive", asyncio.sleep, 0.1)
    assert scheduler.snapshot().batch_limit == 1

    scheduler.configure(window=30.0)  # five seconds are known, of thirty

    assert scheduler.snapshot().interactive.rps == pytest.approx(10, rel=0.05)
    assert scheduler.snapshot().batch_limit == 1
    await asyncio.sleep(30.0)
    assert scheduler.snapshot().interactive.rps == 0
    assert scheduler.snapshot().batch_limit == 6


async def test_a_shorter_window_lets_waiting_batch_start_at_once() -> None:
    scheduler = make_scheduler(max_concurrency=8, interactive_p95_threshold=1.0, window=30.0)
    await scheduler.submit("interactive", asyncio.sleep, 2.0)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await asyncio.sleep(10)
    assert sum(held.started for held in batch) == 1

    scheduler.configure(window=5.0)

    assert scheduler.snapshot().batch_running == 6


async def test_new_default_timeouts_bind_new_calls_and_leave_those_alone_that_wait_or_run() -> None:
    scheduler = make_scheduler()
    running, other = hold(scheduler), hold(scheduler)
    await settle()
    waiting = hold(scheduler)
    await settle()

    scheduler.configure(interactive_queue_timeout=1.0, interactive_run_timeout=2.0)
    late = hold(scheduler)
    await asyncio.sleep(10)
    assert isinstance(late.task.exception(), QueueTimeout)
    assert not waiting.task.done()
    assert not running.task.done()

    other.release()
    await asyncio.sleep(10)
    assert waiting.started
    assert not waiting.task.done()
    running.release()
    await settle()
    new = hold(scheduler)
    await asyncio.sleep(3)
    assert isinstance(new.task.exception(), RunTimeout)


async def test_a_changed_limit_is_told_to_the_listeners_once() -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=FixedPolicy(2))
    for _ in range(8):
        hold(scheduler, "batch")
    await settle()
    recorder = Recorder(scheduler)

    scheduler.configure(policy=FixedPolicy(4))

    assert recorder.names == ["LimitChanged", "CallStarted batch None", "CallStarted batch None"]


def test_a_scheduler_may_be_configured_before_any_loop_runs() -> None:
    scheduler = make_scheduler(max_concurrency=8)
    scheduler.configure(max_concurrency=4, interactive_rps_threshold=3.0, window=20.0)
    scheduler.pause("batch")
    assert scheduler.snapshot().max_concurrency == 4

    async def main() -> int:
        hold(scheduler, "batch")
        calls = [hold(scheduler) for _ in range(6)]
        await settle()
        return sum(held.started for held in calls)

    assert asyncio.run(main()) == 4
    assert scheduler.snapshot().paused == {"batch"}


def test_a_scheduler_may_be_configured_when_its_loop_has_gone_with_calls_still_in_it() -> None:
    scheduler = make_scheduler()

    async def leave_calls_behind() -> None:
        for _ in range(4):
            hold(scheduler)
        await settle()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_calls_behind())
    loop.close()  # nobody has cancelled them

    scheduler.configure(max_concurrency=4)
    scheduler.pause("batch")
    scheduler.resume("batch")

    assert asyncio.run(scheduler.submit("interactive", asyncio.sleep, 0, "afresh")) == "afresh"
    assert scheduler.snapshot().totals["interactive"].cancelled == 4


async def test_one_policy_object_given_again_with_new_bounds_is_asked_on_the_new_bounds() -> None:
    law = Law(lambda now, signals: Decision(signals.batch_max - 1))
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=4, policy=law)
    for _ in range(8):
        hold(scheduler, "batch")
    await settle()
    assert scheduler.snapshot().batch_running == 3

    scheduler.configure(batch_max_concurrency=7)

    assert scheduler.snapshot().batch_running == 6


async def test_a_policy_of_the_library_may_be_given_by_hand() -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=PressurePolicy(p95_threshold=4.0))
    await scheduler.submit("interactive", asyncio.sleep, 1.0)

    assert scheduler.snapshot().pressure == pytest.approx(0.25, rel=0.01)
    assert math.isfinite(scheduler.snapshot().batch_limit)
