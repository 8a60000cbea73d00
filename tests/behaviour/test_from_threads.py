"""Threads run calls on the scheduler's loop: `submit_from_thread`. Promise 26."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import Any, Final

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    QueueFull,
    QueueTimeout,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficScheduler,
    loop_future,
    threads,
)
from tests.behaviour.doors import assert_whole
from tests.behaviour.threads import PATIENCE, background_loop, bound_scheduler
from tests.support import account, hold, make_scheduler, noop, settle

on_each_loop: Final = pytest.mark.asyncio(loop_factories=["virtual", "debug", "eager", "real", "uvloop"])

user: Final[ContextVar[str]] = ContextVar("user", default="nobody")


async def ask(question: str) -> str:
    return f"{question} {user.get()}"


def through_future(scheduler: TrafficScheduler, kind: Any, **options: Any) -> None:
    scheduler.submit_from_thread(kind, noop, **options).result(PATIENCE)


def through_block(scheduler: TrafficScheduler, kind: Any, **options: Any) -> None:
    with scheduler.slot_from_thread(kind, **options):
        pass


each_thread_door: Final = pytest.mark.parametrize("run", [through_future, through_block], ids=["submit", "slot"])


@on_each_loop
async def test_a_thread_gets_what_the_function_returns_on_the_loop() -> None:
    scheduler = await bound_scheduler()
    loop = asyncio.get_running_loop()

    async def where(*args: int) -> tuple[bool, tuple[int, ...]]:
        return asyncio.get_running_loop() is loop, args

    future = await asyncio.to_thread(scheduler.submit_from_thread, "batch", where, 1, 2)

    assert await asyncio.to_thread(future.result, PATIENCE) == (True, (1, 2))
    assert future.exception() is None
    assert account(scheduler, "batch").completed == 1
    await assert_whole(scheduler)


async def test_an_idle_loop_wakes_up_for_a_thread() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())

        assert scheduler.submit_from_thread("interactive", ask, "why?").result(PATIENCE) == "why? nobody"


async def test_the_function_sees_the_context_variables_of_the_thread_at_the_moment_of_the_call() -> None:
    scheduler = await bound_scheduler()

    def work() -> Future[str]:
        user.set("anna")
        future = scheduler.submit_from_thread("interactive", ask, "who?")
        user.set("ben")
        return future

    future = await asyncio.to_thread(work)

    assert await asyncio.wrap_future(future) == "who? anna"
    assert user.get() == "nobody"


_AT_THE_DOOR: Final[list[tuple[type[Exception], Any, dict[str, Any]]]] = [
    (ConfigError, "urgent", {}),
    (ConfigError, "batch", {"priority": float("nan")}),
    (ConfigError, "batch", {"queue_timeout": "soon"}),
    (ConfigError, "interactive", {"run_timeout": 0}),
    (ConfigError, "interactive", {"label": 3}),
    (TypeError, "interactive", {"weight": 2}),
]


@pytest.mark.parametrize("error, kind, options", _AT_THE_DOOR)
@pytest.mark.parametrize("door", ["submit_from_thread", "slot_from_thread"])
async def test_wrong_arguments_are_refused_in_the_calling_thread_and_nothing_reaches_the_loop(
    door: str, error: type[Exception], kind: Any, options: dict[str, Any]
) -> None:
    scheduler = await bound_scheduler()
    work = [noop] if door == "submit_from_thread" else []

    with pytest.raises(error):
        await asyncio.to_thread(getattr(scheduler, door), kind, *work, **options)

    await settle()
    assert account(scheduler, kind if kind == "batch" else "interactive").submitted == 0


async def test_what_cannot_be_called_is_refused_as_by_submit_and_a_coroutine_object_is_closed() -> None:
    scheduler = await bound_scheduler()
    texts = []

    def refuse(thing: Any) -> None:
        scheduler.submit_from_thread("batch", thing)

    things: tuple[Callable[[str], Any], ...] = (ask, lambda _: "ask")
    for thing in things:
        for refusing in (scheduler.submit("batch", thing("why?")), asyncio.to_thread(refuse, thing("why?"))):
            with pytest.raises(SchedulerMisuse) as caught:
                await refusing
            texts.append(str(caught.value))

    assert [texts[1], texts[3]] == [text.replace("submit(", "submit_from_thread(") for text in (texts[0], texts[2])]
    gc.collect()  # a warning about a coroutine that was never awaited is an error by pytest's own settings


@each_thread_door
def test_a_scheduler_that_was_never_used_on_a_loop_says_what_to_do(run: Callable[..., None]) -> None:
    with pytest.raises(SchedulerMisuse, match=r"has not been used on one yet: use it there first, `await scheduler\.d"):
        run(make_scheduler(), "batch")


@each_thread_door
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "stopped"])
def test_a_loop_that_does_not_run_is_refused_at_once(run: Callable[..., None], closed: bool) -> None:
    loop = asyncio.new_event_loop()
    scheduler = loop.run_until_complete(bound_scheduler())
    if closed:
        loop.close()

    with pytest.raises(SchedulerMisuse, match="is closed: keep it" if closed else "has stopped: keep it"):
        run(scheduler, "batch")
    assert account(scheduler, "batch").submitted == 0
    loop.close()


@on_each_loop
@pytest.mark.parametrize("wait", ["result", "exception"])
async def test_waiting_on_the_loops_own_thread_is_misuse_and_the_call_goes_on(wait: str) -> None:
    scheduler = await bound_scheduler()
    future = scheduler.submit_from_thread("interactive", ask, "why?")

    with pytest.raises(SchedulerMisuse, match=r"await asyncio\.wrap_future\(future\)"):
        getattr(future, wait)()
    with pytest.raises(SchedulerMisuse, match="for ever"):
        getattr(future, wait)(0.5)

    assert await asyncio.wrap_future(future) == "why? nobody"
    assert future.result() == "why? nobody"


async def test_waiting_on_another_loops_thread_works() -> None:
    with background_loop() as background:
        scheduler = background.run(bound_scheduler())

        assert scheduler.submit_from_thread("batch", ask, "why?").result(PATIENCE) == "why? nobody"


@on_each_loop
async def test_cancelling_the_future_of_a_waiting_call_takes_it_out_of_the_queue() -> None:
    scheduler = await bound_scheduler()
    held = [hold(scheduler), hold(scheduler)]
    await settle()
    future = await asyncio.to_thread(scheduler.submit_from_thread, "interactive", noop)
    await settle()
    assert scheduler.snapshot().interactive_queued == 1

    assert await asyncio.to_thread(future.cancel)
    await settle()

    assert future.cancelled()
    assert scheduler.snapshot().interactive_queued == 0
    assert account(scheduler, "interactive").cancelled == 1
    with pytest.raises(CancelledError, match=r"the interactive call of thread '.*' was cancelled"):
        future.result()
    for call in held:
        call.release()
    await assert_whole(scheduler)


@on_each_loop
async def test_cancelling_the_future_of_a_running_call_cancels_the_function() -> None:
    scheduler = await bound_scheduler()
    ends: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    future = await asyncio.to_thread(scheduler.submit_from_thread, "batch", endless)
    await settle()

    assert await asyncio.to_thread(future.cancel)
    assert await asyncio.to_thread(future.cancel)  # as often as one likes
    await settle()

    assert ends == ["cancelled"]
    assert concurrent.futures.wait([future], PATIENCE).done == {future}
    await assert_whole(scheduler)


async def test_a_call_that_is_cancelled_before_it_reaches_the_loop_is_counted_nowhere() -> None:
    scheduler = await bound_scheduler()
    future = scheduler.submit_from_thread("batch", noop)

    future.cancel()
    await settle()

    assert account(scheduler, "batch").submitted == 0


async def test_a_call_that_is_cancelled_on_the_loop_cancels_its_future() -> None:
    scheduler = await bound_scheduler()
    future = scheduler.submit_from_thread("batch", asyncio.Event().wait)
    await settle()

    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await settle()

    assert future.cancelled()
    await assert_whole(scheduler)


async def _fail() -> None:
    raise KeyError("of its own")


@on_each_loop
async def test_errors_come_out_of_the_future_as_submit_raises_them() -> None:
    scheduler = await bound_scheduler(max_queued_interactive=0)

    def error_of(kind: Any, function: Any = noop, *args: Any, **options: Any) -> BaseException | None:
        return scheduler.submit_from_thread(kind, function, *args, **options).exception(PATIENCE)

    assert isinstance(await asyncio.to_thread(error_of, "batch", _fail), KeyError)
    assert isinstance(await asyncio.to_thread(error_of, "batch", asyncio.sleep, 60, run_timeout=0.01), RunTimeout)
    held = [hold(scheduler, "batch"), hold(scheduler)]
    await settle()
    late = await asyncio.to_thread(error_of, "batch", queue_timeout=0.01)
    full = await asyncio.to_thread(error_of, "interactive")
    for call in held:
        call.release()
    await scheduler.close()
    closed = await asyncio.to_thread(error_of, "batch")

    assert isinstance(late, QueueTimeout)
    assert late.waited >= 0.01
    assert isinstance(full, QueueFull)
    assert (full.queued, full.limit) == (0, 0)
    assert isinstance(closed, SchedulerClosed)


async def test_a_wait_that_is_over_leaves_the_call_alone() -> None:
    scheduler = await bound_scheduler()
    gate = asyncio.Event()
    future = await asyncio.to_thread(scheduler.submit_from_thread, "batch", gate.wait)

    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.result, 0.01)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.exception, 0)
    gate.set()

    assert await asyncio.to_thread(future.result, PATIENCE) is True


async def test_threads_at_once_never_exceed_the_cap_and_all_are_served() -> None:
    scheduler = await bound_scheduler(max_concurrency=3, batch_max_concurrency=2)
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    def client(first: int) -> list[int]:
        futures = [
            scheduler.submit_from_thread("batch" if number % 2 else "interactive", work, number)
            for number in range(first, first + 25)
        ]
        return [future.result(PATIENCE) for future in futures]

    answers = await asyncio.gather(*(asyncio.to_thread(client, 25 * part) for part in range(8)))

    assert [answer for part in answers for answer in part] == list(range(200))
    assert most <= 3
    await assert_whole(scheduler)


def test_a_finished_call_leaves_nothing_behind_that_only_the_garbage_collector_finds() -> None:
    class Prompt:
        pass

    async def keep(prompt: Prompt) -> Prompt:
        raise ValueError(prompt)

    gc.disable()
    try:
        with background_loop() as background:
            scheduler = background.run(bound_scheduler())
            prompt = Prompt()
            seen = weakref.ref(prompt)
            future = scheduler.submit_from_thread("batch", keep, prompt)
            with pytest.raises(ValueError, match="Prompt"):
                future.result(PATIENCE)
            background.run(settle())
            del future, prompt
            assert seen() is None
    finally:
        gc.enable()


async def test_a_result_that_nobody_is_there_to_take_is_undone() -> None:
    undone: list[str] = []
    future: loop_future.LoopFuture[str] = loop_future.LoopFuture(
        loop_future.Visit(asyncio.get_running_loop(), "default", "it")
    )
    errand = threads._Errand(future, undone.append)
    errand.send(lambda: asyncio.sleep(0, "result"))
    while errand._task is None or not errand._task.done():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)

    assert not future.done()
    future.cancel()
    await settle()

    assert undone == ["result"]
