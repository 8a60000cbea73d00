"""A call sees its caller's context variables, and nothing leaks from one call into another.

Promise 10: what runs in the caller's own task changes its context as a plain await does.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from llm_traffic_scheduler import (
    CallStarted,
    CloseReport,
    Decision,
    Event,
    FixedPolicy,
    Signals,
    Slot,
    current_slot,
)
from tests.behaviour.doors import Door, each_door, each_kind, start
from tests.support import Law, hold, make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])

user: ContextVar[str] = ContextVar("user", default="nobody")


async def who() -> str:
    return user.get()


@each_door
@each_kind
async def test_a_call_sees_its_callers_context(run: Door, kind: str) -> None:
    user.set("ada")

    assert await run(make_scheduler(), kind, who) == "ada"


@each_door
async def test_a_call_that_waited_sees_its_own_callers_context_and_not_the_releasers(run: Door) -> None:
    scheduler = make_scheduler()
    user.set("releaser")
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    async def caller(name: str) -> str:
        user.set(name)
        answer: str = await run(scheduler, "interactive", who)
        return answer

    callers = [start(caller(name)) for name in ("ada", "grace", "alan")]
    await settle()
    for held in blockers:
        held.release()

    assert await asyncio.gather(*callers) == ["ada", "grace", "alan"]
    assert user.get() == "releaser"


@each_door
async def test_what_a_call_sets_stays_in_its_caller_as_with_a_plain_await(run: Door) -> None:
    user.set("before")

    async def rename() -> None:
        user.set("after")

    await run(make_scheduler(), "interactive", rename)

    assert user.get() == "after"


@each_door
async def test_a_token_set_before_a_call_can_be_reset_after_it_and_within(run: Door) -> None:
    outer = user.set("outer")

    async def job() -> None:
        inner = user.set("inner")
        await asyncio.sleep(0)
        user.reset(inner)

    await run(make_scheduler(), "interactive", job)

    assert user.get() == "outer"
    user.reset(outer)


@each_door
async def test_calls_in_different_tasks_do_not_see_each_others_changes(run: Door) -> None:
    scheduler = make_scheduler(max_concurrency=4)
    seen: dict[str, str] = {}

    async def job(name: str) -> None:
        user.set(name)
        await asyncio.sleep(1)
        seen[name] = user.get()

    await asyncio.gather(*(start(run(scheduler, "interactive", job, name)) for name in "abcdef"))

    assert seen == {name: name for name in "abcdef"}
    assert user.get() == "nobody"


@each_door
async def test_a_listener_can_not_change_the_context_of_a_waiting_call(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    def listener(event: Event) -> None:
        if isinstance(event, CallStarted):
            user.set("listener")

    scheduler.add_listener(listener)
    user.set("test")
    waiter = start(run(scheduler, "interactive", who))
    await settle()
    for held in blockers:
        held.release()

    assert await waiter == "test"


@each_door
async def test_a_listener_runs_in_a_context_that_belongs_to_no_call(run: Door) -> None:
    scheduler = make_scheduler(policy=FixedPolicy(1))
    seen: list[tuple[str, Slot | None]] = []

    def listener(event: Event) -> None:
        seen.append((user.get(), current_slot()))
        user.set("listener")

    async def steer() -> None:
        scheduler.pause("batch")
        waiters.append(start(run(scheduler, "batch", who)))
        await settle()
        scheduler.resume("batch")

    waiters: list[asyncio.Task[str]] = []
    user.set("test")
    scheduler.add_listener(listener)
    await run(scheduler, "interactive", steer)
    answer = await waiters[0]

    assert len(seen) == 5
    assert {slot for _, slot in seen} == {None}
    assert "test" not in {name for name, _ in seen}
    assert (answer, user.get()) == ("test", "test")


@each_door
async def test_a_task_started_by_a_listener_is_no_part_of_the_call_that_happened_to_run(run: Door) -> None:
    scheduler = make_scheduler()
    tasks: list[asyncio.Task[CloseReport]] = []

    def listener(event: Event) -> None:
        if isinstance(event, CallStarted) and event.kind == "batch":
            tasks.append(start(scheduler.close()))

    scheduler.add_listener(listener)
    await run(scheduler, "interactive", run, scheduler, "batch", settle)

    assert await tasks[0] == CloseReport(finished=2)


async def test_what_the_timer_decides_is_decided_in_no_calls_context() -> None:
    seen: list[str] = []

    def decide(now: float, signals: Signals) -> Decision:
        seen.append(user.get())
        return Decision(1, valid_until=now + 1)

    scheduler = make_scheduler(max_concurrency=4, policy=Law(decide))
    user.set("test")
    holders = [hold(scheduler, "batch") for _ in range(2)]
    await settle()
    seen.clear()
    await asyncio.sleep(5)

    assert set(seen) == {"nobody"}
    holders[0].release()


@each_door
async def test_a_failed_or_cancelled_call_leaves_no_slot_in_its_callers_context(run: Door) -> None:
    scheduler = make_scheduler()

    async def fail() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await run(scheduler, "batch", fail)
    assert current_slot() is None

    with pytest.raises(TimeoutError):
        await run(scheduler, "batch", asyncio.sleep, 10, run_timeout=1)
    assert current_slot() is None

    async with scheduler.slot("interactive") as slot:
        with pytest.raises(ConnectionError):
            await make_scheduler(name="other").submit("batch", fail)
        assert current_slot() is slot
