"""The doubles that users' own tests stand on: `hold` fills slots, `unlimited` never says wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from llm_traffic_scheduler import (
    ConfigError,
    RunTimeout,
    SchedulerClosed,
    SchedulerMisuse,
    TrafficKind,
    TrafficScheduler,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.testing import RecordedCall, hold, unlimited
from tests.behaviour.doors import assert_whole, start
from tests.support import Recorder, account, make_scheduler, noop, settle


async def test_held_slots_are_taken_at_once_and_free_again_after_release() -> None:
    scheduler = make_scheduler(max_concurrency=4)

    held = hold(scheduler, 3)

    assert (scheduler.snapshot().interactive_running, scheduler.snapshot().batch_running) == (3, 0)
    assert {call.kind for call in scheduler.calls()} == {"interactive"}
    held.release()
    assert scheduler.snapshot().running == 0
    held.release()
    await assert_whole(scheduler)


async def test_who_waits_for_a_held_slot_starts_when_it_is_released() -> None:
    scheduler = make_scheduler()
    ran: list[str] = []

    async def note(name: str) -> None:
        ran.append(name)

    with hold(scheduler, 2) as held:
        waiting = [start(scheduler.submit("interactive", note, name)) for name in ("a", "b")]
        await settle()
        assert ran == []
        assert repr(held) == "<HeldSlots 2>"

    await asyncio.gather(*waiting)
    assert ran == ["a", "b"]
    await assert_whole(scheduler)


async def test_a_block_that_fails_releases_too() -> None:
    scheduler = make_scheduler()

    with pytest.raises(ValueError, match="own"), hold(scheduler):
        raise ValueError("own")

    await assert_whole(scheduler)


async def test_held_slots_are_no_traffic_and_ignore_the_schedulers_own_timeouts() -> None:
    scheduler = make_scheduler(interactive_run_timeout=5, interactive_queue_timeout=5, interactive_p95_threshold=1.0)

    with hold(scheduler):
        await asyncio.sleep(60)
        assert scheduler.snapshot().overdue == 0
        assert scheduler.snapshot().pressure == 0

    traffic = scheduler.snapshot().interactive
    assert (traffic.rps, traffic.sample_count) == (0, 0)
    assert account(scheduler, "interactive").completed == 1


@pytest.mark.parametrize("taken, asked", [(0, 4), (1, 3), (3, 1)])
async def test_too_few_free_slots_are_misuse_with_the_numbers_and_nothing_is_taken(taken: int, asked: int) -> None:
    scheduler = make_scheduler(max_concurrency=3)
    held = [hold(scheduler, taken)] if taken else []
    recorder = Recorder(scheduler)
    before = scheduler.snapshot()

    with pytest.raises(SchedulerMisuse, match=f"asked for {asked} slots, {3 - taken} of 3 are free: ask for fewer"):
        hold(scheduler, asked)

    assert scheduler.snapshot() == before
    assert recorder.events == []
    for slots in held:
        slots.release()
    await assert_whole(scheduler)


async def test_a_paused_scheduler_has_no_slot_to_hold() -> None:
    scheduler = make_scheduler()
    scheduler.pause("interactive")

    with pytest.raises(SchedulerMisuse, match='2 of 2 are free, and "interactive" is paused'):
        hold(scheduler)

    assert account(scheduler, "interactive").submitted == 0
    scheduler.resume("interactive")
    await assert_whole(scheduler)


async def test_a_closed_scheduler_has_no_slot_to_hold() -> None:
    scheduler = make_scheduler()
    await scheduler.close()

    with pytest.raises(SchedulerClosed):
        hold(scheduler)


@pytest.mark.parametrize("n", [0, -1, True, 1.0, "1", None])
async def test_an_impossible_number_of_slots_is_refused(n: Any) -> None:
    with pytest.raises(ConfigError, match="n must be a whole number of at least 1, got "):
        hold(make_scheduler(), n)


def test_without_a_running_loop_hold_says_what_to_do() -> None:
    with pytest.raises(SchedulerMisuse, match="call it inside `async def`"):
        hold(make_scheduler())


async def test_slots_held_on_one_loop_do_not_count_on_the_next() -> None:
    scheduler = make_scheduler()

    async def leave_behind() -> None:
        hold(scheduler, 2)

    await asyncio.to_thread(asyncio.run, leave_behind())

    with hold(scheduler, 2):
        assert scheduler.snapshot().running == 2
    await assert_whole(scheduler)


async def test_the_test_itself_is_not_inside_a_held_slot() -> None:
    scheduler = make_scheduler()

    async with scheduler.slot("batch"):
        mine = current_slot()
        with hold(scheduler):
            assert current_slot() is mine
        assert current_slot() is mine
    with hold(scheduler):
        assert current_slot() is None


async def test_close_reports_held_slots_and_does_not_cancel_the_test() -> None:
    scheduler = make_scheduler()
    held = hold(scheduler)

    report = await scheduler.close(timeout=1)

    assert report.abandoned == 1
    held.release()
    assert scheduler.snapshot().running == 0
    await asyncio.sleep(0)


async def _fetch(number: int) -> int:
    return number


async def test_an_unlimited_scheduler_runs_everything_at_once_and_records_it() -> None:
    scheduler = unlimited()
    gate = asyncio.Event()

    tasks = [start(scheduler.submit("batch", gate.wait, label="night")) for _ in range(1000)]
    await settle()
    assert scheduler.calls == [RecordedCall("batch", "night", None)] * 1000
    gate.set()

    assert all(await asyncio.gather(*tasks))
    assert len(scheduler.calls) == 1000


async def test_an_unlimited_scheduler_does_all_that_a_scheduler_does() -> None:
    async with unlimited() as scheduler:
        assert isinstance(scheduler, TrafficScheduler)
        async with scheduler.slot("batch", label="here"):
            assert [info.label for info in scheduler.calls()] == ["here"]
            assert scheduler.snapshot().batch_running == 1

        def thread() -> int:
            with scheduler.slot_from_thread("interactive", label="there"):
                return scheduler.submit_from_thread("batch", _fetch, 3).result()

        assert await asyncio.to_thread(thread) == 3
        await scheduler.drain()
    assert [(call.kind, call.label) for call in scheduler.calls] == [
        ("batch", "here"),
        ("interactive", "there"),
        ("batch", None),
    ]


async def test_what_is_in_force_around_a_call_is_recorded_too() -> None:
    scheduler = unlimited()

    await scheduler.submit(None, _fetch, 1)
    with traffic("batch", tenant="acme"):
        await scheduler.submit(None, _fetch, 1)
        async with scheduler.slot("interactive", tenant="own"):
            pass

    assert scheduler.calls == [
        RecordedCall(None, None, None),
        RecordedCall("batch", None, "acme"),
        RecordedCall("batch", None, "own"),
    ]


async def test_holding_slots_inside_of_batch_work_holds_slots_of_interactive_calls() -> None:
    scheduler = make_scheduler()
    with traffic("batch"), hold(scheduler, 2):
        assert scheduler.snapshot().interactive_running == 2
    await assert_whole(scheduler)


async def test_every_way_in_is_recorded_in_the_order_of_the_starts() -> None:
    scheduler = unlimited()

    @scheduler.wrap(TrafficKind.BATCH, label="wrapped")
    async def wrapped(number: int, *, more: int) -> int:
        return number + more

    assert await scheduler.submit("interactive", _fetch, 3, label="submitted") == 3
    assert await wrapped(3, more=4) == 7
    async with scheduler.slot("interactive", label="slot") as slot:
        assert current_slot() is slot
        assert await scheduler.submit(None, _fetch, 5) == 5
    async with scheduler.slot():
        pass

    assert scheduler.calls == [
        RecordedCall("interactive", "submitted", None),
        RecordedCall("batch", "wrapped", None),
        RecordedCall("interactive", "slot", None),
        RecordedCall("interactive", None, None),
        RecordedCall(None, None, None),
    ]
    assert [type(call.kind) for call in scheduler.calls[:3]] == [str, str, str]


async def test_an_unlimited_scheduler_ends_a_run_at_its_timeout_as_the_real_one_does() -> None:
    with pytest.raises(RunTimeout):
        await unlimited().submit("batch", asyncio.sleep, 60, run_timeout=5)


_MISTAKES: dict[str, Any] = {
    "coroutine object": lambda scheduler: scheduler.submit("batch", _fetch(1)),
    "no function": lambda scheduler: scheduler.submit("batch", "fetch"),
    "not awaitable": lambda scheduler: scheduler.submit("batch", str, 1),
    "not awaitable object": lambda scheduler: scheduler.submit("batch", partial(str, 1)),
    "wrong kind": lambda scheduler: scheduler.submit("urgent", noop),
    "unknown option": lambda scheduler: scheduler.submit("batch", noop, weight=1),
    "impossible option": lambda scheduler: scheduler.submit("batch", noop, run_timeout=0),
    "slot with a wrong kind": lambda scheduler: scheduler.slot("urgent").__aenter__(),
    "slot with an unknown option": lambda scheduler: scheduler.slot("batch", weight=1),
    "slot with an impossible option": lambda scheduler: scheduler.slot("batch", priority="high").__aenter__(),
    "wrap with a wrong kind": lambda scheduler: scheduler.wrap("urgent"),
    "wrap with an unknown option": lambda scheduler: scheduler.wrap("batch", weight=1),
    "wrap of a plain function": lambda scheduler: scheduler.wrap("batch")(str),
}


@pytest.mark.parametrize("name", list(_MISTAKES))
async def test_an_unlimited_scheduler_refuses_the_mistakes_that_the_real_one_refuses(name: str) -> None:
    doubles: list[Any] = [TrafficScheduler(max_concurrency=2), unlimited()]
    errors: list[Exception] = []

    for scheduler in doubles:
        with pytest.raises((SchedulerMisuse, ConfigError, TypeError)) as caught:
            await _MISTAKES[name](scheduler)
        errors.append(caught.value)

    assert (type(errors[0]), str(errors[0])) == (type(errors[1]), str(errors[1]))
    assert doubles[1].calls == [] or name.startswith("not awaitable")
    gc.collect()  # a warning about a coroutine that was never awaited is an error by pytest's own settings


async def test_a_double_records_the_streams_that_are_read() -> None:
    double = unlimited()

    async def words() -> AsyncIterator[str]:
        yield "why"

    assert [word async for word in double.stream("batch", words, label="a", tenant="t")] == ["why"]
    assert [word async for word in double.stream(None, words)] == ["why"]

    assert list(double.calls) == [RecordedCall("batch", "a", "t"), RecordedCall(None, None, None)]
