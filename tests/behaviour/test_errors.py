"""What goes wrong says what, where, the numbers and what to do; and the errors travel whole."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
import re
from typing import Any

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler import (
    CallAborted,
    ConfigError,
    PressurePolicy,
    QueueFull,
    QueueTimeout,
    Rejected,
    RunTimeout,
    SchedulerClosed,
    SchedulerError,
    SchedulerMisuse,
    StreamClosed,
    TrafficScheduler,
    current_slot,
)
from tests.support import hold, make_scheduler, noop, settle

ERRORS: list[SchedulerError | SchedulerMisuse] = [
    SchedulerError("of some sort"),
    Rejected("no", kind="batch", retry_after=1.5),
    Rejected("no", kind="interactive"),
    QueueFull("full", kind="batch", queued=7, limit=8, retry_after=0.25),
    QueueTimeout("late", kind="interactive", waited=3.5),
    SchedulerClosed("closed", kind="batch"),
    RunTimeout("too long"),
    CallAborted("closing"),
    ConfigError("impossible"),
    SchedulerMisuse("write this instead"),
    StreamClosed("not read to its end", idle=60.0),
]


def test_every_error_is_listed() -> None:
    public = {getattr(llm_traffic_scheduler, name) for name in llm_traffic_scheduler.__all__}
    errors = {thing for thing in public if isinstance(thing, type) and issubclass(thing, BaseException)}
    errors -= {thing for thing in errors if issubclass(thing, Warning)}

    assert errors == {type(error) for error in ERRORS}


@pytest.mark.parametrize(
    "error, bases",
    [
        (SchedulerError, (Exception,)),
        (Rejected, (SchedulerError,)),
        (QueueFull, (Rejected,)),
        (QueueTimeout, (Rejected, TimeoutError)),
        (SchedulerClosed, (Rejected,)),
        (RunTimeout, (SchedulerError, TimeoutError)),
        (CallAborted, (SchedulerError,)),
        (ConfigError, (SchedulerError, ValueError)),
        (StreamClosed, (SchedulerError,)),
        (SchedulerMisuse, (RuntimeError,)),
    ],
)
def test_an_error_can_be_caught_by_what_it_is(error: type[Exception], bases: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(error, base) for base in bases)
    family = (SchedulerError, Rejected, TimeoutError, ValueError, RuntimeError, OSError)
    implied = {base for base in family if any(issubclass(each, base) for each in (error, *bases) if each is not error)}
    assert {base for base in family if issubclass(error, base) and base is not error} == implied


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fields_and_message_survive_pickling(error: Exception, protocol: int) -> None:
    error.add_note("seen by worker 3")

    twin = pickle.loads(pickle.dumps(error, protocol))

    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.args == error.args
    assert vars(twin) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_fields_and_message_survive_copying(error: Exception) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error)):
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


async def provoke() -> dict[str, BaseException | None]:
    """One of each error that a call can meet, as the scheduler raises it."""
    scheduler = make_scheduler(max_queued_interactive=1)
    holders = [hold(scheduler, label="a"), hold(scheduler, label="b")]
    await settle()
    timed_out = hold(scheduler, queue_timeout=2.5, label="chat")
    await settle()
    full = hold(scheduler)
    await asyncio.sleep(2.5)
    await settle()
    holders[0].release()
    too_long = hold(scheduler, "batch", run_timeout=1.5, label="embed")
    await asyncio.sleep(2)
    hold(scheduler)
    await settle()
    stranded = hold(scheduler, "batch", label="nightly")
    await asyncio.sleep(4)
    await scheduler.close(timeout=0)
    closed = hold(scheduler, "batch")
    await settle()
    return {
        "QueueTimeout": timed_out.task.exception(),
        "QueueFull": full.task.exception(),
        "RunTimeout": too_long.task.exception(),
        "closed while it waited": stranded.task.exception(),
        "SchedulerClosed": closed.task.exception(),
        "CallAborted": holders[1].task.exception(),
    }


async def test_a_message_says_what_where_the_numbers_and_what_to_do() -> None:
    assert {name: str(error) for name, error in (await provoke()).items()} == {
        "QueueTimeout": "interactive call 'chat' of scheduler 'default' got no slot in 2.5 s; 0 other interactive "
        "calls wait, 2 of 2 slots are taken: raise queue_timeout, or submit fewer calls at once",
        "QueueFull": "no room for the interactive call: the interactive queue of scheduler 'default' holds 1 of 1 "
        "calls: try again later or raise max_queued_interactive",
        "RunTimeout": "batch call 'embed' of scheduler 'default' ran longer than 1.5 s: raise run_timeout, or let the "
        "call do less",
        "closed while it waited": "batch call 'nightly' had waited 4 s when scheduler 'default' was closed: submit it "
        "to another",
        "SchedulerClosed": "scheduler 'default' is closed: it takes no new calls; make a new one",
        "CallAborted": "interactive call 'b' had not ended when close() of scheduler 'default' ran out of time: give "
        "close() a longer timeout",
    }


async def test_messages_start_in_lower_case_and_end_without_a_full_stop() -> None:
    texts = [str(error) for error in (await provoke()).values()]
    texts += [str(await refused(arguments)) for arguments in REFUSED_ARGUMENTS.values()]

    for text in texts:
        assert re.match(r"[a-z]|PressurePolicy", text), text
        assert not text.endswith("."), text


async def refused(arguments: tuple[Any, ...]) -> BaseException:
    """What submit raises for these arguments."""
    kind, function, options = arguments
    with pytest.raises((SchedulerError, SchedulerMisuse)) as refusal:
        await make_scheduler().submit(kind, function, **options)
    return refusal.value


def plain() -> int:
    return 3


async def generator() -> Any:
    yield 1


REFUSED_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "kind": ("chat", noop, {}),
    "no kind": (None, noop, {}),
    "bool kind": (True, noop, {}),
    "label": ("batch", noop, {"label": 7}),
    "priority": ("batch", noop, {"priority": math.nan}),
    "run_timeout": ("batch", noop, {"run_timeout": 0}),
    "queue_timeout": ("batch", noop, {"queue_timeout": "soon"}),
    "no function": ("batch", 5, {}),
    "plain function": ("batch", plain, {}),
    "async generator": ("batch", generator, {}),
}


@pytest.mark.parametrize(
    "case, error, message",
    [
        ("kind", ConfigError, 'kind must be "interactive" or "batch", got \'chat\''),
        ("bool kind", ConfigError, 'kind must be "interactive" or "batch", got True'),
        ("no kind", SchedulerMisuse, 'give "interactive" or "batch" as the first argument'),
        ("label", ConfigError, "label must be a string, got 7"),
        ("priority", ConfigError, "priority must be a finite number, got nan"),
        ("run_timeout", ConfigError, "run_timeout must be above 0 seconds, got 0"),
        ("queue_timeout", ConfigError, "queue_timeout must be a number of seconds or None, got 'soon'"),
        ("no function", SchedulerMisuse, "submit() takes a function that returns an awaitable, got int"),
        ("plain function", SchedulerMisuse, "plain returned int, which cannot be awaited: make it `async def`"),
        ("async generator", SchedulerMisuse, "generator returned async_generator, which cannot be awaited"),
    ],
)
async def test_a_wrong_argument_is_named_with_the_rule_and_the_value(case: str, error: type, message: str) -> None:
    raised = await refused(REFUSED_ARGUMENTS[case])

    assert type(raised) is error
    assert message in str(raised)


async def test_a_slot_block_refuses_what_submit_refuses() -> None:
    scheduler = make_scheduler()
    cases: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        ("chat", {}, ConfigError),
        (None, {}, SchedulerMisuse),
        ("batch", {"label": 7}, ConfigError),
        ("batch", {"priorty": 1}, TypeError),
    ]
    for kind, options, error in cases:
        with pytest.raises(error):
            async with scheduler.slot(kind, **options):
                raise AssertionError("unreachable")
    assert scheduler.snapshot().totals["batch"].submitted == 0


async def test_a_slot_block_is_entered_once() -> None:
    block = make_scheduler().slot("batch")
    async with block:
        pass

    with pytest.raises(SchedulerMisuse, match=r"write `async with scheduler.slot\(...\)` each time"):
        async with block:
            raise AssertionError("unreachable")


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "3", math.nan])
async def test_a_number_of_tokens_is_a_whole_number(tokens: Any) -> None:
    async def stream() -> None:
        slot = current_slot()
        assert slot is not None
        slot.tokens(tokens)

    with pytest.raises(ConfigError, match=r"n must be (a whole number|at least 0), got "):
        await make_scheduler().submit("interactive", stream)


def test_a_scheduler_says_its_state_in_one_line() -> None:
    assert repr(TrafficScheduler(max_concurrency=8, name="gateway")) == (
        "<TrafficScheduler 'gateway': 0+0 of 8 running, 0+0 queued>"
    )
    assert repr(PressurePolicy(p95_threshold=2.0)).startswith("PressurePolicy(")
