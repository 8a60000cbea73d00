"""M. API misuse: what cannot work is refused at the door, with nothing changed, and odd order is no hang."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from unittest.mock import AsyncMock, Mock

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    Kind,
    QueueFull,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficScheduler,
)
from tests.behaviour.doors import Door, assert_whole, each_door, each_kind, outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario
from tests.support import account, hold, make_scheduler, noop, settle

# B135


class Client:
    """Asks something."""

    async def ask(self) -> str:
        return "answer"

    async def __call__(self) -> str:
        return "answer"


def _generator() -> Iterator[int]:
    yield 1


def _dead_method() -> Any:
    return weakref.WeakMethod(Client().ask)


def _dead_proxy() -> Any:
    proxy = weakref.proxy(Client())
    return lambda: proxy.ask()


RUNNABLE: dict[str, Callable[[], Any]] = {
    "partial": lambda: functools.partial(Client().ask),
    "lambda": lambda: lambda: Client().ask(),
    "async callable object": Client,
    "AsyncMock": lambda: AsyncMock(return_value="answer"),
}
UNRUNNABLE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "method of a dead object": (_dead_method, SchedulerMisuse, "returned NoneType"),
    "proxy of a dead object": (_dead_proxy, ReferenceError, "weakly-referenced"),
    "Mock": (Mock, SchedulerMisuse, "returned Mock"),
    "sync function": (lambda: lambda: "answer", SchedulerMisuse, r"asyncio\.to_thread"),
    "generator function": (lambda: _generator, SchedulerMisuse, "returned generator"),
}


@scenario
@each_kind
@pytest.mark.parametrize("name", RUNNABLE)
async def test_b135_whatever_returns_an_awaitable_runs(stage: Stage, kind: Kind, name: str) -> None:
    plain = make_scheduler()  # gets the function as it is; the stage's own wraps it

    for scheduler in (stage.scheduler(), plain):
        assert await scheduler.submit(kind, RUNNABLE[name]()) == "answer"

    await assert_whole(plain)


@scenario
@each_kind
@pytest.mark.parametrize("name", UNRUNNABLE)
async def test_b135_what_returns_nothing_to_await_gets_a_hint_and_costs_no_slot(
    stage: Stage, kind: Kind, name: str
) -> None:
    make, error, hint = UNRUNNABLE[name]
    counted, plain = stage.scheduler(), make_scheduler()

    for scheduler in (counted, plain):
        for _ in range(3):
            with pytest.raises(error, match=hint):
                await scheduler.submit(kind, make())

    assert account(counted, kind).failed == 3
    await assert_whole(plain)


async def _full(stage: Stage) -> Counted:
    scheduler = stage.scheduler(max_queued_interactive=0, max_queued_batch=0)
    await stage.fill(scheduler, 2)
    return scheduler


def _unbound(scheduler: Counted) -> None:
    """The stage looks for one call more than there are slots."""
    scheduler.configure(max_queued_interactive=None, max_queued_batch=None)


async def _closed(stage: Stage) -> Counted:
    scheduler = stage.scheduler()
    await scheduler.close()
    return scheduler


async def _free(stage: Stage) -> Counted:
    return stage.scheduler()


each_state = pytest.mark.parametrize(
    "prepare,refusal", [(_free, None), (_full, QueueFull), (_closed, SchedulerClosed)], ids=["free", "full", "closed"]
)


@scenario
@each_kind
@each_state
async def test_b135_a_coroutine_object_is_refused_and_closed_in_every_state(
    stage: Stage,
    kind: Kind,
    prepare: Callable[[Stage], Awaitable[Counted]],
    refusal: type[Exception] | None,
) -> None:
    scheduler = await prepare(stage)
    coroutine: Any = Client().ask()

    with pytest.raises(SchedulerMisuse, match=r'write submit\("batch", ask, \.\.\.\)'):
        await scheduler.submit(kind, coroutine)

    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    _unbound(scheduler)


@scenario
@each_kind
@each_state
async def test_b135_a_refused_or_cancelled_function_is_never_called(
    stage: Stage,
    kind: Kind,
    prepare: Callable[[Stage], Awaitable[Counted]],
    refusal: type[Exception] | None,
) -> None:
    scheduler = await prepare(stage)
    before = scheduler.begun
    makers = [*RUNNABLE.values(), *(make for make, _, _ in UNRUNNABLE.values())]
    if refusal is None:
        scheduler.pause(kind)
    tasks = [start(scheduler.submit(kind, make())) for make in makers]
    await settle()
    if refusal is None:
        for task in tasks:
            task.cancel()

    assert [await outcome(task) for task in tasks] == [refusal or asyncio.CancelledError] * 9
    assert scheduler.begun == before
    _unbound(scheduler)


# B136


_BIG: Final = 2**70
VALUES: Final[list[Any]] = [-1, 0, 1.5, math.nan, math.inf, True, "3", None, _BIG]

# Which of the values each argument takes, with the others as they are in `_settings`.
ALLOWED: Final[dict[str, list[Any]]] = {
    "max_concurrency": [_BIG],
    "batch_max_concurrency": [None],
    "batch_min_concurrency": [],
    "interactive_rps_threshold": [1.5, None, _BIG],
    "interactive_p95_threshold": [1.5, None, _BIG],
    "smoothing": [1.5, None, _BIG],
    "window": [1.5],
    "policy": [None],
    "interactive_queue_timeout": [-1, 0, 1.5, math.inf, None, _BIG],
    "batch_queue_timeout": [-1, 0, 1.5, math.inf, None, _BIG],
    "interactive_run_timeout": [1.5, math.inf, None, _BIG],
    "batch_run_timeout": [1.5, math.inf, None, _BIG],
    "max_queued_interactive": [0, None, _BIG],
    "max_queued_batch": [0, None, _BIG],
    "max_running_per_tenant": [None, _BIG],
    "batch_starvation_timeout": [0, 1.5, math.inf, None, _BIG],
    "close_timeout": [0, 1.5, math.inf, None, _BIG],
}
CALL_OPTIONS: Final[dict[str, list[Any]]] = {
    "priority": [-1, 0, 1.5, _BIG],
    "queue_timeout": [-1, 0, 1.5, math.inf, None, _BIG],
    "run_timeout": [1.5, math.inf, None, _BIG],
    "label": ["3", None],
    "observe": [True],
    "tenant": ["3", None],
}


def _settings() -> dict[str, Any]:
    return {"max_concurrency": 8, "batch_max_concurrency": 4, "interactive_rps_threshold": 5.0}


def _accepts(allowed: list[Any], value: Any) -> bool:
    return any(each is value or (type(each) is type(value) and each == value) for each in allowed)


def test_b136_every_argument_is_in_the_table() -> None:
    assert {*ALLOWED, "name"} == {*inspect.signature(TrafficScheduler).parameters}


@pytest.mark.parametrize("argument", ALLOWED)
def test_b136_the_constructor_takes_what_makes_sense_and_nothing_else(argument: str) -> None:
    for value in VALUES:
        settings = {**_settings(), argument: value}
        if _accepts(ALLOWED[argument], value):
            TrafficScheduler(**settings).check()
        else:
            with pytest.raises(ConfigError, match=argument):
                TrafficScheduler(**settings)


@scenario
@pytest.mark.parametrize("argument", ALLOWED)
async def test_b136_so_does_a_change_at_run_time_which_leaves_all_as_it_was_if_it_is_refused(
    stage: Stage, argument: str
) -> None:
    scheduler = stage.scheduler(**_settings())
    calls = [hold(scheduler, kind) for kind in ("interactive", "batch") for _ in range(6)]
    await settle()
    for value in VALUES:
        if _accepts(ALLOWED[argument], value):
            continue
        before, settings = scheduler.snapshot(), scheduler._settings
        with pytest.raises(ConfigError, match=argument):
            scheduler.configure(**{"max_queued_batch": 77, argument: value})
        await settle()
        after = scheduler.snapshot()
        assert scheduler._settings is settings
        assert (after.running, after.interactive_queued, after.batch_queued) == (8, 0, 4)
        assert (after.max_concurrency, after.batch_limit) == (before.max_concurrency, before.batch_limit)
        scheduler.check()

    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))
    for value in ALLOWED[argument]:
        scheduler.configure(**{argument: value})
        scheduler.check()
    scheduler.configure(**{**_settings(), "batch_min_concurrency": 1, "max_queued_interactive": None})
    scheduler.configure(
        **{f"{kind}_{what}_timeout": None for kind in ("interactive", "batch") for what in ("queue", "run")}
    )
    scheduler.configure(max_queued_batch=None)


@scenario
@each_door
@each_kind
@pytest.mark.parametrize("option", CALL_OPTIONS)
async def test_b136_so_does_a_call_which_is_counted_nowhere_if_it_is_refused(
    stage: Stage, run: Door, kind: Kind, option: str
) -> None:
    scheduler = stage.scheduler()
    taken = 0
    for value in VALUES:
        if _accepts(CALL_OPTIONS[option], value):
            assert await run(scheduler, kind, noop, **{option: value}) is None
            taken += 1
        else:
            with pytest.raises(ConfigError, match=option):
                await run(scheduler, kind, noop, **{option: value})

    assert account(scheduler, kind).submitted == account(scheduler, kind).completed == taken


@scenario
@pytest.mark.parametrize("option", ["weight", "cost", "timeout"])
async def test_b136_an_option_that_does_not_exist_is_refused(stage: Stage, option: str) -> None:
    scheduler = stage.scheduler()

    with pytest.raises(TypeError, match=f"unknown option '{option}'"):
        await scheduler.submit("batch", noop, **{option: 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=option):
        scheduler.configure(**{option: 1})
    async with scheduler.slot("batch") as slot:
        for count in (-1, 1.5, math.nan, True, "3", None):
            with pytest.raises(ConfigError):
                slot.tokens(count)  # type: ignore[arg-type]
        slot.tokens(0)


@pytest.mark.parametrize(
    "settings,named",
    [
        ({"batch_max_concurrency": 8}, "batch_max_concurrency must be below"),
        ({"batch_max_concurrency": 9}, "batch_max_concurrency must be below"),
        ({"batch_min_concurrency": 5}, "batch_min_concurrency must be at most"),
        ({"max_concurrency": 4}, "batch_max_concurrency must be below"),
        ({"max_concurrency": 1, "batch_max_concurrency": None}, "max_concurrency must be at least 2"),
    ],
)
def test_b136_bounds_that_contradict_each_other_are_refused(settings: dict[str, Any], named: str) -> None:
    scheduler = TrafficScheduler(**_settings())

    with pytest.raises(ConfigError, match=named):
        TrafficScheduler(**{**_settings(), **settings})
    with pytest.raises(ConfigError, match=named):
        scheduler.configure(**settings)

    assert scheduler.snapshot().max_concurrency == 8
