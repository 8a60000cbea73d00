"""A policy that breaks while it hears of a call, or meddles then: it is counted, and no slot and no call is lost.

Promise 32, for `observe`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llm_traffic_scheduler import (
    Arrived,
    Decision,
    Ended,
    FirstToken,
    SchedulerMisuse,
    Signals,
    TrafficScheduler,
    current_slot,
)
from tests.behaviour.doors import Door, assert_whole, each_door, outcome, start
from tests.heard import Heard
from tests.support import hold, make_scheduler, noop, settle

LOGGER = "llm_traffic_scheduler"
WINDOW = 10.0


class Breaks(Heard):
    """Raises from `observe`, and from `decide` too if it is told to."""

    def __init__(self, error: BaseException, *, on: type[Any] = object) -> None:
        super().__init__()
        self.error = error
        self.on = on
        self.answers = True
        self.limit = 3

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        super().observe(now, event)
        if isinstance(event, self.on):
            raise self.error

    def decide(self, now: float, signals: Signals) -> Decision:
        if not self.answers:
            raise self.error
        return Decision(self.limit, 0.5, valid_until=now)


class Submits(Heard):
    """Runs `submit` once, in the method called `door`, as a loop does whose tasks start at once."""

    def __init__(self, door: str, submit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self.refused: list[SchedulerMisuse] = []
        self._door = door
        self._submit = submit

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        super().observe(now, event)
        self._at("observe")

    def advance(self, now: float, signals: Signals) -> None:
        super().advance(now, signals)
        self._at("advance")

    def decide(self, now: float, signals: Signals) -> Decision:
        self._at("decide")
        return super().decide(now, signals)

    def _at(self, door: str) -> None:
        if door == self._door and not self.refused:
            try:
                self._submit().send(None)
            except SchedulerMisuse as error:
                self.refused.append(error)


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER]


async def streams() -> None:
    slot = current_slot()
    assert slot is not None
    slot.first_token()
    await asyncio.sleep(1)


@each_door
@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError(), RecursionError(), GeneratorExit()])
async def test_what_it_raises_is_logged_once_and_counted_each_time_and_no_call_notices(
    run: Door, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Breaks(error)
    scheduler = make_scheduler(policy=heard)

    for _ in range(3):
        await run(scheduler, "interactive", streams)
    assert await outcome(run(scheduler, "interactive", asyncio.sleep, 9, run_timeout=1)) is not None
    cancelled = start(run(scheduler, "interactive", asyncio.sleep, 9))
    await settle()
    cancelled.cancel()
    await settle()

    assert scheduler.snapshot().policy_faults == len(heard.told) == 3 * 3 + 2 + 2
    assert [record.exc_info[1] for record in logged(caplog) if record.exc_info] == [error]
    assert "1" in scheduler.explain()
    heard.check()
    await assert_whole(scheduler)


async def test_each_kind_of_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Breaks(ValueError())
    scheduler = make_scheduler(policy=heard)

    for error in (ValueError(), KeyError(), ValueError(), KeyError()):
        heard.error = error
        await scheduler.submit("interactive", noop)

    assert len(logged(caplog)) == 2
    assert scheduler.snapshot().policy_faults == 8


async def test_while_it_still_answers_its_answers_hold() -> None:
    scheduler = make_scheduler(
        max_concurrency=8, batch_max_concurrency=6, batch_min_concurrency=2, policy=Breaks(ValueError())
    )
    await scheduler.submit("interactive", noop)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await asyncio.sleep(2 * WINDOW)

    assert sum(call.started for call in batch) == 3
    assert scheduler.snapshot().reason == "policy"


async def test_once_it_answers_no_more_its_last_decision_holds_for_a_window_and_then_the_minimum() -> None:
    heard = Breaks(ValueError())
    scheduler = make_scheduler(
        max_concurrency=8, batch_max_concurrency=6, batch_min_concurrency=2, policy=heard, window=WINDOW
    )
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await settle()
    assert sum(call.started for call in batch) == 3

    heard.answers = False
    await scheduler.submit("interactive", noop)
    seen = []
    for seconds in (0.0, 0.9 * WINDOW, 0.2 * WINDOW):
        await asyncio.sleep(seconds)
        seen.append((scheduler.snapshot().batch_limit, scheduler.snapshot().reason))

    assert seen == [(3, "policy_failed"), (3, "policy_failed"), (2, "policy_failed")]


async def test_a_policy_that_breaks_as_batch_waits_makes_the_loop_look_no_more_than_once_a_slice() -> None:
    heard = Breaks(ValueError())
    scheduler = make_scheduler(
        max_concurrency=8, batch_max_concurrency=6, batch_min_concurrency=2, policy=heard, window=WINDOW
    )
    for _ in range(6):
        hold(scheduler, "batch")
    await settle()
    asked = 0
    decide = heard.decide

    def counted(now: float, signals: Signals) -> Decision:
        nonlocal asked
        asked += 1
        return decide(now, signals)

    heard.decide = counted  # type: ignore[method-assign]
    await scheduler.submit("interactive", noop)
    await asyncio.sleep(WINDOW)

    assert asked <= 110


@pytest.mark.parametrize("on", [Arrived, FirstToken, Ended])
@pytest.mark.parametrize("change", ["configure", "pause", "add_listener"])
async def test_it_may_not_change_the_scheduler(change: str, on: type[Any]) -> None:
    refused: list[BaseException] = []

    class Meddles(Heard):
        def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
            super().observe(now, event)
            if isinstance(event, on):
                self.meddle()

        def meddle(self) -> None:
            try:
                if change == "configure":
                    scheduler.configure(max_concurrency=5)
                elif change == "pause":
                    scheduler.pause("batch")
                else:
                    scheduler.add_listener(print)
            except BaseException as error:
                refused.append(error)
                raise

    scheduler = make_scheduler(policy=Meddles())
    await scheduler.submit("interactive", streams)

    assert [type(error) for error in refused] == [SchedulerMisuse]
    assert "by the policy" in str(refused[0])
    snapshot = scheduler.snapshot()
    assert (snapshot.policy_faults, snapshot.max_concurrency, snapshot.paused) == (1, 2, frozenset())


@pytest.mark.parametrize("options", [{}, {"label": "particular"}])
@pytest.mark.parametrize("kind", ["interactive", "batch"])
@pytest.mark.parametrize("door", ["observe", "advance", "decide"])
async def test_it_may_not_submit_on_the_spot(door: str, kind: Any, options: dict[str, Any]) -> None:
    async def submit() -> None:
        await scheduler.submit(kind, noop, **options)

    policy = Submits(door, submit)
    scheduler: TrafficScheduler = make_scheduler(policy=policy, batch_min_concurrency=1, max_concurrency=4)
    held = [hold(scheduler, "batch") for _ in range(2)]
    await settle()
    await scheduler.submit("interactive", noop)
    for each in held:
        each.release()

    assert ["submit() was called by the policy" in str(error) for error in policy.refused] == [True]
    await settle()
    assert sum(totals.submitted for totals in scheduler.snapshot().totals.values()) == 3
    await assert_whole(scheduler)


@pytest.mark.parametrize("kind", ["interactive", "batch"])
@pytest.mark.parametrize("on", [Arrived, FirstToken, Ended])
async def test_a_call_that_it_makes_in_a_task_of_its_own_breaks_no_bound(kind: Any, on: type[Any]) -> None:
    made: list[asyncio.Task[Any]] = []
    most = most_batch = left = 0

    class Calls(Heard):
        def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
            nonlocal left
            super().observe(now, event)
            if isinstance(event, on) and left:
                left -= 1
                made.append(asyncio.create_task(scheduler.submit(kind, work)))

    async def work() -> None:
        nonlocal most, most_batch
        snapshot = scheduler.snapshot()
        most, most_batch = max(most, snapshot.running), max(most_batch, snapshot.batch_running)
        scheduler.check()
        await streams()

    heard, left = Calls(), 30
    scheduler: TrafficScheduler = make_scheduler(max_concurrency=4, batch_max_concurrency=2, policy=heard)
    tasks = [start(scheduler.submit(each, work)) for each in ("interactive", "batch", "interactive") * 5]
    await asyncio.gather(*tasks)
    while waiting := [task for task in made if not task.done()]:
        await asyncio.wait(waiting)

    assert len(made) >= 10
    assert (most, most_batch) == (4, 2)
    assert all(task.exception() is None for task in (*tasks, *made))
    heard.check()
    assert heard.unfinished == {}
    left = 0
    await assert_whole(scheduler)
