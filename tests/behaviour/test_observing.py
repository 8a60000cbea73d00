"""What a policy hears of single interactive calls: each that is traffic comes once and ends once, in whatever way.

`ObservingPolicy` of API.md. Calls inside of calls: test_observing_inside.py; threads and loops:
test_observing_loops.py; who hears, and what it decides then: test_observing_policies.py, test_observing_decisions.py;
faults, and what it may not do: test_observing_faults.py; plays: test_observing_plays.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    Arrived,
    Ended,
    FirstToken,
    QueueFull,
    SchedulerClosed,
    TrafficScheduler,
    current_slot,
    traffic,
)
from tests.behaviour.doors import Door, assert_whole, each_door, outcome, start, through_submit
from tests.heard import Heard
from tests.support import hold, make_scheduler, noop, settle


async def fail() -> None:
    raise ValueError


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def occupied(heard: Heard, **settings: Any) -> TrafficScheduler:
    """A scheduler whose two slots are taken by calls that nobody is to hear of."""
    scheduler = make_scheduler(policy=heard, **settings)
    for _ in range(2):
        hold(scheduler, observe=False)
    await settle()
    return scheduler


async def returns(heard: Heard, run: Door) -> None:
    await run(make_scheduler(policy=heard), "interactive", noop)


async def raises(heard: Heard, run: Door) -> None:
    assert await outcome(run(make_scheduler(policy=heard), "interactive", fail)) is ValueError


async def is_cancelled_while_it_waits(heard: Heard, run: Door) -> None:
    scheduler = await occupied(heard)
    waiting = start(run(scheduler, "interactive", noop))
    await settle()
    waiting.cancel()
    await settle()


async def is_cancelled_while_it_runs(heard: Heard, run: Door) -> None:
    running = start(run(make_scheduler(policy=heard), "interactive", wait_for_ever))
    await settle()
    running.cancel()
    await settle()


async def is_cancelled_when_it_has_just_got_its_slot(heard: Heard, run: Door) -> None:
    scheduler = make_scheduler(policy=heard)
    held = [hold(scheduler, observe=False) for _ in range(2)]
    await settle()
    waiting = start(run(scheduler, "interactive", noop))
    await settle()
    held[0].release()
    await asyncio.sleep(0)
    waiting.cancel()
    await settle()


async def is_cancelled_before_it_gets_the_slot_that_comes_free(heard: Heard, run: Door) -> None:
    scheduler = make_scheduler(policy=heard)
    held = [hold(scheduler, observe=False) for _ in range(2)]
    await settle()
    waiting = start(run(scheduler, "interactive", noop))
    await settle()
    waiting.cancel()  # the scheduler finds it gone as it hands the slot on in this same pass
    scheduler.configure(max_concurrency=3)
    held[0].release()
    await settle()


async def waits_too_long(heard: Heard, run: Door) -> None:
    await outcome(run(await occupied(heard), "interactive", noop, queue_timeout=1))


async def may_not_wait(heard: Heard, run: Door) -> None:
    scheduler = await occupied(heard)
    await outcome(run(scheduler, "interactive", noop, queue_timeout=0))


async def finds_a_full_queue(heard: Heard, run: Door) -> None:
    scheduler = await occupied(heard, max_queued_interactive=0)
    assert await outcome(run(scheduler, "interactive", noop)) is QueueFull


async def runs_too_long(heard: Heard, run: Door) -> None:
    await outcome(run(make_scheduler(policy=heard), "interactive", wait_for_ever, run_timeout=1))


async def is_refused_by_close(heard: Heard, run: Door) -> None:
    scheduler = await occupied(heard)
    waiting = start(run(scheduler, "interactive", noop))
    await asyncio.sleep(3)  # the end comes in a later slice of the window
    await scheduler.close(timeout=0, finish_queued=())
    assert await outcome(waiting) is SchedulerClosed


async def is_aborted_by_close(heard: Heard, run: Door) -> None:
    scheduler = make_scheduler(policy=heard)
    running = start(run(scheduler, "interactive", wait_for_ever))
    await settle()
    await scheduler.close(timeout=1)
    await outcome(running)


async def gives_its_slot_up_and_ends(heard: Heard, run: Door) -> None:
    scheduler = make_scheduler(policy=heard)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await asyncio.sleep(1)
        await slot.checkpoint()

    await run(scheduler, "interactive", work)


async def is_cancelled_without_its_slot(heard: Heard, run: Door) -> None:
    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await wait_for_ever()

    released = start(run(make_scheduler(policy=heard), "interactive", work))
    await settle()
    released.cancel()
    await settle()


async def is_cancelled_on_its_way_back(heard: Heard, run: Door) -> None:
    scheduler = make_scheduler(policy=heard)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            for _ in range(2):
                hold(scheduler, observe=False, priority=-1)
            await settle()

    back = start(run(scheduler, "interactive", work))
    await settle(30)
    back.cancel()
    await settle()


Way = Callable[[Heard, Door], Awaitable[None]]
WAYS: dict[Way, str] = {
    returns: "completed",
    raises: "failed",
    is_cancelled_while_it_waits: "cancelled",
    is_cancelled_while_it_runs: "cancelled",
    is_cancelled_when_it_has_just_got_its_slot: "cancelled",
    is_cancelled_before_it_gets_the_slot_that_comes_free: "cancelled",
    waits_too_long: "rejected",
    may_not_wait: "rejected",
    finds_a_full_queue: "rejected",
    runs_too_long: "timed_out",
    is_refused_by_close: "rejected",
    is_aborted_by_close: "cancelled",
    gives_its_slot_up_and_ends: "completed",
    is_cancelled_without_its_slot: "cancelled",
    is_cancelled_on_its_way_back: "cancelled",
}


@pytest.mark.asyncio(loop_factories=["virtual", "eager", "debug"])
@each_door
@pytest.mark.parametrize("way, told", WAYS.items(), ids=[way.__name__ for way in WAYS])
async def test_a_call_is_heard_of_once_as_it_comes_and_once_as_it_ends(run: Door, way: Way, told: str) -> None:
    heard = Heard()

    await way(heard, run)

    assert heard.names == ["Arrived", told]
    heard.check()


@each_door
@pytest.mark.parametrize("way, told", WAYS.items(), ids=[way.__name__ for way in WAYS])
async def test_with_a_listener_it_is_the_same(run: Door, way: Way, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    start_up = TrafficScheduler.__init__

    def listened_to(scheduler: TrafficScheduler, **settings: Any) -> None:
        start_up(scheduler, **settings)
        scheduler.add_listener(lambda event: None)

    monkeypatch.setattr(TrafficScheduler, "__init__", listened_to)
    await way(heard, run)

    assert heard.names == ["Arrived", told]
    heard.check()


@each_door
async def test_nothing_is_heard_of_batch_calls_and_of_calls_that_are_not_observed(run: Door) -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        slot.first_token()
        slot.tokens(3)

    await run(scheduler, "batch", work)
    await run(scheduler, "interactive", work, observe=False)
    await outcome(run(scheduler, "interactive", fail, observe=False))
    with traffic("batch"):
        await run(scheduler, "interactive", work)

    assert heard.told == []
    assert scheduler.snapshot().totals["batch"].completed == 2


async def test_what_a_batch_call_calls_elsewhere_is_batch_there_and_not_heard_of() -> None:
    heard = Heard()
    here, there = make_scheduler(), make_scheduler(policy=heard)

    async def elsewhere() -> None:
        await there.submit("interactive", noop)

    await here.submit("batch", elsewhere)
    await here.submit("interactive", elsewhere)

    assert heard.names == ["Arrived", "completed"]


async def test_refused_arguments_and_a_closed_scheduler_make_no_arrival() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    with pytest.raises(Exception, match="priority"):
        await scheduler.submit("interactive", noop, priority="high")  # type: ignore[arg-type]
    await scheduler.close()
    with pytest.raises(SchedulerClosed):
        await scheduler.submit("interactive", noop)

    assert heard.told == []


@each_door
async def test_an_end_tells_of_everything_from_submit_to_end(run: Door) -> None:
    heard = Heard()
    scheduler = await occupied(heard)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        slot.first_token()
        await asyncio.sleep(1)
        slot.first_token()
        slot.tokens(4)
        slot.tokens(1)
        await asyncio.sleep(1)

    called = start(run(scheduler, "interactive", work))
    await asyncio.sleep(2)
    scheduler.configure(max_concurrency=3)
    await called

    (at, arrived), (token_at, token), (ended_at, ended) = heard.told
    assert (at, token_at, ended_at) == (0.0, 3.0, 5.0)
    assert isinstance(arrived, Arrived)
    assert token == FirstToken(arrived.call, 3.0)
    assert ended == Ended(arrived.call, latency=5.0, first_token=3.0, tokens=5, outcome="completed")


async def test_an_end_without_success_tells_what_there_was_until_then() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        await asyncio.sleep(1)
        slot.first_token()
        slot.tokens(7)
        await asyncio.sleep(10)

    await outcome(scheduler.submit("interactive", work, run_timeout=3))

    assert heard.of(Ended) == [Ended(heard.of(Arrived)[0].call, 3.0, 1.0, 7, "timed_out")]


async def test_a_call_that_reports_nothing_has_neither_first_token_nor_tokens() -> None:
    heard = Heard()
    await make_scheduler(policy=heard).submit("interactive", asyncio.sleep, 1)

    (ended,) = heard.of(Ended)
    assert (ended.latency, ended.first_token, ended.tokens) == (1.0, None, 0)


async def test_what_is_reported_after_the_end_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    async with scheduler.slot("interactive") as slot:
        pass

    slot.first_token()
    slot.tokens(3)

    assert heard.names == ["Arrived", "completed"]


async def test_calls_that_are_unfinished_at_the_same_time_have_numbers_of_their_own() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    for _ in range(20):
        hold(scheduler)
    await settle()

    assert len({event.call for event in heard.of(Arrived)}) == len(heard.unfinished) == 20


async def test_calls_that_nobody_awaits_any_more_are_heard_to_end() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    waiting = through_submit(scheduler, "interactive", wait_for_ever)
    future = waiting.send(None)
    assert future is not None

    waiting.close()
    await settle()

    assert heard.names == ["Arrived", "failed"]
    await assert_whole(scheduler)
