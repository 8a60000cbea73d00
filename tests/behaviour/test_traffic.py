"""The kind and the options in force, and how batch spreads to what it calls: `traffic` of API.md."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    QueueTimeout,
    SchedulerMisuse,
    TrafficKind,
    TrafficScheduler,
    current_slot,
    kind_in_force,
    traffic,
)
from tests.support import account, hold, make_scheduler, noop, settle


async def kind_of_a_call(scheduler: TrafficScheduler, kind: Any = None) -> str:
    async with scheduler.slot(kind) as slot:
        return slot.kind


@pytest.mark.parametrize("kind", ["interactive", "batch", TrafficKind.BATCH])
async def test_a_call_without_a_kind_has_the_one_in_force(kind: Any) -> None:
    scheduler = make_scheduler()
    with traffic(kind):
        assert await kind_of_a_call(scheduler) == kind
        await scheduler.submit(None, noop)
    assert account(scheduler, str(kind.value if isinstance(kind, TrafficKind) else kind)).completed == 2


async def test_one_may_ask_for_the_kind_in_force() -> None:
    scheduler = make_scheduler()

    async def work() -> str | None:
        return kind_in_force()

    assert kind_in_force() is None
    with traffic("interactive"):
        assert kind_in_force() == "interactive"
        with traffic("batch"):
            assert kind_in_force() == "batch"
    assert await scheduler.submit("batch", work) == "batch"
    assert kind_in_force() is None


async def test_without_a_kind_in_force_a_call_has_to_say_one() -> None:
    scheduler = make_scheduler()
    with pytest.raises(SchedulerMisuse, match="no kind is in force"):
        await scheduler.submit(None, noop)
    with traffic("batch"):
        pass
    with pytest.raises(SchedulerMisuse, match="no kind is in force"):
        await kind_of_a_call(scheduler)
    assert account(scheduler, "batch").submitted == 0


async def test_inside_batch_a_call_that_says_interactive_runs_as_batch_and_is_no_traffic() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=100)
    with traffic("batch"):
        assert await kind_of_a_call(scheduler, "interactive") == "batch"
        await scheduler.submit("interactive", noop)
    assert account(scheduler, "batch").completed == 2
    assert account(scheduler, "interactive").submitted == 0
    assert (scheduler.snapshot().interactive.rps, scheduler.snapshot().interactive.sample_count) == (0.0, 0)


async def test_batch_inside_interactive_is_batch_and_interactive_inside_batch_is_batch() -> None:
    scheduler = make_scheduler()
    with traffic("interactive"):
        assert await kind_of_a_call(scheduler, "batch") == "batch"
        assert await kind_of_a_call(scheduler, "interactive") == "interactive"
        with traffic("batch"), traffic("interactive"):
            assert await kind_of_a_call(scheduler) == "batch"
        assert await kind_of_a_call(scheduler) == "interactive"


async def test_child_tasks_and_threads_inherit_what_is_in_force_and_keep_it() -> None:
    scheduler = make_scheduler()
    gate = asyncio.Event()

    async def later() -> str:
        await gate.wait()
        return await kind_of_a_call(scheduler, "interactive")

    with traffic("batch"):
        task = asyncio.create_task(later())
        inherited = contextvars.copy_context()  # what asyncio.to_thread gives to its thread
    gate.set()
    assert await task == "batch"
    assert await asyncio.get_running_loop().create_task(kind_of_a_call(scheduler), context=inherited) == "batch"


async def test_a_batch_call_makes_batch_of_what_it_calls_in_other_schedulers_and_in_child_tasks() -> None:
    scheduler, other = make_scheduler(), make_scheduler()
    late: list[asyncio.Task[str]] = []
    gate = asyncio.Event()

    async def afterwards() -> str:
        await gate.wait()
        return await kind_of_a_call(scheduler, "interactive")

    async def work() -> list[str]:
        late.append(asyncio.create_task(afterwards()))
        return [
            await kind_of_a_call(other, "interactive"),
            await kind_of_a_call(scheduler, "interactive"),
            *await asyncio.gather(kind_of_a_call(other), kind_of_a_call(scheduler, "interactive")),
        ]

    assert await scheduler.submit("batch", work) == ["batch"] * 4
    gate.set()
    assert await late[0] == "batch"  # it was started by batch work, which has ended
    assert await kind_of_a_call(scheduler, "interactive") == "interactive"


async def test_inside_a_call_its_own_kind_is_in_force() -> None:
    scheduler, other = make_scheduler(), make_scheduler()
    assert await scheduler.submit("interactive", kind_of_a_call, other) == "interactive"
    assert await scheduler.submit("batch", kind_of_a_call, other) == "batch"


async def test_options_in_force_are_those_of_calls_that_give_none() -> None:
    scheduler = make_scheduler()
    holders = [hold(scheduler, "batch"), hold(scheduler)]
    await settle()
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)

    def start(name: str, **options: Any) -> asyncio.Task[None]:
        return asyncio.create_task(scheduler.submit("batch", note, name, **options))

    plain = start("plain")
    with traffic("batch", priority=-1, tenant="a"):
        first = start("in force")
        own = start("own", priority=5)
        with traffic("batch", priority=-2):
            inner = start("inner")
    await settle()
    assert [call.tenant for call in scheduler.calls() if call.state == "queued"] == ["a", "a", None, "a"]
    holders[0].release()
    await asyncio.gather(plain, first, own, inner)
    assert order == ["inner", "in force", "plain", "own"]
    holders[1].release()


async def test_a_block_inside_another_keeps_what_it_does_not_name() -> None:
    scheduler = make_scheduler()
    holders = [hold(scheduler), hold(scheduler)]
    plain = hold(scheduler, "batch", label="plain")
    await settle()
    with traffic("interactive", priority=-3, tenant="a", queue_timeout=2), traffic("batch"):
        task = asyncio.create_task(scheduler.submit(None, noop, label="inside"))
    await settle()
    waiting = [(call.label, call.kind, call.tenant) for call in scheduler.calls() if call.state == "queued"]

    assert waiting == [("inside", "batch", "a"), ("plain", "batch", None)]
    with pytest.raises(QueueTimeout) as caught:
        await task
    assert caught.value.waited == 2.0
    for held in (*holders, plain):
        held.release()


async def test_a_queue_timeout_in_force_bounds_the_wait() -> None:
    scheduler = make_scheduler(interactive_queue_timeout=9)
    holders = [hold(scheduler), hold(scheduler)]
    await settle()
    with traffic("interactive", queue_timeout=2):
        with pytest.raises(QueueTimeout) as caught:
            await scheduler.submit(None, noop)
        assert caught.value.waited == 2.0
        with pytest.raises(QueueTimeout) as caught:
            await scheduler.submit(None, noop, queue_timeout=0)
        assert caught.value.waited == 0.0
    for held in holders:
        held.release()


@pytest.mark.parametrize(
    "arguments, options",
    [
        (("urgent",), {}),
        ((["batch"],), {}),
        (("batch",), {"priority": float("nan")}),
        (("batch",), {"priority": True}),
        (("batch",), {"tenant": 7}),
        (("batch",), {"queue_timeout": "1"}),
    ],
)
def test_impossible_arguments_are_refused_at_the_door(arguments: Any, options: Any) -> None:
    with pytest.raises(ConfigError):
        traffic(*arguments, **options)


def test_a_block_without_a_kind_is_refused() -> None:
    with pytest.raises(SchedulerMisuse):
        traffic(None)  # type: ignore[arg-type]


def test_a_block_is_entered_once_and_left_once() -> None:
    block = traffic("batch")
    with pytest.raises(SchedulerMisuse, match="left once"):
        block.__exit__(None, None, None)
    with block, pytest.raises(SchedulerMisuse, match="entered once"):
        block.__enter__()


async def test_an_exception_leaves_the_block_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), traffic("batch"):
        raise ZeroDivisionError
    with pytest.raises(SchedulerMisuse):
        await make_scheduler().submit(None, noop)


async def test_a_block_left_in_another_context_harms_nobody() -> None:
    block = traffic("batch")
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert current_slot() is None


async def test_the_slot_inside_a_block_inside_a_call_is_still_the_calls() -> None:
    scheduler = make_scheduler()

    async def work() -> None:
        with traffic("batch", priority=1):
            slot = current_slot()
            assert slot is not None
            assert slot.label == "outer"
            assert await scheduler.submit("batch", scheduler_running) == 1

    async def scheduler_running() -> int:
        return scheduler.snapshot().running

    await scheduler.submit("batch", work, label="outer")
