"""What a policy hears of single interactive calls: each that is traffic comes once and ends once, in whatever way.

`ObservingPolicy` of API.md. Faults, and what it may not do: test_observing_faults.py; plays: test_observing_plays.py.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    Decision,
    Ended,
    FirstToken,
    FixedPolicy,
    ObservingPolicy,
    QueueFull,
    SchedulerClosed,
    Signals,
    TrafficScheduler,
    current_slot,
    traffic,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, assert_whole, each_door, outcome, start, through_submit
from tests.behaviour.left_behind import Left
from tests.behaviour.threads import bound_scheduler
from tests.heard import Heard
from tests.support import Law, hold, make_scheduler, noop, settle


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


# Calls inside of calls


async def test_a_call_in_a_lent_slot_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def inner() -> None:
        slot = current_slot()
        assert slot is not None
        slot.first_token()
        async with slot.released():
            await asyncio.sleep(1)

    await scheduler.submit("interactive", scheduler.submit, "interactive", inner)

    assert heard.names == ["Arrived", "completed"]
    heard.check()


async def test_a_call_inside_that_gets_a_slot_of_its_own_at_once_is_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)

    async def outer() -> None:
        await asyncio.sleep(1)
        await asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 2))

    await scheduler.submit("interactive", outer)

    first, inner, done, last = heard.told
    assert [at for at, _ in heard.told] == [0.0, 1.0, 3.0, 3.0]
    assert inner[1].call == done[1].call != first[1].call == last[1].call
    heard.check()


async def test_a_call_inside_that_waits_arrives_when_it_gets_a_slot_of_its_own_and_lives_from_its_submit() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    other = hold(scheduler, observe=False)
    await settle()
    opened = asyncio.Event()

    async def outer() -> None:
        # The first child has the slot that is lent, the second waits.
        children: list[asyncio.Task[Any]] = [asyncio.create_task(scheduler.submit("interactive", opened.wait))]
        await settle()
        children.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 2)))
        await asyncio.sleep(5)
        assert heard.names == ["Arrived"]
        other.release()
        await asyncio.sleep(3)
        opened.set()
        await asyncio.gather(*children)

    await scheduler.submit("interactive", outer)

    assert heard.names == ["Arrived", "Arrived", "completed", "completed"]
    (_, _), (arrived_at, _), (ended_at, ended), _ = heard.told
    assert (arrived_at, ended_at, ended.latency) == (5.0, 7.0, 7.0)  # type: ignore[union-attr]
    heard.check()


async def test_a_call_inside_that_leaves_before_it_gets_a_slot_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    hold(scheduler, observe=False)
    await settle()

    async def outer() -> None:
        lent = asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 10))
        await settle()
        leaver = asyncio.create_task(scheduler.submit("interactive", noop))
        late = start(scheduler.submit("interactive", noop, queue_timeout=1))
        await settle()
        leaver.cancel()
        await asyncio.sleep(2)
        assert late.done()
        lent.cancel()

    await scheduler.submit("interactive", outer)

    assert heard.names == ["Arrived", "completed"]
    heard.check()


async def test_a_call_that_ends_before_its_guest_has_ended_once() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    hold(scheduler, observe=False)
    await settle()
    tasks = []

    async def outer() -> None:
        tasks.append(asyncio.create_task(scheduler.submit("interactive", asyncio.sleep, 10)))
        await settle()

    await scheduler.submit("interactive", outer)
    assert heard.names == ["Arrived", "completed"]
    await asyncio.gather(*tasks)

    assert heard.names == ["Arrived", "completed"]
    heard.check()


# What an event says


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


# When


async def test_the_policy_is_advanced_once_in_a_slice_and_before_it_hears_of_its_first_event() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard, window=10.0)

    tasks = []
    for step in range(90):  # three calls in each slice of 0.1 s, the ends of which are others
        tasks.append(start(scheduler.submit("interactive", asyncio.sleep, 0.95)))
        await asyncio.sleep(1 / 30 + step * 1e-9)

    slices = [int(at * 10 + 1e-6) for at in heard.advanced]
    assert slices == sorted(set(slices))
    assert len(slices) >= 30
    heard.check()


async def test_what_it_decides_after_it_has_heard_of_a_call_holds_at_once() -> None:
    class OneLess(Heard):
        def decide(self, now: float, signals: Signals) -> Decision:
            return Decision(signals.batch_max - len(self.unfinished))

    scheduler = make_scheduler(max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=OneLess())
    interactive = [hold(scheduler) for _ in range(2)]
    await settle()
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()

    assert sum(call.started for call in batch) == 2
    interactive[0].release()
    await settle()
    assert sum(call.started for call in batch) == 3
    interactive[1].release()
    await settle()
    assert sum(call.started for call in batch) == 4


class RisesOn(Law):
    """Lets one batch call run, and four once it has heard of an event of this type."""

    def __init__(self, type_: type[Any]) -> None:
        super().__init__(lambda now, signals: Decision(self.limit), reads=frozenset({"batch_max"}))
        self.limit = 1
        self.type = type_

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        if isinstance(event, self.type):
            self.limit = 4


async def test_batch_work_starts_as_soon_as_a_first_token_has_raised_its_limit() -> None:
    scheduler = make_scheduler(
        max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=RisesOn(FirstToken)
    )
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert sum(call.started for call in batch) == 1

    async with scheduler.slot("interactive") as slot:
        slot.first_token()
        scheduler.check()  # nobody who may run waits
        await settle()

        assert all(call.started for call in batch)


async def leaves_its_released_block(scheduler: TrafficScheduler) -> None:
    async def work() -> None:
        slot = current_slot()
        assert slot is not None
        async with slot.released():
            await wait_for_ever()

    task = start(scheduler.submit("interactive", work))
    await settle()
    task.cancel()


async def leaves_the_queue_as_a_slot_comes_free(scheduler: TrafficScheduler) -> None:
    held = [hold(scheduler, observe=False) for _ in range(5)]
    task = start(scheduler.submit("interactive", noop))
    await settle()
    task.cancel()
    scheduler.configure(max_concurrency=10)  # finds it gone
    assert not any(call.task.done() for call in held)


async def leaves_the_queue_while_it_is_paused(scheduler: TrafficScheduler) -> None:
    scheduler.pause("interactive")
    task = start(scheduler.submit("interactive", noop))
    await settle()
    task.cancel()


@pytest.mark.parametrize(
    "leave",
    [leaves_its_released_block, leaves_the_queue_as_a_slot_comes_free, leaves_the_queue_while_it_is_paused],
)
async def test_batch_work_starts_as_soon_as_the_end_of_a_call_has_raised_its_limit(
    leave: Callable[[TrafficScheduler], Awaitable[None]],
) -> None:
    scheduler = make_scheduler(
        max_concurrency=6, batch_max_concurrency=4, batch_min_concurrency=1, policy=RisesOn(Ended)
    )
    batch = [hold(scheduler, "batch") for _ in range(4)]
    await settle()
    assert sum(call.started for call in batch) == 1

    await leave(scheduler)
    await settle()

    scheduler.check()
    assert all(call.started for call in batch)


# Who does not want to hear


class Deaf(Heard):
    observing = False


@pytest.mark.parametrize("policy", [FixedPolicy(1), Deaf()])
async def test_for_a_policy_that_does_not_want_to_hear_nothing_is_made(policy: Any) -> None:
    made: list[str] = []

    def trace(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("observation.py"):
            made.append(frame.f_code.co_name)

    scheduler = make_scheduler(policy=policy)
    sys.setprofile(trace)
    try:
        for _ in range(5):
            await scheduler.submit("interactive", noop)
    finally:
        sys.setprofile(None)

    assert made == []
    assert getattr(policy, "told", []) == []


def test_the_protocol_is_for_those_that_observe() -> None:
    assert isinstance(Heard(), ObservingPolicy)
    assert not isinstance(FixedPolicy(1), ObservingPolicy)


async def test_a_policy_that_comes_in_the_middle_hears_of_ends_of_calls_it_does_not_know() -> None:
    first, second = Heard(), Heard()
    scheduler = make_scheduler(policy=first)
    old = hold(scheduler)
    await settle()

    scheduler.configure(policy=second)
    new = hold(scheduler)
    await settle()
    old.release()
    new.release()
    await settle()

    assert first.names == ["Arrived"]
    assert second.names == ["Arrived", "completed", "completed"]
    assert second.strangers == 1
    second.check()


async def test_a_policy_that_comes_back_has_forgotten_the_calls_that_ended_without_it() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    held = hold(scheduler)
    await settle()

    scheduler.configure(policy=FixedPolicy(1))
    held.release()
    await settle()
    scheduler.configure(policy=heard)

    assert heard.unfinished == {}
    await scheduler.submit("interactive", noop)
    assert heard.names == ["Arrived", "completed"]


async def test_the_adaptive_law_is_not_stalled_by_calls_that_ended_without_it() -> None:
    law = AdaptivePolicy(p95_target=1.0)
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=law)
    held = [hold(scheduler) for _ in range(5)]
    await asyncio.sleep(3)
    scheduler.configure(policy=FixedPolicy(1))
    for call in held:
        call.release()
    await settle()

    scheduler.configure(policy=law)
    await scheduler.submit("interactive", noop)
    await asyncio.sleep(20)

    assert "stalled" not in scheduler.snapshot().detail


# Threads, loops, processes


@pytest.mark.asyncio(loop_factories=["virtual", "debug", "real", "uvloop"])
async def test_calls_from_threads_are_heard_of_on_the_loops_own_thread() -> None:
    threads: set[int] = set()

    class Where(Heard):
        def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
            threads.add(threading.get_ident())
            super().observe(now, event)

    heard = Where()
    scheduler = await bound_scheduler(policy=heard)

    async def ask() -> None:
        slot = current_slot()
        assert slot is not None
        slot.first_token()

    def work() -> None:
        scheduler.submit_from_thread("interactive", ask).result(10)
        with scheduler.slot_from_thread("interactive"):
            slot = current_slot()
            assert slot is not None
            slot.first_token()
            slot.tokens(5)
        with scheduler.slot_from_thread("batch"):
            pass

    await asyncio.to_thread(work)

    assert heard.names == ["Arrived", "FirstToken", "completed"] * 2
    assert heard.of(Ended)[1].tokens == 5
    assert heard.of(FirstToken)[1].elapsed == heard.of(Ended)[1].first_token
    assert threads == {threading.get_ident()}
    heard.check()


@each_door
def test_with_the_loop_its_calls_are_forgotten_and_their_late_ends_not_heard_of(run: Door) -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    left = Left(scheduler, run)
    assert len(heard.unfinished) == 4
    resets = heard.resets

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run(scheduler, "interactive", noop))
        assert heard.resets == resets + 1
        assert heard.names == ["Arrived", "completed"]
        left.finish()
        assert heard.names == ["Arrived", "completed"]
        heard.check()
        assert heard.unfinished == {}
        runner.run(assert_whole(scheduler))
    heard.check()


def test_what_a_call_of_a_loop_that_is_gone_reports_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    first, second = VirtualTimeLoop(), VirtualTimeLoop()
    opened = asyncio.Event()

    async def work() -> None:
        slot = current_slot()
        await opened.wait()
        assert slot is not None
        slot.first_token()
        slot.throttled(100)

    async def begin() -> asyncio.Task[None]:
        task = start(scheduler.submit("interactive", work))
        await settle()
        return task

    async def end() -> None:
        opened.set()
        await task

    task = first.run_until_complete(begin())
    second.run_until_complete(scheduler.submit("interactive", noop))
    first.run_until_complete(end())

    assert heard.names == ["Arrived", "completed"]
    assert scheduler.snapshot().reason != "throttled"
    for loop in (first, second):
        loop.close()


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
