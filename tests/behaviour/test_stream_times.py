"""What slots report of streams becomes `Signals.ttft_p95` and `Signals.pace`: of which calls, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_traffic_scheduler import Decision, PressurePolicy, Signals, TrafficScheduler, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, each_door, outcome
from tests.support import Law, armed_timers, hold, make_scheduler, noop, settle

WINDOW = 10.0


def signals_of(scheduler: TrafficScheduler) -> Signals:
    """What a policy would be told now."""
    governor = scheduler._home.governor
    return governor.read(scheduler._home.clock())[1]


def plain() -> TrafficScheduler:
    return make_scheduler(window=WINDOW, policy=Law(lambda now, signals: Decision(1)))


def about(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0.01)


async def stream(first: float, tokens: int, each: float, *, raises: bool = False) -> None:
    """A call that has its first token after `first` seconds, and the others at a pace of `each`."""
    slot = current_slot()
    assert slot is not None
    await asyncio.sleep(first)
    slot.first_token()
    slot.tokens(1)
    for _ in range(tokens - 1):
        await asyncio.sleep(each)
        slot.tokens(1)
    if raises:
        raise ValueError


@each_door
async def test_nothing_is_known_until_a_call_reports_it(run: Door) -> None:
    scheduler = plain()
    await run(scheduler, "interactive", asyncio.sleep, 1)
    assert (signals_of(scheduler).ttft_p95, signals_of(scheduler).pace) == (None, None)

    await run(scheduler, "interactive", stream, 0.5, 11, 0.02)

    assert signals_of(scheduler).ttft_p95 == about(0.5)
    assert signals_of(scheduler).pace == about(0.02)


async def test_a_first_token_counts_from_submit_and_at_once_and_the_pace_once_the_call_has_ended() -> None:
    scheduler = plain()
    held = [hold(scheduler) for _ in range(2)]
    await settle()
    call = asyncio.create_task(scheduler.submit("interactive", stream, 1.0, 101, 0.03))
    await asyncio.sleep(2)
    held[0].release()
    await asyncio.sleep(1.5)

    assert signals_of(scheduler).ttft_p95 == about(3.0)
    assert signals_of(scheduler).pace is None
    await call
    assert signals_of(scheduler).pace == about(0.03)
    held[1].release()


async def test_both_are_the_p95_of_the_window() -> None:
    scheduler = make_scheduler(max_concurrency=101, window=100.0, policy=Law(lambda now, signals: Decision(1)))

    await asyncio.gather(
        *(scheduler.submit("interactive", stream, number / 100, 11, number / 1000) for number in range(1, 101))
    )

    assert signals_of(scheduler).ttft_p95 == about(0.95)
    assert signals_of(scheduler).pace == about(0.095)


async def test_both_leave_with_the_window() -> None:
    scheduler = plain()
    await scheduler.submit("interactive", stream, 1.0, 21, 0.1)

    await asyncio.sleep(WINDOW - 2 - 0.2)
    assert signals_of(scheduler).ttft_p95 == about(1.0)
    await asyncio.sleep(0.2)
    assert signals_of(scheduler).ttft_p95 is None
    assert signals_of(scheduler).pace == about(0.1)
    await asyncio.sleep(2.001)
    assert signals_of(scheduler).pace is None


@pytest.mark.parametrize(
    "kind, options", [("batch", {}), ("interactive", {"observe": False})], ids=["batch", "not observed"]
)
async def test_calls_that_are_no_traffic_say_nothing_of_it(kind: Any, options: Any) -> None:
    scheduler = plain()
    await scheduler.submit(kind, stream, 0.5, 11, 0.02, **options)

    assert (signals_of(scheduler).ttft_p95, signals_of(scheduler).pace) == (None, None)


async def test_a_call_in_a_lent_slot_says_nothing_of_it() -> None:
    scheduler = plain()

    async def outer() -> None:
        await scheduler.submit("interactive", stream, 0.5, 11, 0.02)

    await scheduler.submit("interactive", outer)

    assert (signals_of(scheduler).ttft_p95, signals_of(scheduler).pace) == (None, None)


@pytest.mark.parametrize("tokens, paced", [(0, False), (1, False), (2, True)])
async def test_a_pace_takes_two_tokens(tokens: int, paced: bool) -> None:
    scheduler = plain()
    async with scheduler.slot("interactive") as slot:
        slot.first_token()
        slot.tokens(tokens)
        await asyncio.sleep(1)

    assert (signals_of(scheduler).pace is not None) == paced


async def test_more_tokens_than_a_float_can_count_cost_no_slot() -> None:
    scheduler = plain()
    async with scheduler.slot("interactive") as slot:
        slot.first_token()
        slot.tokens(10**400)
        await asyncio.sleep(1)

    assert scheduler.snapshot().running == 0
    assert signals_of(scheduler).pace == 0


async def test_tokens_without_a_first_one_have_no_pace() -> None:
    scheduler = plain()
    async with scheduler.slot("interactive") as slot:
        slot.tokens(100)
        await asyncio.sleep(1)

    assert (signals_of(scheduler).ttft_p95, signals_of(scheduler).pace) == (None, None)


@pytest.mark.parametrize("how", ["raises", "is cancelled", "runs too long"])
async def test_only_completed_calls_have_a_pace_but_any_has_a_first_token(how: str) -> None:
    scheduler = plain()
    if how == "raises":
        await outcome(scheduler.submit("interactive", _fail_after_a_stream))
    elif how == "runs too long":
        await outcome(scheduler.submit("interactive", stream, 0.5, 1000, 0.02, run_timeout=2))
    else:
        call = asyncio.create_task(scheduler.submit("interactive", stream, 0.5, 1000, 0.02))
        await asyncio.sleep(2)
        call.cancel()
        await settle()

    assert signals_of(scheduler).ttft_p95 == about(0.5)
    assert signals_of(scheduler).pace is None


async def _fail_after_a_stream() -> None:
    await stream(0.5, 11, 0.02, raises=True)


async def test_another_window_keeps_what_fits_it() -> None:
    scheduler = plain()
    await scheduler.submit("interactive", stream, 0.5, 11, 0.02)

    scheduler.configure(window=3 * WINDOW)

    assert signals_of(scheduler).ttft_p95 == about(0.5)
    assert signals_of(scheduler).pace == about(0.02)


def test_another_loop_begins_without_it() -> None:
    scheduler = plain()
    for first in (0.5, None):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(scheduler.submit("interactive", noop if first is None else _fast))
            assert (signals_of(scheduler).ttft_p95 is None) == (first is None)


async def _fast() -> None:
    await stream(0.5, 11, 0.02)


async def test_what_has_left_the_window_keeps_no_timer_firing_while_batch_waits() -> None:
    # At this rate of arrivals the pressure stays at 1: batch waits all the time, and the timer looks for a change.
    scheduler = make_scheduler(
        max_concurrency=4, batch_max_concurrency=3, window=1.0, policy=PressurePolicy(rps_threshold=0.1)
    )
    await scheduler.submit("interactive", stream, 0.0, 2, 0.0)
    batch = [hold(scheduler, "batch") for _ in range(3)]
    for _ in range(20):
        await scheduler.submit("interactive", noop)
        await asyncio.sleep(0.1)

    assert sum(call.started for call in batch) == 1
    assert len(armed_timers()) == 1
    assert armed_timers()[0].when() > asyncio.get_running_loop().time()
