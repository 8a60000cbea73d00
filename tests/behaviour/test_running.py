"""A call runs in its caller's own task, at most once, and gives its slot back exactly once.

Promises 10, 11 and 12.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from llm_traffic_scheduler import QueueFull, QueueTimeout, RunTimeout, SchedulerClosed, SchedulerMisuse
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.support import hold, make_scheduler, noop, settle

pytestmark = pytest.mark.asyncio(loop_factories=["virtual", "eager"])


class Oops(Exception):
    """An error of the call's own."""


class Abort(BaseException):
    """What some libraries raise past `except Exception`."""


@each_door
@each_kind
async def test_a_call_runs_in_its_callers_own_task(run: Door, kind: str) -> None:
    scheduler = make_scheduler()

    async def whose() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    assert await run(scheduler, kind, whose) is asyncio.current_task()


@each_door
async def test_a_call_that_waited_runs_in_its_callers_own_task(run: Door) -> None:
    scheduler = make_scheduler()
    blockers = [hold(scheduler), hold(scheduler)]
    await settle()

    async def whose() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    waiter = start(run(scheduler, "interactive", whose))
    await settle()
    for held in blockers:
        held.release()

    assert await waiter is waiter


@each_door
async def test_no_task_is_created_for_a_call_whether_it_waits_or_not(run: Door) -> None:
    scheduler = make_scheduler()
    created = 0

    def factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        nonlocal created
        created += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(factory)
    first, second = hold(scheduler), hold(scheduler)
    waiter = start(run(scheduler, "batch", noop))
    await settle()
    first.release()
    second.release()
    await waiter
    await run(scheduler, "interactive", noop)

    assert created == 3  # the test's own


@each_door
@each_kind
async def test_a_call_that_finds_a_free_slot_and_never_waits_itself_ends_without_giving_the_loop_a_turn(
    run: Door, kind: str
) -> None:
    scheduler = make_scheduler()

    async def answer() -> int:
        return 42

    call = run(scheduler, kind, answer)
    with pytest.raises(StopIteration) as ended:  # a suspension would come out as a value of send()
        call.send(None)

    assert ended.value.value == 42
    await assert_whole(scheduler)


async def test_a_call_that_waits_starts_in_the_first_pass_after_the_release() -> None:
    scheduler = make_scheduler()
    first, second, third = hold(scheduler), hold(scheduler), hold(scheduler)
    await settle()

    first.release()
    await settle(1)  # the first caller's task gets its answer and ends
    assert not third.started
    await settle(1)

    assert third.started
    second.release()
    third.release()
    await assert_whole(scheduler)


@each_door
@each_kind
async def test_positional_arguments_and_the_result_are_passed_on(run: Door, kind: str) -> None:
    async def join(*parts: str) -> str:
        return "-".join(parts)

    assert await run(make_scheduler(), kind, join, "a", "b", "c") == "a-b-c"


@each_door
async def test_an_exception_of_the_call_reaches_the_caller_unchanged_with_its_own_traceback(run: Door) -> None:
    error = Oops("the model is gone")

    async def fail() -> None:
        raise error

    with pytest.raises(Oops) as caught:
        await run(make_scheduler(), "interactive", fail)

    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[0].startswith("test_an_exception_of_the_call")
    assert frames[-1] == "fail"
    assert len(frames) <= 4  # the test, the door, submit, fail


def _raise(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    async def job() -> None:
        await asyncio.sleep(0)
        raise error

    return job


def _raise_at_the_call(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def job() -> Any:
        raise error

    return job


_ENDINGS: dict[str, tuple[Callable[[], Any], type[BaseException] | None]] = {
    "result": (noop, None),
    "exception": (_raise(Oops), Oops),
    "own BaseException": (_raise(Abort), Abort),
    "KeyboardInterrupt": (_raise(KeyboardInterrupt), KeyboardInterrupt),
    "SystemExit": (_raise(SystemExit(3)), SystemExit),
    "GeneratorExit": (_raise(GeneratorExit), GeneratorExit),
    "CancelledError of its own": (_raise(asyncio.CancelledError), asyncio.CancelledError),
    "TimeoutError of its own": (_raise(TimeoutError), TimeoutError),
    "StopAsyncIteration": (_raise(StopAsyncIteration), StopAsyncIteration),
    "exception at the call": (_raise_at_the_call(Oops), Oops),
    "KeyboardInterrupt at the call": (_raise_at_the_call(KeyboardInterrupt), KeyboardInterrupt),
    "StopIteration at the call": (_raise_at_the_call(StopIteration), RuntimeError),  # Python's own rule for coroutines
}


@each_door
@each_kind
@pytest.mark.parametrize("ending", list(_ENDINGS))
async def test_the_slot_is_back_by_the_time_the_caller_sees_the_end(run: Door, kind: str, ending: str) -> None:
    scheduler = make_scheduler()
    job, expected = _ENDINGS[ending]
    other = hold(scheduler, "interactive")
    await settle()

    if expected is None:
        await run(scheduler, kind, job)
    else:
        with pytest.raises(expected):
            await run(scheduler, kind, job)

    assert scheduler.snapshot().running == 1
    other.release()
    await assert_whole(scheduler)


@pytest.mark.parametrize("ending", list(_ENDINGS))
async def test_each_ending_is_counted_once_in_the_right_place(ending: str) -> None:
    scheduler = make_scheduler()
    job, expected = _ENDINGS[ending]

    with pytest.raises(expected) if expected else pytest.MonkeyPatch.context():
        await scheduler.submit("batch", job)

    totals = scheduler.snapshot().totals["batch"]
    place = "completed" if expected is None else "cancelled" if expected is asyncio.CancelledError else "failed"
    counts = {name: getattr(totals, name) for name in ("completed", "failed", "cancelled", "timed_out", "rejected")}
    assert counts == {**dict.fromkeys(counts, 0), place: 1}
    assert (totals.submitted, totals.started) == (1, 1)


async def test_a_stop_iteration_of_a_plain_function_reaches_the_caller_as_the_cause_of_a_runtime_error() -> None:
    scheduler = make_scheduler()
    stop = StopIteration("empty")

    with pytest.raises(RuntimeError) as caught:
        await scheduler.submit("interactive", _raise_at_the_call(stop))

    assert caught.value.__cause__ is stop


@each_door
async def test_a_function_is_called_exactly_once_however_it_ends(run: Door) -> None:
    scheduler = make_scheduler()
    calls: list[str] = []

    async def job(ending: str) -> None:
        calls.append(ending)
        await asyncio.sleep(1)
        if ending == "fails":
            raise Oops

    await run(scheduler, "batch", job, "works")
    with pytest.raises(Oops):
        await run(scheduler, "batch", job, "fails")
    with pytest.raises(RunTimeout):
        await run(scheduler, "batch", job, "is late", run_timeout=0.5)
    leaver = start(run(scheduler, "batch", job, "is cancelled"))
    await settle()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver

    assert calls == ["works", "fails", "is late", "is cancelled"]


@each_door
@each_kind
async def test_a_function_is_never_called_if_the_call_was_refused_or_cancelled_while_it_waited(
    run: Door, kind: str
) -> None:
    scheduler = make_scheduler(max_queued_interactive=4, max_queued_batch=4)
    blockers = [hold(scheduler, "interactive"), hold(scheduler, "interactive")]
    await settle()
    called: list[str] = []

    async def job(name: str) -> None:
        called.append(name)

    def submit(name: str, **options: float) -> asyncio.Task[Any]:
        return start(run(scheduler, kind, job, name, **options))

    waiting = [submit("leaves"), submit("is late", queue_timeout=5), submit("meets the end"), submit("meets it too")]
    refused = [submit("finds no room"), submit("has no patience", queue_timeout=0)]
    await settle()
    waiting[0].cancel()
    await asyncio.sleep(6)
    closing = start(scheduler.close(timeout=None, finish_queued=()))
    await settle()
    refused.append(submit("comes after the end"))
    for held in blockers:
        held.release()
    await closing

    assert [await outcome(task) for task in waiting] == [
        asyncio.CancelledError,
        QueueTimeout,
        SchedulerClosed,
        SchedulerClosed,
    ]
    assert [await outcome(task) for task in refused] == [QueueFull, QueueFull, SchedulerClosed]
    assert called == []


@pytest.mark.parametrize("value", [None, 7, "text", (), object()], ids=repr)
async def test_the_slot_comes_back_from_a_function_that_returns_nothing_awaitable(value: object) -> None:
    scheduler = make_scheduler()

    with pytest.raises(SchedulerMisuse):
        await scheduler.submit("batch", lambda: value)  # type: ignore[arg-type, return-value]

    await assert_whole(scheduler)


@each_kind
async def test_a_released_slot_serves_the_next_call_before_the_caller_has_its_answer(kind: str) -> None:
    scheduler = make_scheduler()
    first, second = hold(scheduler, "interactive", name="first"), hold(scheduler, kind, name="second")
    log: list[str] = []
    await settle()
    third = hold(scheduler, "interactive", name="third", log=log)
    await settle()
    first.task.add_done_callback(lambda _: log.append(f"{scheduler.snapshot().interactive_queued} waiting"))

    first.release()
    await settle()

    assert log == ["0 waiting", "third"] or log == ["third", "0 waiting"]
    second.release()
    third.release()
    await assert_whole(scheduler)
