"""How many run: promises 3, 4 and 5 of SEMANTICS.md."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import Any, Final, Literal, TypeAlias

import pytest

from llm_traffic_scheduler import CallStarted, ConfigError, Decision, Event, FixedPolicy, Signals
from tests.support import Law, hold, make_scheduler, noop, settle

Kind: TypeAlias = Literal["interactive", "batch"]
KINDS: Final[tuple[Kind, Kind]] = ("interactive", "batch")


async def test_never_more_calls_run_than_the_caps_allow_whatever_happens() -> None:
    rng = random.Random(11)
    scheduler = make_scheduler(max_concurrency=5, batch_max_concurrency=3, interactive_p95_threshold=0.2, window=1.0)
    inside: Counter[str] = Counter()
    peaks: Counter[str] = Counter()

    async def work(kind: Kind) -> None:
        inside[kind] += 1
        peaks[kind] = max(peaks[kind], inside[kind])
        peaks["all"] = max(peaks["all"], inside.total())
        try:
            await asyncio.sleep(rng.expovariate(20))
            if rng.random() < 0.1:
                raise RuntimeError("the backend failed")
        finally:
            inside[kind] -= 1

    async def arrive(kind: Kind) -> None:
        timeout = rng.choice([None, 0.05])
        await asyncio.gather(
            scheduler.submit(kind, work, kind, queue_timeout=timeout, run_timeout=timeout), return_exceptions=True
        )

    tasks = []
    for n in range(600):
        tasks.append(asyncio.create_task(arrive(rng.choice(KINDS))))
        if rng.random() < 0.1:
            rng.choice(tasks).cancel()
        await asyncio.sleep(rng.expovariate(150))
        if n % 10 == 0:
            scheduler.check()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert peaks["all"] == 5
    assert peaks["batch"] == 3
    assert inside.total() == 0


async def test_at_each_batch_start_batch_is_within_the_limit_of_that_moment() -> None:
    # The limit falls with each batch call that runs: looked at once per release, four would start.
    scheduler = make_scheduler(
        max_concurrency=8,
        policy=Law(lambda now, signals: Decision(4 if signals.batch_running < 2 else 1)),
    )
    scheduler.pause("batch")
    waiting = [hold(scheduler, "batch") for _ in range(6)]
    await settle()

    scheduler.resume("batch")
    await settle()

    assert [held.started for held in waiting] == [True, True, False, False, False, False]


async def test_a_decision_is_kept_while_its_signals_and_its_valid_until_say_so() -> None:
    asked: list[float] = []

    def decide(now: float, signals: Signals) -> Decision:
        asked.append(now)
        return Decision(2, valid_until=100.0)

    scheduler = make_scheduler(max_concurrency=8, policy=Law(decide, reads=frozenset({"rps"})))
    running = [hold(scheduler, "batch") for _ in range(3)]
    await settle()
    questions = len(asked)

    for n in range(30):  # batch comes and goes, and the policy does not look at batch
        running[n].release()
        running.append(hold(scheduler, "batch"))
        await asyncio.sleep(1)
    assert running[-2].started
    assert len(asked) == questions

    await scheduler.submit("interactive", noop)  # an arrival changes the rate
    running[-2].release()
    await settle()
    assert len(asked) > questions
    assert scheduler.snapshot().batch_running == 2


async def test_a_decision_is_not_used_past_its_valid_until() -> None:
    # Four calls until second 5, one afterwards. Nothing else ever changes.
    law = Law(lambda now, signals: Decision(4, valid_until=5.0) if now < 5 else Decision(1), reads=frozenset())
    scheduler = make_scheduler(max_concurrency=8, policy=law)
    early = [hold(scheduler, "batch") for _ in range(2)]
    await settle()
    assert all(held.started for held in early)

    await asyncio.sleep(6)
    late = hold(scheduler, "batch")
    await settle()

    assert not late.started


@pytest.mark.parametrize("limit", [-(2**70), -1, 0, 1, 3, 4, 2**70])
async def test_a_policy_moves_the_limit_only_between_the_bounds(limit: int) -> None:
    scheduler = make_scheduler(
        max_concurrency=8,
        batch_max_concurrency=4,
        batch_min_concurrency=2,
        policy=Law(lambda now, signals: Decision(limit)),
    )
    waiting = [hold(scheduler, "batch") for _ in range(6)]
    await settle()

    allowed = min(4, max(2, limit))
    assert sum(held.started for held in waiting) == scheduler.snapshot().batch_limit == allowed


async def test_lowering_the_cap_stops_nothing_that_runs() -> None:
    scheduler = make_scheduler(max_concurrency=6)
    running = [hold(scheduler) for _ in range(6)]
    await settle()

    scheduler.configure(max_concurrency=2)
    await settle()
    snapshot = scheduler.snapshot()
    assert (snapshot.running, snapshot.max_concurrency) == (6, 2)
    assert not any(held.task.done() for held in running)

    newcomer = hold(scheduler)
    for held in running[:4]:
        held.release()
    await settle()
    assert not newcomer.started  # two run, and two is the cap

    running[4].release()
    await settle()
    assert newcomer.started


async def test_a_lowered_batch_limit_stops_nothing_that_runs_and_starts_nothing_above_it() -> None:
    scheduler = make_scheduler(max_concurrency=8, policy=FixedPolicy(5))
    running = [hold(scheduler, "batch") for _ in range(5)]
    await settle()
    waiting = hold(scheduler, "batch")

    scheduler.configure(policy=FixedPolicy(2))
    for held in running[:3]:
        held.release()
        await settle()
        assert not waiting.started

    running[3].release()
    await settle()
    assert waiting.started


async def test_raising_the_cap_starts_waiting_work_before_configure_returns() -> None:
    scheduler = make_scheduler()
    started: list[Event] = []
    for _ in range(5):
        hold(scheduler)
    await settle()
    scheduler.add_listener(started.append)

    scheduler.configure(max_concurrency=4)

    assert scheduler.snapshot().running == 4
    assert [type(event) for event in started] == [CallStarted, CallStarted]


@pytest.mark.parametrize(
    "before, change",
    [
        ({"batch_max_concurrency": 2}, {"batch_max_concurrency": 5}),
        ({"batch_max_concurrency": 5, "policy": FixedPolicy(2)}, {"policy": FixedPolicy(5)}),
        ({"batch_max_concurrency": 5, "policy": FixedPolicy(2)}, {"batch_min_concurrency": 5}),
    ],
)
async def test_raising_the_batch_limit_starts_waiting_batch_before_configure_returns(
    before: dict[str, Any], change: dict[str, Any]
) -> None:
    scheduler = make_scheduler(max_concurrency=8, **before)
    for _ in range(6):
        hold(scheduler, "batch")
    await settle()
    assert scheduler.snapshot().batch_running == 2

    scheduler.configure(**change)

    assert scheduler.snapshot().batch_running == 5


@pytest.mark.parametrize("cap", [2, 3, 4, 10])
async def test_batch_can_never_hold_the_last_slot(cap: int) -> None:
    scheduler = make_scheduler(max_concurrency=cap, batch_max_concurrency=cap - 1)
    for _ in range(3 * cap):
        hold(scheduler, "batch")
    await settle()
    assert scheduler.snapshot().batch_running == cap - 1

    person = hold(scheduler)
    await settle()

    assert person.started


def test_a_batch_maximum_as_large_as_the_cap_is_refused() -> None:
    for cap, batch in itertools.product([2, 8], [0, 1]):
        with pytest.raises(ConfigError, match=rf"batch_max_concurrency must be below max_concurrency \({cap}\)"):
            make_scheduler(max_concurrency=cap, batch_max_concurrency=cap + batch)


@pytest.mark.parametrize("cap, batch_max", [(2, 1), (3, 2), (4, 3), (5, 3), (8, 6), (100, 75)])
def test_a_batch_maximum_left_out_is_three_quarters_of_the_cap(cap: int, batch_max: int) -> None:
    assert make_scheduler(max_concurrency=cap).snapshot().batch_max_concurrency == batch_max
