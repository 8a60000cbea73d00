"""Who goes next: promises 1 and 2 of SEMANTICS.md, without tenants."""

from __future__ import annotations

import random
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError, FixedPolicy, TrafficKind, TrafficScheduler
from tests.support import Held, account, hold, make_scheduler, noop, settle


async def full(max_concurrency: int = 2, **settings: Any) -> tuple[TrafficScheduler, list[Held]]:
    """A scheduler whose slots are all taken by interactive calls, and those calls."""
    scheduler = make_scheduler(max_concurrency=max_concurrency, **settings)
    holders = [hold(scheduler, name=f"holder {n}") for n in range(max_concurrency)]
    await settle()
    return scheduler, holders


async def finish_in_turn(scheduler: TrafficScheduler, holders: list[Held], waiting: list[Held]) -> None:
    """End the calls one after another, each start by itself, until every one has run."""
    holders[0].release()
    await settle()
    for _ in waiting:
        scheduler.check()
        for held in waiting:
            if held.started:
                held.release()
        await settle()


async def test_a_free_slot_goes_to_interactive_work_if_any_waits() -> None:
    scheduler, holders = await full()
    log: list[str] = []
    waiting = [hold(scheduler, "batch", name="b1", log=log), hold(scheduler, "batch", name="b2", log=log)]
    waiting += [hold(scheduler, name="i1", log=log), hold(scheduler, name="i2", log=log)]
    await settle()

    await finish_in_turn(scheduler, holders, waiting)

    assert log == ["i1", "i2", "b1", "b2"]


async def test_a_free_slot_goes_to_batch_work_if_no_interactive_call_waits() -> None:
    scheduler, holders = await full()
    batch = hold(scheduler, "batch")
    await settle()
    assert not batch.started

    holders[1].release()
    await settle()

    assert batch.started


async def test_no_priority_lifts_a_batch_call_over_an_interactive_one() -> None:
    scheduler, holders = await full()
    log: list[str] = []
    waiting = [
        hold(scheduler, "batch", name="b", log=log, priority=-1e9),
        hold(scheduler, name="i", log=log, priority=1e9),
    ]
    await settle()

    await finish_in_turn(scheduler, holders, waiting)

    assert log == ["i", "b"]


async def test_batch_work_at_its_limit_does_not_block_interactive_work_behind_it() -> None:
    scheduler = make_scheduler(max_concurrency=4, policy=FixedPolicy(1))
    running, waiting = hold(scheduler, "batch"), hold(scheduler, "batch", priority=-10)
    await settle()
    assert running.started
    assert not waiting.started

    late = hold(scheduler, priority=10)
    await settle()

    assert late.started
    scheduler.check()


async def test_paused_interactive_work_does_not_block_batch_work() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")
    person, batch = hold(scheduler), hold(scheduler, "batch")
    await settle()

    assert batch.started
    assert not person.started


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_equal_calls_run_first_come_first_served(kind: str) -> None:
    scheduler, holders = await full()
    log: list[str] = []
    waiting = [hold(scheduler, kind, name=str(n), log=log) for n in range(20)]
    await settle()

    await finish_in_turn(scheduler, holders, waiting)

    assert log == [str(n) for n in range(20)]


@pytest.mark.parametrize("kind", ["interactive", "batch"])
async def test_lower_priority_runs_earlier_and_equals_keep_their_order(kind: str) -> None:
    scheduler, holders = await full()
    log: list[str] = []
    # Whole and broken numbers mixed; 0 and -0.0 and 0.0 are one priority.
    priorities = [5, -3, 0, 2.5, -3.0, 0.0, -0.0, 5.0, 1e300, -1e300, 2**53 + 1, float(2**53), -(10**400), 10**400, 0]
    waiting = [hold(scheduler, kind, name=str(n), log=log, priority=p) for n, p in enumerate(priorities)]
    await settle()

    await finish_in_turn(scheduler, holders, waiting)

    assert log == [str(n) for n, _ in sorted(enumerate(priorities), key=lambda pair: pair[1])]


async def test_an_urgent_latecomer_passes_those_who_wait_but_nobody_who_runs() -> None:
    scheduler, holders = await full()
    log: list[str] = []
    waiting = [hold(scheduler, name=name, log=log) for name in "ab"]
    await settle()
    waiting.append(hold(scheduler, name="urgent", log=log, priority=-1))
    await settle()
    assert log == []

    await finish_in_turn(scheduler, holders, waiting)

    assert log == ["urgent", "a", "b"]


async def test_order_holds_while_calls_arrive_leave_and_finish_in_any_order() -> None:
    rng = random.Random(7)
    scheduler, holders = await full(max_concurrency=3)
    log: list[str] = []
    live: dict[str, tuple[float, int, Held]] = {}
    expected: list[str] = []
    for n in range(300):
        action = rng.choice(["arrive", "arrive", "finish", "leave"])
        if action == "arrive":
            priority = rng.choice([-1, 0, 0, 1.5])
            live[str(n)] = (priority, n, hold(scheduler, name=str(n), log=log, priority=priority))
        elif action == "leave" and live:
            rng.choice([held for *_, held in live.values()]).cancel()
            await settle()
            live = {name: entry for name, entry in live.items() if not entry[2].task.done()}
        elif action == "finish" and live:
            first = min(live, key=lambda name: live[name][:2])
            expected.append(first)
            holders.pop(0).release()
            holders.append(live.pop(first)[2])
        await settle()
        assert log == expected
        scheduler.check()


@pytest.mark.parametrize("priority", [float("nan"), float("inf"), -float("inf"), True, False, "3", None, 1j])
async def test_a_priority_that_is_no_finite_number_is_refused_at_the_door(priority: Any) -> None:
    scheduler = make_scheduler()

    with pytest.raises(ConfigError, match="priority must be a finite number, got "):
        await scheduler.submit("interactive", noop, priority=priority)
    with pytest.raises(ConfigError, match="priority must be a finite number, got "):
        async with scheduler.slot("batch", priority=priority):
            raise AssertionError("unreachable")

    assert account(scheduler, "interactive").submitted == account(scheduler, "batch").submitted == 0


async def test_a_kind_may_be_given_as_the_enum() -> None:
    scheduler = make_scheduler()
    held = [hold(scheduler, TrafficKind.INTERACTIVE), hold(scheduler, TrafficKind.BATCH)]
    await settle()

    assert [call.kind for call in scheduler.calls()] == ["interactive", "batch"]
    assert [one.started for one in held] == [True, True]
