"""What a broken policy or listener can do: nothing but make itself known. Promise 32 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from llm_traffic_scheduler import (
    Decision,
    Event,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import assert_whole, start
from tests.support import Law, account, hold, make_scheduler, settle

LOGGER = "llm_traffic_scheduler"
WINDOW = 10.0


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER]


def fault(error: BaseException) -> Callable[..., Any]:
    """A function that raises `error` whatever it gets."""

    def broken(*_: object) -> Any:
        raise error

    return broken


class Switchable:
    """A law that decides on five calls until it is broken."""

    def __init__(self) -> None:
        self.answer: Callable[[], Any] = lambda: Decision(5, 0.1)

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Any:
        return self.answer()


# Policies


BROKEN_ANSWERS = {
    "raises": fault(ValueError("a bug in the policy")),
    "raises CancelledError": fault(asyncio.CancelledError()),
    "no decision": lambda: None,
    "a number": lambda: 3,
    "a limit of NaN": lambda: Decision(math.nan),  # type: ignore[arg-type]
    "an infinite limit": lambda: Decision(math.inf),  # type: ignore[arg-type]
    "half a call": lambda: Decision(2.5),  # type: ignore[arg-type]
    "True": lambda: Decision(True),
    "text for a limit": lambda: Decision("3"),  # type: ignore[arg-type]
    "None for a limit": lambda: Decision(None),  # type: ignore[arg-type]
    "None for a pressure": lambda: Decision(3, None),  # type: ignore[arg-type]
    "text for a pressure": lambda: Decision(3, "high"),  # type: ignore[arg-type]
    "a list for a reason": lambda: Decision(3, 0.5, ["high"]),  # type: ignore[arg-type]
    "None for valid_until": lambda: Decision(3, 0.5, "x", None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("answer", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS.keys())
async def test_the_last_decision_stays_for_one_window_then_the_minimum_and_no_slot_is_lost(
    answer: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    law = Switchable()
    scheduler = make_scheduler(max_concurrency=8, batch_min_concurrency=2, policy=law)
    batch = [hold(scheduler, "batch") for _ in range(5)]
    await settle()
    assert all(held.started for held in batch)

    law.answer = answer
    await asyncio.sleep(1)
    batch[0].release()
    batch.append(hold(scheduler, "batch"))
    batch.append(hold(scheduler, "batch"))
    await settle()
    assert [held.started for held in batch[5:]] == [True, False]  # five, as last decided
    assert scheduler.snapshot().batch_limit == 5
    assert scheduler.snapshot().reason == "policy_failed"
    assert scheduler.snapshot().pressure == 0.1
    assert await scheduler.submit("interactive", asyncio.sleep, 0, "answer") == "answer"

    await asyncio.sleep(WINDOW)
    assert scheduler.snapshot().batch_limit == 2
    for held in batch[1:5]:
        held.release()
        await settle()
    assert scheduler.snapshot().batch_running == 2  # the waiting one has the second slot

    assert scheduler.snapshot().policy_faults > 1
    assert len(logged(caplog)) == 1
    assert f"faults: {scheduler.snapshot().policy_faults} of the policy" in scheduler.explain()
    scheduler.check()


async def test_a_policy_that_recovers_is_followed_again() -> None:
    law = Switchable()
    law.answer = fault(ValueError())
    scheduler = make_scheduler(max_concurrency=8, policy=law)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await settle()
    assert sum(held.started for held in batch) == 1  # it has never decided anything: the minimum

    law.answer = lambda: Decision(4)
    await asyncio.sleep(1)  # nobody calls: the next look comes by itself

    assert sum(held.started for held in batch) == 4
    assert scheduler.snapshot().reason == "policy"


async def test_a_policy_that_cannot_advance_still_decides() -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=Law(lambda now, s: Decision(3), fault(ZeroDivisionError())))
    for _ in range(20):
        await scheduler.submit("interactive", asyncio.sleep, 0.1)
    batch = [hold(scheduler, "batch") for _ in range(6)]
    await settle()

    assert sum(held.started for held in batch) == 3
    assert scheduler.snapshot().policy_faults >= 20


@pytest.mark.parametrize("nonsense", [None, "soon", -1.0, math.nan, math.inf])
async def test_a_threshold_that_goes_wrong_later_costs_no_slot_and_no_call(nonsense: Any) -> None:
    class Moody(Switchable):
        broken = False

        @property
        def p95_threshold(self) -> float:
            if not self.broken:
                return 0.5
            if nonsense is None:
                raise ValueError("a bug in the policy")
            return nonsense  # type: ignore[no-any-return]

    law = Moody()
    scheduler = make_scheduler(max_concurrency=8, policy=law)
    people = [hold(scheduler) for _ in range(3)]
    batch = [hold(scheduler, "batch") for _ in range(3)]
    await asyncio.sleep(1)

    law.broken = True
    people[0].cancel()
    people[1].fail(ConnectionError())
    people[2].release()
    for held in batch:
        held.release()
    await asyncio.sleep(20)

    assert scheduler.snapshot().running == 0
    assert await scheduler.submit("interactive", asyncio.sleep, 0, "answer") == "answer"
    assert await scheduler.submit("batch", asyncio.sleep, 0, "summary") == "summary"
    scheduler.check()


async def test_policy_faults_are_logged_once_per_kind_of_error_and_each_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    law = Switchable()
    scheduler = TrafficScheduler(max_concurrency=8, policy=law, name="gateway")
    for error in [ValueError("first"), ValueError("second"), KeyError("third"), ValueError("fourth")]:
        law.answer = fault(error)
        before = scheduler.snapshot().policy_faults
        for _ in range(3):
            hold(scheduler, "batch")
        await settle()
        assert scheduler.snapshot().policy_faults > before

    records = logged(caplog)
    assert [record.levelno for record in records] == [logging.ERROR, logging.ERROR]
    assert all("policy" in record.getMessage() and "'gateway'" in record.getMessage() for record in records)
    assert [repr(record.exc_info[1]) for record in records if record.exc_info] == [
        "ValueError('first')",
        "KeyError('third')",
    ]


async def test_reading_a_scheduler_with_a_broken_policy_neither_raises_nor_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for answer in BROKEN_ANSWERS.values():
        law = Switchable()
        law.answer = answer
        scheduler = make_scheduler(max_concurrency=8, policy=law)
        for _ in range(3):
            assert scheduler.snapshot().reason == "policy_failed"
            assert "the policy raised" in scheduler.explain()
        assert scheduler.snapshot().policy_faults == 0
    assert logged(caplog) == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["listener", "policy"])
def test_an_exit_of_the_process_goes_on_from_the_loop_and_no_slot_is_lost(error: BaseException, where: str) -> None:
    errors = [error]  # once is enough to end a process

    def ask_to_exit(*_: object) -> Any:
        if errors:
            raise errors.pop()
        return Decision(2)

    async def main() -> None:
        if where == "listener":
            scheduler.add_listener(ask_to_exit)
        else:
            scheduler.configure(policy=Law(ask_to_exit))
        hold(scheduler, "batch", log=log, name="first")
        hold(scheduler, "batch", log=log, name="second")
        await asyncio.sleep(100)
        log.append("unreachable")

    log: list[str] = []
    scheduler = make_scheduler(max_concurrency=4)
    with pytest.raises(type(error)) as raised, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

    assert raised.value is error
    assert "unreachable" not in log
    assert "first" in log
    assert scheduler.snapshot().running == scheduler.snapshot().batch_queued == 0
    assert account(scheduler, "batch").cancelled == 2
    scheduler.check()


@pytest.mark.parametrize("meant_for_the_process", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_process_comes_out_of_the_operation_where_no_loop_runs(
    meant_for_the_process: type[BaseException],
) -> None:
    def listener(event: Event) -> None:
        raise meant_for_the_process

    async def wait_in_line() -> None:
        tasks.extend(start(scheduler.submit("batch", asyncio.sleep, 1)) for _ in range(2))
        await settle()
        scheduler.add_listener(listener)

    scheduler, tasks = make_scheduler(max_concurrency=3, batch_max_concurrency=1), list[asyncio.Task[None]]()
    loop = VirtualTimeLoop()
    loop.run_until_complete(wait_in_line())
    with pytest.raises(meant_for_the_process):
        scheduler.configure(batch_max_concurrency=2)

    assert scheduler.snapshot().batch_running == 2
    scheduler.remove_listener(listener)
    loop.run_until_complete(asyncio.gather(*tasks))
    loop.run_until_complete(assert_whole(scheduler))
    loop.close()
