"""Each fault does what it is named after, in its interval and at no other time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import (
    Backend,
    Broken,
    FailingFast,
    Hung,
    Outage,
    Outlier,
    SimpleServer,
    Throttled,
    Throttling,
    TimingOut,
    TokenSlots,
)
from tests.unit.simulation.serving import Served, serve, serve_all

# A second of reading and a second of writing for each call, whatever runs beside it.
PROMPT, OUTPUT = 99, 101
FAULTS: list[Callable[..., Backend]] = [FailingFast, Hung, Outage, Outlier, Throttling, TimingOut]


def healthy() -> TokenSlots:
    return TokenSlots(1000, per_prompt_token=0.01, per_output_token=0.01)


async def calls_at(backend: Backend, *times: float) -> list[Served]:
    return await serve_all(backend, [(time, PROMPT, OUTPUT) for time in times])


def well(served: Served) -> bool:
    return served.error is None and served.seconds == pytest.approx(2.0)


@pytest.mark.parametrize("fault", FAULTS)
async def test_before_and_after_its_interval_a_fault_does_nothing(fault: Callable[..., Backend]) -> None:
    before, during, after = await calls_at(fault(healthy(), start=10, until=20), 0.0, 10.0, 20.0)

    assert well(before)
    assert not well(during)
    assert well(after)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_interval_that_ends_before_it_begins_is_refused(fault: Callable[..., Backend]) -> None:
    with pytest.raises(ConfigError, match=r"start must be before until \(5 s\), got 5 s"):
        fault(healthy(), start=5, until=5)


async def test_a_hung_backend_answers_nothing_and_then_all() -> None:
    due_while_hung, came_while_hung = await calls_at(Hung(healthy(), start=10, until=20), 8.5, 12.0)

    assert (due_while_hung.seconds, came_while_hung.seconds) == pytest.approx((11.5, 10.0))
    assert (due_while_hung.first_token, came_while_hung.first_token) == pytest.approx((1.0, 9.0))


async def test_a_first_token_that_was_due_while_hung_comes_after_it() -> None:
    (served,) = await calls_at(Hung(healthy(), start=10, until=20), 9.5)

    assert (served.first_token, served.seconds) == pytest.approx((10.5, 10.5))


async def test_errors_of_a_hung_backend_hang_too() -> None:
    inner = FailingFast(healthy(), seconds=2.0)

    (served,) = await calls_at(Hung(inner, start=10, until=20), 9.0)

    assert isinstance(served.error, Broken)
    assert served.seconds == pytest.approx(11.0)


@pytest.mark.parametrize("came", [8.5, 9.5, 12.0])
async def test_a_call_leaves_a_hung_backend_at_once(came: float) -> None:
    calls = asyncio.create_task(calls_at(Hung(healthy(), start=10), came))
    await asyncio.sleep(came)
    await asyncio.sleep(1.9)

    calls.cancel()
    await asyncio.wait([calls])

    assert calls.cancelled()
    assert asyncio.get_running_loop().time() == pytest.approx(came + 1.9)


async def test_calls_that_time_out_all_take_the_same_time() -> None:
    served = await calls_at(TimingOut(healthy(), seconds=30), 0.0, 1.0, 2.0)

    assert [one.seconds for one in served] == pytest.approx([30] * 3)
    assert {str(one.error) for one in served} == {"no answer within 30 s"}
    assert all(isinstance(one.error, TimeoutError) for one in served)


async def test_what_fails_fast_fails_within_a_millisecond() -> None:
    (served,) = await calls_at(FailingFast(healthy()), 0.0)

    assert isinstance(served.error, Broken)
    assert served.seconds == pytest.approx(0.001)


@pytest.mark.parametrize("retry_after", [None, 5.0])
async def test_a_storm_of_429_may_say_when_to_come_back(retry_after: float | None) -> None:
    (served,) = await calls_at(Throttling(healthy(), retry_after=retry_after), 0.0)

    assert isinstance(served.error, Throttled)
    assert served.error.retry_after == retry_after


async def test_an_outlier_is_one_call() -> None:
    served = await calls_at(Outlier(healthy(), seconds=300, start=1), 0.0, 1.0, 1.5, 2.0)

    assert [one.seconds for one in served] == pytest.approx([2, 302, 2, 2])


async def test_an_outage_breaks_what_runs_and_what_comes() -> None:
    running, coming = await calls_at(Outage(healthy(), start=10, until=20), 9.5, 15.0)

    assert (str(running.error), str(coming.error)) == ("connection reset", "connection refused")
    assert (running.seconds, coming.seconds) == pytest.approx((0.5, 1.0))


async def test_an_outage_leaves_the_timeouts_of_the_backend_alone() -> None:
    (served,) = await calls_at(Outage(TimingOut(healthy(), seconds=3), start=10), 1.0)

    assert isinstance(served.error, TimeoutError)


async def test_faults_nest() -> None:
    backend = Hung(Throttling(healthy(), start=10, until=20), start=30, until=40)

    served = await calls_at(backend, 0.0, 15.0, 35.0)

    assert [type(one.error) for one in served] == [type(None), Throttled, type(None)]
    assert served[2].seconds == pytest.approx(7.0)


async def test_a_fault_shows_its_interval_and_what_it_is_around() -> None:
    assert repr(Hung(SimpleServer(), start=1, until=2)) == (
        "<Hung from 1 s to 2 s, around <SimpleServer 0 running, 0 waiting>>"
    )
    assert (await serve(Hung(SimpleServer(), start=1, until=2))).error is None
