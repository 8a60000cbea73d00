"""The faults that the adaptive law has to survive, as CONTROL.md lists them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    FixedPolicy,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    current_slot,
)
from llm_traffic_scheduler.policies.objective import _KEPT
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.adaptive import (
    BATCH_MAX,
    BATCH_MIN,
    SLICE,
    STEP,
    TARGET,
    adaptive,
    backlog,
    interactive,
    learn,
    limit,
    running,
    started,
    unfinished,
)
from tests.behaviour.test_loop_clocks import CoarseTime, CountedTimers, EarlyTimers
from tests.support import hold, make_scheduler, noop, settle


async def test_a_policy_that_comes_back_does_not_wait_for_calls_that_ended_meanwhile() -> None:
    policy = AdaptivePolicy(p95_target=TARGET)
    scheduler = adaptive(policy)
    calls = [hold(scheduler) for _ in range(4)]
    await settle()
    assert unfinished(policy) == 4

    scheduler.configure(policy=FixedPolicy(3))
    for call in calls:
        call.release()
    await settle()
    scheduler.configure(policy=policy)
    await asyncio.sleep(10 * TARGET)
    async with backlog(scheduler):
        await asyncio.sleep(1.0)

        assert unfinished(policy) == 0
        assert "stalled" not in scheduler.snapshot().detail
        assert limit(scheduler) > BATCH_MIN


@pytest.mark.parametrize("hung", [3, 5])
async def test_a_backend_that_hangs_has_batch_at_its_floor_once_its_calls_are_late(hung: int) -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.3)
    async with backlog(scheduler):
        await interactive(scheduler, 0.3)
        calls = [hold(scheduler) for _ in range(hung)]
        await asyncio.sleep(0.2)
        early = limit(scheduler)
        await asyncio.sleep(TARGET + 0.5)

        assert early > BATCH_MIN
        assert limit(scheduler) == BATCH_MIN
        await asyncio.sleep(1.0)
        assert running(scheduler) == BATCH_MIN

        for call in calls:
            call.release()
        await settle()
        scheduler.check()


async def test_one_call_that_hangs_takes_its_slots_and_no_more() -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.2)
    async with backlog(scheduler, 0.1):
        await asyncio.sleep(20.0)
        before = limit(scheduler)
        call = hold(scheduler)
        await asyncio.sleep(50 * TARGET)

        assert before == BATCH_MAX
        assert limit(scheduler) > BATCH_MIN + 5
        call.release()


@pytest.mark.parametrize("timeout", [0.5 * TARGET, 1.5 * TARGET])
@pytest.mark.slow
async def test_where_every_call_times_out_alike_batch_does_not_open_up(timeout: float) -> None:
    scheduler = adaptive(interactive_run_timeout=timeout)
    await learn(scheduler, 0.3 * TARGET)
    async with backlog(scheduler, 0.1):
        await asyncio.sleep(10.0)
        before = limit(scheduler)
        for _ in range(50):
            with suppress(RunTimeout):
                await scheduler.submit("interactive", asyncio.sleep, 1000)

        assert limit(scheduler) <= before
        if timeout > TARGET:
            assert limit(scheduler) == BATCH_MIN


async def test_where_every_call_timed_out_from_the_first_batch_stays_as_in_the_warm_up() -> None:
    scheduler = adaptive(interactive_run_timeout=0.5)
    most = 0
    async with backlog(scheduler, 0.1):
        for _ in range(200):
            with suppress(RunTimeout):
                await scheduler.submit("interactive", asyncio.sleep, 1000)
            most = max(most, running(scheduler))

    assert most <= 5


@pytest.mark.slow
async def test_a_backend_that_fails_everything_at_once_does_not_look_like_a_quick_one() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.6)

    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise RuntimeError("the backend is down")

    async with backlog(scheduler, 0.1):
        before, most = limit(scheduler), 0
        for _ in range(2000):
            with suppress(RuntimeError):
                await scheduler.submit("interactive", fail)
            most = max(most, limit(scheduler))
            await asyncio.sleep(0.05)

        assert before < BATCH_MAX - 5
        # With nobody there, what the calls themselves took is free.
        assert most <= before + 2


@pytest.mark.parametrize("retry_after", [None, 5.0])
async def test_a_storm_of_refusals_by_the_backend_closes_batch_until_it_has_passed(retry_after: float | None) -> None:
    scheduler = adaptive()
    await learn(scheduler, 0.2)

    async def refused() -> None:
        slot = current_slot()
        assert slot is not None
        slot.throttled(retry_after)

    async with backlog(scheduler, 0.05):
        await asyncio.sleep(20.0)
        assert running(scheduler) == BATCH_MAX
        for _ in range(100):
            await scheduler.submit("interactive", refused)
            await asyncio.sleep(0.05)
        assert running(scheduler) == BATCH_MIN
        assert scheduler.snapshot().batch_limit == BATCH_MIN

        rest = 1.0 if retry_after is None else retry_after
        await asyncio.sleep(rest - 0.1)
        assert running(scheduler) == BATCH_MIN
        await asyncio.sleep(0.1 + 0.05)
        assert BATCH_MIN < running(scheduler) <= BATCH_MIN + STEP
        await asyncio.sleep(3.0)
        assert running(scheduler) == BATCH_MAX


async def test_one_outlier_changes_nothing_for_long() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.0)
    async with backlog(scheduler, 0.1):
        await interactive(scheduler, 1.0, 40)
        before = limit(scheduler)
        await interactive(scheduler, 20 * TARGET)
        await interactive(scheduler, 1.0, 20)

        assert abs(limit(scheduler) - before) <= 2


@pytest.mark.slow
async def test_after_ten_idle_minutes_a_burst_finds_what_was_learnt() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.6)
    async with backlog(scheduler, 0.5):
        before = limit(scheduler)
        await asyncio.sleep(600.0)
        assert running(scheduler) == BATCH_MAX

        burst = [hold(scheduler) for _ in range(8)]
        await settle()
        assert started(burst) == 8  # the slots that batch can never have
        assert limit(scheduler) <= max(BATCH_MIN, before - 8)
        await asyncio.sleep(0.6)
        assert running(scheduler) <= max(BATCH_MIN, before - 8)

        for call in burst:
            call.release()


async def test_a_limit_that_nobody_used_for_long_lets_no_avalanche_in() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.0)
    await interactive(scheduler, 0.1, 2000, gap=0.1)
    calls = [hold(scheduler) for _ in range(2)]
    await settle()

    batch = [hold(scheduler, "batch") for _ in range(100)]
    await settle()

    assert 0 < started(batch) <= STEP
    await asyncio.sleep(SLICE + 0.001)
    assert started(batch) <= 2 * STEP
    for call in calls:
        call.release()


async def test_an_hour_of_nothing_does_not_fail_the_policy() -> None:
    scheduler = adaptive()
    await interactive(scheduler, 0.01, 100)
    await asyncio.sleep(24 * 3600.0)

    await interactive(scheduler, 0.01, 10)

    assert scheduler.snapshot().policy_faults == 0


async def test_good_bad_and_good_again_brings_the_limit_back_without_any_batch_completion() -> None:
    scheduler = adaptive()
    batch = [hold(scheduler, "batch") for _ in range(2 * BATCH_MAX)]
    await interactive(scheduler, 0.5, 100)
    good = limit(scheduler)
    await interactive(scheduler, 3 * TARGET, 60)
    bad = limit(scheduler)
    assert not any(each.task.done() for each in batch)

    await interactive(scheduler, 0.5, 2 * _KEPT + 100)  # what was bad has to leave, and what was had under little batch

    assert bad < good
    assert limit(scheduler) >= good
    assert not any(each.task.done() for each in batch)


async def test_calls_that_are_turned_away_leave_nothing_behind() -> None:
    policy = AdaptivePolicy(p95_target=TARGET)
    scheduler = adaptive(policy, max_queued_interactive=0)
    calls = [hold(scheduler) for _ in range(32)]
    await settle()

    for _ in range(10):
        with pytest.raises((QueueFull, QueueTimeout)):
            await scheduler.submit("interactive", noop)

    assert unfinished(policy) == 32
    for call in calls:
        call.release()
    await settle()
    assert unfinished(policy) == 0


async def test_however_calls_end_the_policy_waits_for_none_of_them() -> None:
    policy = AdaptivePolicy(p95_target=TARGET, ttft_target=TARGET, pace_target=TARGET)
    scheduler = adaptive(policy)
    calls = [hold(scheduler) for _ in range(40)]
    await settle()
    late = asyncio.create_task(scheduler.submit("interactive", noop, queue_timeout=1.0))
    hasty = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 100, run_timeout=1.0))
    await settle()
    for number, call in enumerate(calls):
        if number % 3 == 0:
            call.cancel()
        elif number % 3 == 1:
            call.fail(RuntimeError("the backend failed"))
        else:
            call.release()
    await asyncio.sleep(5.0)
    await asyncio.gather(late, hasty, *(call.task for call in calls), return_exceptions=True)

    assert unfinished(policy) == 0
    for objective in policy._objectives:
        objective.check()


async def test_a_loop_that_was_blocked_for_a_second_goes_on_one_pass_later() -> None:
    scheduler = adaptive()
    await learn(scheduler, 1.0)
    async with backlog(scheduler, 0.5):
        await asyncio.sleep(1.0)
        calls = [hold(scheduler) for _ in range(4)]
        await settle()
        before = limit(scheduler)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)

        loop._clock.now += 1.0
        await settle()

        assert scheduler.snapshot().timer_lateness >= 0.0
        assert limit(scheduler) <= before  # the four are a second older
        scheduler.check()
        for call in calls:
            call.release()
        await asyncio.sleep(5.0)
        assert limit(scheduler) > before
        scheduler.check()


@pytest.mark.parametrize("make_loop", [EarlyTimers, CoarseTime])
def test_timers_that_fire_early_do_not_spin(make_loop: type[CountedTimers]) -> None:
    async def main() -> None:
        scheduler = make_scheduler(max_concurrency=16, batch_max_concurrency=12, policy=AdaptivePolicy(p95_target=1.0))
        for _ in range(12):
            await scheduler.submit("interactive", noop)
        batch = [hold(scheduler, "batch") for _ in range(20)]
        call = hold(scheduler)
        await asyncio.sleep(5.0)
        call.release()
        await asyncio.sleep(115.0)

        assert started(batch) == 12
        for each in batch:
            each.cancel()
        await settle()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
