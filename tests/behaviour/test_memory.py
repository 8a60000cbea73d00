"""Nothing is kept, and a coroutine that is dropped half-way gives its slot back.

Promises 12, 14 and the end of 25: the garbage collector touches the scheduler only through the loop.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import TrafficScheduler
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, start
from tests.support import account, hold, make_scheduler, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


class Payload:
    """A large answer, prompt or client that a call holds on to."""

    __slots__ = ("__weakref__", "text")


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _fail(payload: Payload) -> Payload:
    await asyncio.sleep(0)
    raise ConnectionError(payload)


async def _wait(payload: Payload) -> Payload:
    await asyncio.Event().wait()
    return payload


def _fail_in_a_task(payload: Payload) -> Awaitable[Payload]:
    return asyncio.ensure_future(_fail(payload))


async def _finish(payload: Payload) -> Payload:
    await asyncio.sleep(0)
    return payload


_WAYS: dict[str, tuple[Callable[[Payload], Awaitable[Payload]], dict[str, float]]] = {
    "completed": (_finish, {}),
    "failed": (_fail, {}),
    "failed in a task of its own": (_fail_in_a_task, {}),
    "cancelled": (_wait, {}),
    "run timed out": (_wait, {"run_timeout": 1}),
    "queue timed out": (_wait, {"queue_timeout": 1}),
    "refused": (_finish, {"queue_timeout": 0}),
    "run timeout not reached": (_finish, {"run_timeout": 1}),
}


def _two_hundred(
    caller: Callable[[Payload], Coroutine[Any, Any, None]], alive: list[weakref.ref[Any]]
) -> list[asyncio.Task[None]]:
    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        payload = Payload()
        tasks.append(start(caller(payload)))
        alive.extend((weakref.ref(payload), weakref.ref(tasks[-1])))
    return tasks


@pytest.mark.usefixtures("without_gc")
@each_door
@pytest.mark.parametrize("way", list(_WAYS))
async def test_no_payload_outlives_its_call_even_without_a_garbage_collector(run: Door, way: str) -> None:
    scheduler = make_scheduler(max_concurrency=300)
    job, options = _WAYS[way]
    full = way in ("queue timed out", "refused")
    blockers = [hold(scheduler) for _ in range(300 if full else 200)]
    await settle()
    alive: list[weakref.ref[Any]] = []

    async def caller(payload: Payload) -> None:
        await asyncio.sleep(0)  # an eager task that fails at once is held by a cycle of asyncio's own
        await run(scheduler, "interactive", job, payload, **options)

    async def some_calls() -> None:
        tasks = _two_hundred(caller, alive)
        await settle()
        if way == "cancelled":  # half of them run, half of them wait
            assert scheduler.snapshot().interactive_queued == 100
            for task in tasks:
                task.cancel()
        elif not full:
            for held in blockers:
                held.release()
        await asyncio.gather(*tasks, return_exceptions=True)

    await some_calls()
    await settle()

    assert len(alive) == 400
    assert sum(ref() is not None for ref in alive) == 0
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


class Label(str):
    """A label that can be watched: it lives as long as the scheduler remembers the call."""

    __slots__ = ("__weakref__",)


async def _remembered(labels: list[weakref.ref[Label]]) -> int:
    await settle()
    gc.collect()
    return sum(ref() is not None for ref in labels)


@each_kind
@pytest.mark.parametrize("others", [0, 1, 2, 3], ids=lambda others: f"{others} others between")
async def test_calls_that_leave_a_queue_are_forgotten_although_others_wait_on(kind: str, others: int) -> None:
    scheduler = make_scheduler(max_concurrency=3, batch_max_concurrency=2)
    stayers = [hold(scheduler, "interactive"), *(hold(scheduler, kind) for _ in range(5))]
    await settle()
    other = "batch" if kind == "interactive" else "interactive"
    labels: list[weakref.ref[Label]] = []

    for number in range(600):
        for _ in range(others):
            hold(scheduler, other, queue_timeout=0)
        label = Label(number)
        labels.append(weakref.ref(label))
        leaver = hold(scheduler, kind, label=label)
        await settle(1)
        leaver.cancel()
        await settle(2)
        assert leaver.task.cancelled()
    del leaver, label

    assert await _remembered(labels) <= 100  # swept up now and then, whoever else came between
    for held in stayers:
        held.release()
    await assert_whole(scheduler)
    assert await _remembered(labels) <= 100


@each_door
async def test_calls_served_out_of_their_order_of_arrival_are_forgotten(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()
    labels: list[weakref.ref[Label]] = []

    async def calls() -> None:
        tasks = []
        for number in range(300):
            label = Label(number)
            labels.append(weakref.ref(label))
            tasks.append(start(run(scheduler, "interactive", asyncio.sleep, 0, priority=-number, label=label)))
        await settle()
        for held in blockers:
            held.release()
        await asyncio.gather(*tasks)

    await calls()

    assert await _remembered(labels) <= 100
    await assert_whole(scheduler)


async def _begun(scheduler: TrafficScheduler, run: Door, kind: str) -> Coroutine[Any, Any, Any]:
    """A call that somebody drives by hand, as far as it goes: it waits, or its function does."""
    coroutine = run(scheduler, kind, asyncio.Event().wait)
    coroutine.send(None)
    return coroutine


each_state = pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])


@each_door
@each_kind
@each_state
async def test_a_call_closed_by_hand_gives_its_slot_or_place_back(run: Door, kind: str, waits: bool) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)] if waits else []
    await settle()
    coroutine = await _begun(scheduler, run, kind)

    coroutine.close()
    await settle()

    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (2 if waits else 0, 0, 0)
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@each_kind
@each_state
async def test_a_call_dropped_half_way_gives_its_slot_or_place_back(run: Door, kind: str, waits: bool) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)] if waits else []
    await settle()
    coroutine = await _begun(scheduler, run, kind)

    del coroutine
    await settle()

    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.interactive_queued, snapshot.batch_queued) == (2 if waits else 0, 0, 0)
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
@each_state
async def test_a_call_closed_in_another_thread_touches_the_scheduler_only_in_the_loops_next_pass(
    run: Door, waits: bool
) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)] if waits else []
    await settle()
    coroutine = await _begun(scheduler, run, "interactive")
    before = scheduler.snapshot()

    # The collector runs in whatever thread allocates; the loop stands still while this one works.
    thread = threading.Thread(target=coroutine.close)
    thread.start()
    thread.join()
    after = scheduler.snapshot()
    await settle()

    assert (after.interactive_running, after.interactive_queued) == (2, 1) if waits else (1, 0)
    assert after.totals == before.totals
    assert account(scheduler, "interactive").submitted == before.totals["interactive"].submitted
    for held in blockers:
        held.release()
    await assert_whole(scheduler)


@each_door
async def test_a_waiting_call_closed_after_it_got_its_slot_passes_it_on(run: Door) -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler), hold(scheduler)
    await settle()
    coroutine = await _begun(scheduler, run, "interactive")
    stayer = hold(scheduler)
    await settle()
    first.release()
    await settle()  # nobody wakes the coroutine: it is driven by hand
    assert scheduler.snapshot().interactive_running == 2
    assert not stayer.started

    coroutine.close()
    await settle()

    assert stayer.started
    second.release()
    stayer.release()
    await assert_whole(scheduler)


@pytest.mark.parametrize("ending", ["dropped", "closed"])
async def test_an_async_generator_that_holds_a_slot_gives_it_back_when_it_is_left_half_way(ending: str) -> None:
    scheduler = make_scheduler()

    async def tokens() -> AsyncIterator[int]:
        async with scheduler.slot("interactive"):
            for number in range(10):
                yield number
                await asyncio.sleep(0)

    stream: Any = tokens()
    async for _ in stream:
        assert scheduler.snapshot().running == 1
        break
    if ending == "closed":
        await stream.aclose()
        assert scheduler.snapshot().running == 0
    del stream
    await settle()

    await assert_whole(scheduler)


@each_door
async def test_calls_whose_tasks_nobody_keeps_are_not_collected(run: Door) -> None:
    scheduler = make_scheduler()
    done: list[int] = []

    async def job(number: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, future.set_result, None)
        await future
        done.append(number)

    for number in range(6):
        _ = start(run(scheduler, "interactive", job, number))
    for _ in range(6):
        await asyncio.sleep(0.5)
        gc.collect()
    await scheduler.drain()

    assert done == list(range(6))
