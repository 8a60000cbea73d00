"""Promises 6, 12, 29 and 32: policies that answer oddly cost no slot, no call and no spinning loop."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import Any

import pytest

from llm_traffic_scheduler import Decision, PressurePolicy, SchedulerMisuse, Signals, TrafficScheduler
from tests.support import hold, make_scheduler, noop, settle


class Answers:
    """A policy that always answers the same, with whatever else a test hangs on it."""

    p95_threshold: float | None = None

    def __init__(self, limit: int = 1, until: float | None = None) -> None:
        self.limit, self.until, self.asked = limit, until, 0

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        self.asked += 1
        return Decision(self.limit, signals.p95, valid_until=now if self.until is None else self.until)


class GivesWay(Answers):
    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(1 if signals.p95 > 1 else 6, signals.p95)


class CannotReset(Answers):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def reset(self) -> None:
        raise self.error


class Touchy(str):
    """A string that is one to isinstance only."""

    __slots__ = ()

    def refuse(self, *_: object) -> Any:
        raise ValueError("touched")

    __eq__ = __ne__ = __hash__ = __len__ = __str__ = __repr__ = __format__ = refuse


class TouchyNumber(int):
    """A number that is one to isinstance only."""

    def refuse(self, *_: object) -> Any:
        raise ValueError("touched")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __str__ = __repr__ = __format__ = refuse


class TouchyWords(Answers):
    """Answers in strings and numbers of its own kind."""

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(TouchyNumber(4), reason=Touchy("moon"))

    def describe(self, now: float, decision: Decision, signals: Signals) -> str:
        return Touchy("it is night")

    def outlook(self, now: float, decision: Decision, signals: Signals) -> tuple[str, ...]:
        return Touchy("it rises at dawn"), "it falls at dusk"


class LosesItsThreshold(Answers):
    """What was checked at the door is something else later."""

    def __init__(self, later: object) -> None:
        super().__init__(limit=4)
        self.later, self.is_late = later, False

    @property
    def p95_threshold(self) -> Any:  # type: ignore[override]
        if not self.is_late:
            return 0.5
        if isinstance(self.later, BaseException):
            raise self.later
        return self.later


@pytest.mark.parametrize("until", [None, 0.0, math.nan, -math.inf])
async def test_a_policy_that_wants_to_be_asked_each_time_is_asked_once_a_slice(until: float | None) -> None:
    policy = Answers(until=until)
    scheduler = make_scheduler(max_concurrency=8, policy=policy, window=10.0)
    for _ in range(2):
        hold(scheduler, "batch")
    await asyncio.sleep(1.0)
    before = policy.asked
    await asyncio.sleep(10.0)

    assert policy.asked - before <= 210  # a hundred slices, and what else follows from a look


async def test_a_threshold_that_changes_is_in_the_next_decision() -> None:
    policy = GivesWay()
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=policy)
    hold(scheduler)
    first = [hold(scheduler, "batch") for _ in range(2)]  # the second is the policy's to decide
    await asyncio.sleep(7.0)

    policy.p95_threshold = 0.5
    hold(scheduler)  # an event, so that the policy is asked again
    third = hold(scheduler, "batch")
    await settle()

    assert all(held.started for held in first)
    assert not third.started
    assert scheduler.snapshot().batch_limit == 1


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError(), GeneratorExit()])
async def test_a_policy_that_cannot_reset_is_counted_and_used(error: BaseException) -> None:
    scheduler = TrafficScheduler(max_concurrency=2, policy=CannotReset(error))

    await scheduler.submit("batch", noop)

    assert scheduler.snapshot().policy_faults == 2  # when it was made, and when it met this loop


async def test_what_a_burst_left_in_the_average_is_gone_when_the_average_says_so() -> None:
    policy = PressurePolicy(rps_threshold=5, smoothing=1.0)
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=policy, window=10.0)
    for _ in range(80):
        await scheduler.submit("interactive", noop)
    await asyncio.sleep(5.0)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await settle()

    assert sum(held.started for held in batch) == scheduler.snapshot().batch_limit == 1


async def test_a_slot_block_is_left_once() -> None:
    block = make_scheduler().slot("batch")
    async with block:
        pass

    with pytest.raises(SchedulerMisuse, match="left once"):
        await block.__aexit__(None, None, None)


@pytest.mark.parametrize("asked", ["decide", "advance"])
@pytest.mark.parametrize("change", ["configure", "resume", "add_listener"])
async def test_a_policy_that_changes_the_scheduler_while_it_is_asked_is_refused_and_breaks_no_cap(
    asked: str, change: str
) -> None:
    most = present = 0

    class Meddles(Answers):
        def meddle(self) -> None:
            if change == "configure":
                scheduler.configure(max_concurrency=5 + self.asked % 2)
            elif change == "resume":
                scheduler.resume("batch")
            else:
                scheduler.add_listener(print)

        def advance(self, now: float, signals: Signals) -> None:
            if asked == "advance":
                self.meddle()

        def decide(self, now: float, signals: Signals) -> Decision:
            if asked == "decide":
                self.meddle()
            return super().decide(now, signals)

    async def work() -> None:
        nonlocal most, present
        present += 1
        most = max(most, present)
        await asyncio.sleep(1)
        present -= 1

    scheduler = make_scheduler(max_concurrency=4)
    scheduler.configure(policy=Meddles(limit=3))
    kinds = ["batch", "interactive", "batch"] * 8
    await asyncio.gather(*[scheduler.submit(kind, work) for kind in kinds])  # type: ignore[arg-type]

    assert most <= 4
    assert scheduler.snapshot().policy_faults
    scheduler.check()


@pytest.mark.parametrize(
    "later", [asyncio.CancelledError(), GeneratorExit(), ValueError(), 10**400, Decimal(1), "1", math.nan, -1.0, True]
)
async def test_a_threshold_that_turns_into_something_else_is_none(later: object) -> None:
    policy = LosesItsThreshold(later)
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=policy)
    calls = [hold(scheduler), *(hold(scheduler, "batch") for _ in range(3))]
    await asyncio.sleep(1.0)

    policy.is_late = True
    calls += [hold(scheduler), *(hold(scheduler, "batch") for _ in range(3))]
    await asyncio.sleep(1.0)
    snapshot, text = scheduler.snapshot(), scheduler.explain()
    for call in calls:
        call.release()
    await asyncio.gather(*(call.task for call in calls))

    assert (snapshot.interactive_running, snapshot.batch_running) == (2, 4)
    assert "4 of 6 batch calls may run" in text
    assert scheduler.snapshot().running == 0
    scheduler.check()


async def test_strings_and_numbers_of_a_kind_of_their_own_are_taken_for_what_they_say() -> None:
    scheduler = make_scheduler(max_concurrency=8, batch_max_concurrency=6, policy=TouchyWords())
    calls = [hold(scheduler, "batch") for _ in range(6)]
    await asyncio.sleep(1.0)
    before, text, history = scheduler.snapshot(), scheduler.explain(), scheduler.limit_history()
    for call in calls:
        call.release()
    await asyncio.gather(*(call.task for call in calls))

    assert (before.batch_running, before.batch_limit, before.reason) == (4, 4, "policy")
    assert "4 of 6 batch calls may run: it is night" in text
    assert "batch limit: it rises at dawn\nbatch limit: it falls at dusk" in text
    assert [(record.limit, record.reason) for record in history] == [(4, "moon")]
