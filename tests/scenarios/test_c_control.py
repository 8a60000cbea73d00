"""C. Limits and the control loop, second half: the batch limit gives way, never freezes, and finds its way back.

Where the limit is compared at given moments, virtual time only: on a busy machine a job of 2 ms takes 20.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from llm_traffic_scheduler import Decision, ExternalPolicy, PressurePolicy, Signals
from tests.behaviour.doors import outcome, start
from tests.scenarios.counted import Counted
from tests.scenarios.stage import Stage, scenario, scenario_on
from tests.scenarios.traffic import arrivals, backlog, limits_seen, until
from tests.support import Held, armed_timers, hold, noop, settle

in_virtual_time = scenario_on("default", "eager", "debug")

WINDOW = 10.0


def gateway(stage: Stage, **settings: Any) -> Counted:
    """100 slots, batch between 2 and 20, and an interactive P95 of 1 s that counts as full pressure."""
    return stage.scheduler(
        **{
            "max_concurrency": 100,
            "batch_max_concurrency": 20,
            "batch_min_concurrency": 2,
            "interactive_p95_threshold": 1.0,
            "window": WINDOW,
            **settings,
        }
    )


# B39


@in_virtual_time
async def test_b39_after_a_bad_minute_the_limit_is_back_one_window_after_the_last_slow_call(stage: Stage) -> None:
    scheduler = gateway(stage)
    minute = 600 if stage.loop == "default" else 120
    with backlog(scheduler, 2.0, width=25):
        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=minute, every=0.1)
        before = scheduler.snapshot().batch_limit

        slow = await arrivals(scheduler, lambda _: asyncio.sleep(5), count=minute, every=0.1)
        starved = scheduler.snapshot()

        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=50, every=0.1)  # the slow ones end meanwhile
        assert all(task.done() for task in slow)
        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=100, every=0.1)
        after = scheduler.snapshot()

    assert before >= 18
    assert (starved.batch_limit, starved.batch_running) == (2, 2)  # and those go on: the floor is what probes
    assert after.batch_limit == after.batch_running == before


@in_virtual_time
async def test_b39_a_backend_that_is_slower_for_good_moves_the_limit_off_its_minimum(stage: Stage) -> None:
    scheduler = gateway(stage)
    await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=100, every=0.1)
    await arrivals(scheduler, lambda _: asyncio.sleep(5), count=100, every=0.1)
    assert scheduler.snapshot().batch_limit == 2

    with backlog(scheduler, 1.0, width=25):
        tasks = await arrivals(scheduler, lambda _: asyncio.sleep(0.3), count=160, every=0.1)
        seen = scheduler.snapshot()

    await asyncio.wait(tasks)
    assert seen.batch_limit == seen.batch_running == 15  # 20 - 18 * 0.3: the target is absolute, no baseline moves


@in_virtual_time
@pytest.mark.parametrize("floor", [1, 3])
async def test_b39_at_the_minimum_batch_work_still_runs(stage: Stage, floor: int) -> None:
    scheduler = gateway(stage, batch_min_concurrency=floor)
    with backlog(scheduler, 1.0, width=25):
        await arrivals(scheduler, lambda _: asyncio.sleep(5), count=100, every=0.1)
        begun = scheduler.snapshot().totals["batch"].completed
        tasks = await arrivals(scheduler, lambda _: asyncio.sleep(5), count=200, every=0.1)
        ended = scheduler.snapshot().totals["batch"].completed - begun

    await asyncio.wait(tasks)
    assert 19 * floor <= ended <= 21 * floor


# B42


async def _by_run_timeout(scheduler: Counted, _: int) -> None:
    await scheduler.submit("interactive", asyncio.sleep, 60, run_timeout=5)


async def _by_its_own_timeout(scheduler: Counted, _: int) -> None:
    async def job() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(60)

    await scheduler.submit("interactive", job)


async def _by_the_callers_timeout(scheduler: Counted, _: int) -> None:
    async with asyncio.timeout(5):
        await scheduler.submit("interactive", asyncio.sleep, 60)


@in_virtual_time
@pytest.mark.parametrize("fail", [_by_run_timeout, _by_its_own_timeout, _by_the_callers_timeout])
@pytest.mark.parametrize("healthy_before", [True, False])
@pytest.mark.parametrize("one_by_one", [True, False])
async def test_b42_in_a_long_outage_the_limit_goes_to_the_minimum_and_stays(
    stage: Stage, fail: Callable[[Counted, int], Awaitable[None]], healthy_before: bool, one_by_one: bool
) -> None:
    scheduler = gateway(stage)
    if healthy_before:
        await arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=100, every=0.1)
    clients: list[asyncio.Task[None]] = []
    seconds = 600 if healthy_before and not one_by_one and stage.loop == "default" else 45

    async def outage() -> None:
        for number in range(seconds // 5 if one_by_one else seconds * 2):
            clients.append(start(fail(scheduler, number)))
            await (outcome(clients[-1]) if one_by_one else asyncio.sleep(0.5))

    with backlog(scheduler, 5.0, width=25):
        failing = start(outage())
        await asyncio.sleep(WINDOW + 6)
        seen = await limits_seen(scheduler, count=seconds - 25, every=1.0)
        running = scheduler.snapshot().batch_running
        await failing
    await asyncio.wait(clients)

    assert set(seen) == {2}
    assert running == 2


# B43


async def _refused() -> None:
    await asyncio.sleep(0.001)
    raise ConnectionError


@in_virtual_time
async def test_b43_calls_that_fail_at_once_do_not_look_like_a_fast_backend(stage: Stage) -> None:
    scheduler = gateway(stage, interactive_p95_threshold=0.4)
    seconds = 30 if stage.loop == "default" else 15
    with backlog(scheduler, 5.0, width=25):
        await arrivals(scheduler, lambda number: asyncio.sleep(0.2) if number % 2 else _refused(), count=150, every=0.1)
        before = scheduler.snapshot()
        failing = start(arrivals(scheduler, lambda _: _refused(), count=seconds * 10, every=0.1))
        seen = await limits_seen(scheduler, count=seconds * 2, every=0.5)
        await failing

    assert before.interactive.p95 == pytest.approx(0.2, rel=0.01)  # of the successes alone
    assert before.batch_limit == 11
    assert set(seen) == {11}
    assert scheduler.snapshot().totals["interactive"].failed == 75 + seconds * 10


@in_virtual_time
@pytest.mark.parametrize("slow_ones_fail", [False, True])
async def test_b43_a_few_slow_calls_among_quick_failures_are_what_counts(stage: Stage, slow_ones_fail: bool) -> None:
    scheduler = gateway(stage, interactive_p95_threshold=0.4)
    seconds = 30 if stage.loop == "default" else 15

    async def job(number: int) -> None:
        if number % 20:
            await _refused()
        await asyncio.sleep(10)
        if slow_ones_fail:
            raise ConnectionError

    await arrivals(scheduler, lambda _: asyncio.sleep(0.2), count=150, every=0.1)
    with backlog(scheduler, 5.0, width=25):
        failing = start(arrivals(scheduler, job, count=seconds * 10, every=0.1))
        seen = await limits_seen(scheduler, count=seconds * 2, every=0.5)
        tasks = await failing
        await asyncio.wait(tasks)

    assert max(seen) == 11  # where it was
    assert all(later <= earlier for earlier, later in itertools.pairwise(seen))
    assert seen[-1] == 2


# B46


@in_virtual_time
async def test_b46_at_a_trickle_of_traffic_the_limit_comes_back_by_time(stage: Stage) -> None:
    scheduler = gateway(stage)
    await asyncio.wait(await arrivals(scheduler, lambda _: asyncio.sleep(5), count=20, every=0.1))
    assert scheduler.snapshot().batch_limit == 2
    minutes = stage.share(10)

    with backlog(scheduler, 10.0, width=25):
        trickle = start(arrivals(scheduler, lambda _: asyncio.sleep(0.1), count=minutes * 3, every=20.0))
        await asyncio.sleep(WINDOW + 1)
        seen = await limits_seen(scheduler, count=minutes * 6 - 2, every=10.0)
        running = scheduler.inside["batch"]
        await trickle

    assert min(seen) >= 18
    assert running == scheduler.most_batch == 20


@scenario
async def test_b46_the_first_burst_after_the_start_finds_the_whole_width(stage: Stage) -> None:
    scheduler = gateway(stage)

    people = [hold(scheduler) for _ in range(50)]
    night = [hold(scheduler, "batch") for _ in range(25)]
    await settle()

    assert sum(held.started for held in people) == 50
    assert sum(held.started for held in night) == 20
    for held in people + night:
        held.release()
    await asyncio.gather(*(held.task for held in people + night))


# B49


class Moody:
    """Decides on `limit`, for half a second, unless a fault is set, which it commits once."""

    def __init__(self, half_a_second: float) -> None:
        self.limit = 1
        self.fault: Callable[[], Any] | None = None
        self._valid = half_a_second

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        fault, self.fault = self.fault, None
        if fault is not None:
            return fault()  # type: ignore[no-any-return]
        return Decision(self.limit, valid_until=now + self._valid)


def _raising(error: BaseException) -> Callable[[], Any]:
    def fault() -> Any:
        raise error

    return fault


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": _raising(ValueError("a bug")),
    "out of memory": _raising(MemoryError()),
    "cancelled": _raising(asyncio.CancelledError()),
    "no limit": lambda: Decision(math.nan),  # type: ignore[arg-type]
    "no end": lambda: Decision(1, valid_until=math.nan),
    "already over": lambda: Decision(1, valid_until=-math.inf),
}


@scenario
@pytest.mark.parametrize("name", FAULTS)
async def test_b49_one_bad_look_does_not_end_the_looking(
    stage: Stage, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    law = Moody(stage.seconds(0.5))
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=5, policy=law, window=stage.seconds(WINDOW))
    calls = [hold(scheduler, "batch") for _ in range(5)]
    await settle()
    assert scheduler.inside["batch"] == 1

    for limit in (2, 4):
        law.fault = FAULTS[name]
        await asyncio.sleep(stage.seconds(2))
        assert law.fault is None  # nobody called: the timer alone made it look
        law.limit = limit
        await until(lambda limit=limit: scheduler.inside["batch"] == limit, every=stage.seconds(0.1))  # nobody calls

    faulty = name not in ("no end", "already over")
    assert scheduler.snapshot().policy_faults == (2 if faulty else 0)
    assert len([record for record in caplog.records if record.name == "llm_traffic_scheduler"]) == faulty
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


@scenario
async def test_b49_a_clock_that_goes_back_does_not_end_the_looking(stage: Stage) -> None:
    law = Moody(stage.seconds(0.5))
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=5, policy=law, window=stage.seconds(WINDOW))
    calls = [hold(scheduler, "batch") for _ in range(5)]
    await settle()

    right = scheduler._home.clock
    scheduler._home.clock = lambda: right() - stage.seconds(3)
    people = [start(scheduler.submit("interactive", noop)) for _ in range(3)]
    await asyncio.sleep(stage.seconds(2))
    scheduler._home.clock = right
    await asyncio.gather(*people)

    law.limit = 4
    await until(lambda: scheduler.inside["batch"] == 4, every=stage.seconds(0.1))  # nobody calls
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


@scenario
async def test_b49_the_cancel_of_an_unrelated_task_group_does_not_end_the_looking(stage: Stage) -> None:
    law = Moody(stage.seconds(0.5))
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=5, policy=law, window=stage.seconds(WINDOW))

    async def fails() -> None:
        raise ConnectionError

    async def group() -> None:
        async with asyncio.TaskGroup() as members:
            for _ in range(2):  # one of them runs, the other waits and arms the timer
                members.create_task(scheduler.submit("batch", asyncio.sleep, stage.seconds(1000)))
            await settle()
            calls.extend(hold(scheduler, "batch") for _ in range(5))
            await settle()
            members.create_task(fails())

    calls: list[Held] = []
    with pytest.raises(ExceptionGroup):
        await group()
    await settle()
    assert scheduler.inside["batch"] == 1

    law.limit = 4
    await until(lambda: scheduler.inside["batch"] == 4, every=stage.seconds(0.1))  # nobody calls
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


BROKEN_GAUGES: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "below zero": -1.0,
    "text": "0.5",
    "redis is away": ConnectionError("no route to host"),
    "out of memory": MemoryError(),
}


@scenario
@pytest.mark.parametrize("name", BROKEN_GAUGES)
async def test_b49_an_outside_gauge_that_breaks_does_not_end_the_looking(
    stage: Stage, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    shows: list[Any] = [1.0]

    def gauge() -> Any:
        if isinstance(shows[0], BaseException):
            raise shows[0]
        return shows[0]

    law = ExternalPolicy(gauge, refresh=stage.seconds(0.5), max_age=stage.seconds(3))
    scheduler = stage.scheduler(max_concurrency=6, batch_max_concurrency=5, policy=law, window=stage.seconds(WINDOW))
    calls = [hold(scheduler, "batch") for _ in range(5)]
    await settle()
    assert scheduler.inside["batch"] == 1

    limits = {0.75: 2, 0.25: 4}
    for healed in limits:
        faults, shows[0] = scheduler.snapshot().policy_faults, BROKEN_GAUGES[name]
        await until(lambda: scheduler.snapshot().reason == "external_stale", every=stage.seconds(0.1))
        assert scheduler.snapshot().policy_faults > faults
        shows[0] = healed
        await until(lambda: scheduler.inside["batch"] == limits[shows[0]], every=stage.seconds(0.1))  # nobody calls

    assert scheduler.snapshot().reason == "external"
    assert len([record for record in caplog.records if record.name == "llm_traffic_scheduler"]) == 1
    shows[0] = 0.0  # the room that is counted at the end is that of a healthy gauge
    await asyncio.sleep(stage.seconds(1))
    for held in calls:
        held.release()
    await asyncio.gather(*(held.task for held in calls))


# B50


@in_virtual_time
async def test_b50_schedulers_at_rest_have_no_tick_that_could_coincide(stage: Stage) -> None:
    schedulers = [
        stage.scheduler(policy=PressurePolicy(rps_threshold=10, p95_threshold=1, smoothing=5)) for _ in range(20)
    ]
    for scheduler in schedulers:
        await scheduler.submit("interactive", asyncio.sleep, 0.1)
        await scheduler.submit("batch", asyncio.sleep, 0.1)

    assert armed_timers() == []


# B56


@scenario
async def test_b56_the_percentiles_are_those_of_the_whole_window(stage: Stage) -> None:
    half = 5_000 if stage.loop == "default" else 50
    scheduler = stage.scheduler(max_concurrency=half + 1, window=stage.seconds(1000))
    for seconds in (5, 0.05):
        job = stage.seconds(seconds)
        await asyncio.gather(*(scheduler.submit("interactive", asyncio.sleep, job) for _ in range(half)))

    traffic = scheduler.snapshot().interactive

    assert traffic.sample_count == 2 * half
    assert traffic.p95 >= stage.seconds(5) * 0.99
