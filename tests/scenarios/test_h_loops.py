"""H. Threads, loops and tasks: what comes from elsewhere works or says so at once, and nothing depends on luck."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from llm_traffic_scheduler import CallStarted, Event, Kind, RunTimeout, SchedulerMisuse, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.loops import loop_factories
from tests.scenarios.counted import Counted
from tests.scenarios.stage import LOOPS, Stage, scenario
from tests.support import account, hold, make_scheduler, noop, settle

README = Path(__file__).parents[2] / "README.md"

AT_IMPORT = TrafficScheduler(max_concurrency=3, name="made at import")

each_loop = pytest.mark.parametrize("loop_name", LOOPS)


def runner(loop_name: str) -> asyncio.Runner:
    if loop_name == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with 3.12")
    return asyncio.Runner(loop_factory=loop_factories()["virtual" if loop_name == "default" else loop_name])


def real_time() -> AbstractContextManager[None]:
    """For what waits for a thread of the test's own."""
    loop = asyncio.get_running_loop()
    return loop.real_time() if isinstance(loop, VirtualTimeLoop) else nullcontext()


# B92


STEERING: dict[str, Callable[[TrafficScheduler], object]] = {
    "configure": lambda scheduler: scheduler.configure(max_concurrency=5),
    "pause": lambda scheduler: scheduler.pause("batch"),
    "resume": lambda scheduler: scheduler.resume("batch"),
    "add_listener": lambda scheduler: scheduler.add_listener(lambda event: None),
    "remove_listener": lambda scheduler: scheduler.remove_listener(lambda event: None),
}


def _in_a_loop_of_its_own(make: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
    return lambda: asyncio.run(make())


@scenario
@pytest.mark.parametrize("name", STEERING)
async def test_b92_steering_from_another_thread_is_refused_at_once(stage: Stage, name: str) -> None:
    scheduler = stage.scheduler()
    held = hold(scheduler)
    await settle()
    before = scheduler.snapshot()

    with pytest.raises(SchedulerMisuse, match=rf"{name}\(\) was called outside.*call_soon_threadsafe"):
        await asyncio.to_thread(STEERING[name], scheduler)

    after = scheduler.snapshot()
    assert (after.max_concurrency, after.paused, after.running) == (before.max_concurrency, before.paused, 1)
    held.release()
    await held.task


@scenario
async def test_b92_steering_by_the_way_that_the_message_names_takes_effect_while_the_loop_sleeps(stage: Stage) -> None:
    scheduler = stage.scheduler()
    scheduler.pause("batch")
    waiting = start(scheduler.submit("batch", noop))
    await settle()
    loop, steered = asyncio.get_running_loop(), asyncio.Event()

    def steer() -> None:
        scheduler.resume("batch")
        steered.set()

    with real_time():
        await asyncio.to_thread(loop.call_soon_threadsafe, steer)
        await asyncio.wait_for(steered.wait(), 10)

    assert await outcome(waiting) is None


@scenario
@pytest.mark.parametrize("name", ["submit", "slot", "drain", "close"])
async def test_b92_work_from_another_threads_loop_is_refused_while_this_one_is_busy(stage: Stage, name: str) -> None:
    scheduler = make_scheduler()  # the stage counts calls on one loop only
    held = hold(scheduler)
    await settle()
    works: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "submit": lambda: scheduler.submit("interactive", noop),
        "slot": lambda: scheduler.slot("interactive").__aenter__(),
        "drain": scheduler.drain,
        "close": scheduler.close,
    }

    with pytest.raises(SchedulerMisuse, match="in use on another running event loop"):
        await asyncio.to_thread(_in_a_loop_of_its_own(works[name]))

    held.release()
    await held.task
    await assert_whole(scheduler)


@scenario
async def test_b92_looking_from_another_thread_works_while_the_loop_sleeps(stage: Stage) -> None:
    scheduler = stage.scheduler()
    calls = [hold(scheduler, name="a", label="a"), hold(scheduler, name="b"), hold(scheduler, "batch")]
    await settle()

    seen, text, infos = await asyncio.to_thread(lambda: (scheduler.snapshot(), scheduler.explain(), scheduler.calls()))

    assert (seen.running, seen.batch_queued) == (2, 1)
    assert "2 of 2 slots" in text
    assert [info.label for info in infos] == ["a", None, None]
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


# B93


@each_loop
@each_door
def test_b93_one_scheduler_serves_one_run_after_another_also_after_contention(loop_name: str, run: Door) -> None:
    async def contention() -> None:
        await asyncio.gather(*(run(AT_IMPORT, "interactive", settle, 3) for _ in range(20)))
        left = start(run(AT_IMPORT, "interactive", asyncio.Event().wait))  # the run ends with it
        await settle()
        assert not left.done()

    for _ in range(3):
        with runner(loop_name) as loop:
            loop.run(contention())
            loop.run(contention())  # the same loop, once more
    with runner(loop_name) as loop:
        loop.run(assert_whole(AT_IMPORT))


@each_loop
def test_b93_a_loop_for_each_test_is_a_loop_for_each_test(loop_name: str) -> None:
    scheduler = make_scheduler()
    for _ in range(5):
        with runner(loop_name) as loop:
            loop.run(scheduler.submit("batch", noop))
            loop.run(assert_whole(scheduler))

    assert account(scheduler, "batch").completed == 5


@each_loop
@each_door
def test_b93_two_threads_with_a_loop_each_hear_clearly_who_may_and_share_no_slots(loop_name: str, run: Door) -> None:
    scheduler = make_scheduler()
    here = runner(loop_name)
    busy, done = threading.Event(), threading.Event()
    endings: list[type[BaseException] | None] = []

    async def first() -> None:
        with real_time():
            async with scheduler.slot("interactive"):
                busy.set()
                await asyncio.to_thread(done.wait, 10)

    async def second() -> None:
        endings.extend([await outcome(run(scheduler, "interactive", noop)) for _ in range(4)])

    def in_a_thread() -> None:
        with runner(loop_name) as loop:
            loop.run(first())

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    assert busy.wait(10)
    with here as loop:
        loop.run(second())
        done.set()
        thread.join(10)
        loop.run(second())  # that one is idle now
        loop.run(assert_whole(scheduler))

    assert endings == [SchedulerMisuse] * 4 + [None] * 4


# B94


@scenario
@each_kind
async def test_b94_a_cancelled_thread_goes_on_without_its_slot_as_the_readme_says(stage: Stage, kind: Kind) -> None:
    scheduler = stage.scheduler()
    stop = threading.Event()
    inside: list[int] = []

    def blocking() -> None:
        inside.append(1)
        stop.wait(10)

    tasks = [start(scheduler.submit(kind, asyncio.to_thread, blocking, run_timeout=0.02)) for _ in range(8)]

    # A thread's work has its deadline from the slot on, also where no thread was free to begin it.
    assert [await outcome(task) for task in tasks] == [RunTimeout] * 8
    assert len(inside) > scheduler.most
    assert scheduler.snapshot().running == 0
    assert "a cancelled thread goes on without one" in README.read_text(encoding="utf-8")
    await stage.canaries(scheduler)
    stop.set()
    await asyncio.get_running_loop().shutdown_default_executor()


# B96


async def _steers(scheduler: Counted) -> None:
    scheduler.configure(batch_max_concurrency=3)
    scheduler.pause("batch")
    scheduler.resume("batch")


async def _closes(scheduler: Counted) -> None:
    await scheduler.close()


async def _cancels_itself(scheduler: Counted) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def _fails(scheduler: Counted) -> None:
    raise ConnectionError


async def _submits(scheduler: Counted) -> None:
    await scheduler.submit("interactive", noop)


BEFORE_THE_FIRST_AWAIT: dict[Callable[[Counted], Coroutine[Any, Any, None]], type[BaseException] | None] = {
    _steers: None,
    _closes: SchedulerMisuse,
    _cancels_itself: asyncio.CancelledError,
    _fails: ConnectionError,
    _submits: None,
}


@scenario
@each_door
@each_kind
@pytest.mark.parametrize("job", BEFORE_THE_FIRST_AWAIT, ids=lambda job: job.__name__.strip("_"))
async def test_b96_what_a_job_does_before_its_first_await_is_done_as_later(
    stage: Stage, run: Door, kind: Kind, job: Callable[[Counted], Coroutine[Any, Any, None]]
) -> None:
    scheduler = stage.scheduler(max_concurrency=5)

    fast = [start(run(scheduler, kind, job, scheduler)) for _ in range(3)]
    await asyncio.wait(fast)
    scheduler.pause(kind)
    waiting = [start(run(scheduler, kind, job, scheduler)) for _ in range(3)]
    await settle()
    scheduler.resume(kind)

    assert [await outcome(task) for task in fast + waiting] == [BEFORE_THE_FIRST_AWAIT[job]] * 6
    assert scheduler.snapshot().running == 0


@scenario
@each_door
async def test_b96_a_call_made_while_an_error_is_handled_does_not_inherit_it(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler()

    async def fails() -> None:
        raise ConnectionError("of the call")

    for wait in (False, True):
        if wait:
            await stage.fill(scheduler, 2)
        try:
            raise OSError("of somebody else")
        except OSError:
            task = start(run(scheduler, "interactive", fails))
        await settle()
        if wait:
            stage.unload()
        with pytest.raises(ConnectionError) as caught:
            await task
        assert caught.value.__context__ is None or stage.loop == "eager"


@scenario
@each_kind
@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.slow
async def test_b96_ten_thousand_instant_calls_are_no_recursion(stage: Stage, kind: Kind, parked: bool) -> None:
    scheduler = stage.scheduler()
    count = {"debug": 200, "uvloop": 2_000}.get(stage.loop, 10_000)
    if parked:
        scheduler.pause(kind)
    tasks = [asyncio.ensure_future(scheduler.submit(kind, noop)) for _ in range(count)]
    await settle(2)
    scheduler.resume(kind)
    await asyncio.gather(*tasks)

    assert account(scheduler, kind).completed == count
    assert scheduler.snapshot().running == 0


# B97


@scenario
@each_door
async def test_b97_nothing_that_is_waited_for_is_collected(stage: Stage, run: Door) -> None:
    scheduler: Counted | None = stage.scheduler()
    assert scheduler is not None
    stage.forget(scheduler)  # the test's reference goes as well
    gates: list[asyncio.Future[str]] = [asyncio.get_running_loop().create_future() for _ in range(6)]
    tasks = [start(run(scheduler, kind, lambda gate=gate: gate)) for gate in gates for kind in ("batch", "interactive")]
    tasks.append(start(scheduler.drain()))
    tasks.append(start(run(scheduler, "interactive", noop, queue_timeout=1e6, run_timeout=1e6)))
    await settle()
    scheduler = None

    for gate in gates:
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0)
        gate.set_result("done")
    await asyncio.gather(*tasks)

    assert [task.result() for task in tasks[:12]] == ["done"] * 12


@scenario
async def test_b97_a_scheduler_that_nobody_holds_still_ends_its_close(stage: Stage) -> None:
    scheduler: Counted | None = stage.scheduler()
    assert scheduler is not None
    stage.forget(scheduler)
    running = start(scheduler.submit("interactive", asyncio.Event().wait))
    await settle()
    closing = start(scheduler.close(timeout=stage.seconds(1)))
    await settle()
    scheduler = None

    for _ in range(5):
        gc.collect()
        await asyncio.sleep(stage.seconds(0.1))

    report = await closing
    assert report.cancelled == 1
    await asyncio.wait([running])


# B98


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@scenario
@each_door
@each_kind
@pytest.mark.parametrize("parked", [False, True])
async def test_b98_each_job_sees_its_own_submitters_context(stage: Stage, run: Door, kind: Kind, parked: bool) -> None:
    scheduler = stage.scheduler(max_concurrency=3)
    if parked:
        scheduler.pause(kind)

    async def job() -> list[str]:
        seen = [tenant.get()]
        await settle(2)
        seen.append(tenant.get())
        tenant.set("changed by a job")
        return seen

    async def request(name: str) -> list[str]:
        tenant.set(name)
        return await run(scheduler, kind, job)  # type: ignore[no-any-return]

    requests = [start(request(name)) for name in "ABCDEF"]
    await settle(3)
    scheduler.resume(kind)

    assert [await task for task in requests] == [[name, name] for name in "ABCDEF"]
    assert tenant.get() == "nobody"


@scenario
@each_door
async def test_b98_hooks_and_timers_belong_to_no_request(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler(batch_queue_timeout=stage.seconds(1))
    seen: list[str] = []

    def listener(event: Event) -> None:
        seen.append(f"{tenant.get()} {current_slot()}")

    async def request(name: str) -> None:
        tenant.set(name)
        await outcome(run(scheduler, "batch", asyncio.sleep, stage.seconds(2)))

    scheduler.add_listener(listener)
    await asyncio.gather(
        request("A"), request("B"), run(scheduler, "interactive", scheduler.pause, "batch"), return_exceptions=True
    )
    scheduler.remove_listener(listener)

    assert len(seen) >= 6
    assert set(seen) == {"nobody None"}


@scenario
async def test_b98_work_that_a_hook_starts_is_not_done_in_the_name_of_whoever_triggered_it(stage: Stage) -> None:
    scheduler = stage.scheduler(max_concurrency=3)
    found: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def report() -> None:
        found.append(f"{tenant.get()} {current_slot()}")

    def listener(event: Event) -> None:
        if isinstance(event, CallStarted):
            tasks.append(start(report()))

    async def request(name: str) -> None:
        tenant.set(name)
        await scheduler.submit("interactive", settle)
        await scheduler.submit("batch", settle)

    scheduler.add_listener(listener)
    await request("A")
    scheduler.remove_listener(listener)
    await asyncio.wait(tasks)

    assert found == ["nobody None"] * 2
