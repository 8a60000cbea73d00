"""A hosted API: latency nobody can push, quotas anybody can hit."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import HostedAPI, Overloaded, Throttled
from llm_traffic_scheduler.simulation.recording import Latency
from tests.unit.simulation.serving import Served, serve, serve_all


def unlimited(seed: int = 0, *, overloaded_share: float = 0.0) -> HostedAPI:
    return HostedAPI(
        seed=seed,
        max_concurrency=10**9,
        requests_per_minute=1e12,
        tokens_per_minute=1e12,
        overloaded_share=overloaded_share,
    )


def refused(served: list[Served]) -> list[Served]:
    return [one for one in served if isinstance(one.error, Throttled)]


@pytest.mark.slow
async def test_latencies_have_the_distribution_they_should() -> None:
    served = await serve_all(unlimited(), [(0.0, 1, 91)] * 20_000)

    firsts = Latency.of(one.first_token for one in served if one.first_token is not None)
    rates = Latency.of(90 / (one.seconds - one.first_token) for one in served if one.first_token is not None)
    assert firsts.p50 == pytest.approx(0.65, rel=0.02)  # a little above the usual calls' own median
    assert firsts.p99 == pytest.approx(3.56, rel=0.1)  # two thirds up the slow calls
    assert rates.p50 == pytest.approx(90, rel=0.02)
    assert rates.p95 == pytest.approx(90 * math.exp(1.645 * 0.25), rel=0.03)


async def test_each_token_of_the_prompt_delays_the_first_one_of_the_answer() -> None:
    short = Latency.of(one.seconds for one in await serve_all(unlimited(), [(0.0, 1, 1)] * 5000))
    long = Latency.of(one.seconds for one in await serve_all(unlimited(), [(0.0, 10_001, 1)] * 5000))

    assert long.p50 - short.p50 == pytest.approx(0.6, abs=0.05)


async def test_a_call_is_as_lucky_whatever_else_is_sent_before_it() -> None:
    alone = await serve(unlimited(7), 123, 45)

    among_others = await serve_all(unlimited(7), [(0.0, 50, 50)] * 20 + [(1.0, 123, 45)])

    assert among_others[-1] == alone
    assert await serve(unlimited(8), 123, 45) != alone


async def test_calls_of_one_length_are_not_all_alike() -> None:
    served = await serve_all(unlimited(), [(0.0, 100, 100)] * 50)

    assert len({one.seconds for one in served}) == 50


async def test_beyond_the_requests_of_a_minute_calls_are_refused_and_told_when_to_come_back() -> None:
    api = HostedAPI(requests_per_minute=30, overloaded_share=0.0)

    served = await serve_all(api, [(0.0, 1, 1)] * 40)

    assert len(refused(served)) == api.throttled == 10
    assert {str(one.error) for one in refused(served)} == {"429, Retry-After: 2"}
    assert all(one.seconds == 0.0 for one in refused(served))


async def test_who_comes_back_when_told_is_served() -> None:
    api = HostedAPI(requests_per_minute=30, overloaded_share=0.0)

    *_, told, again = await serve_all(api, [(0.0, 1, 1)] * 31 + [(2.0, 1, 1)])

    assert str(told.error) == "429, Retry-After: 2"
    assert again.error is None


async def test_tokens_are_charged_as_asked_for_and_not_as_used() -> None:
    api = HostedAPI(tokens_per_minute=10_000, max_tokens=900, overloaded_share=0.0)

    served = await serve_all(api, [(0.0, 100, 1)] * 12)

    assert len(refused(served)) == 2


async def test_a_call_that_fails_is_charged_too() -> None:
    api = HostedAPI(tokens_per_minute=10_000, max_tokens=900, overloaded_share=1.0)

    served = await serve_all(api, [(0.0, 100, 1)] * 12)

    assert Counter(type(one.error) for one in served) == {Overloaded: 10, Throttled: 2}
    assert api.overloaded == 10


async def test_a_refused_call_is_charged_a_request() -> None:
    patient, pushing = (HostedAPI(requests_per_minute=60, overloaded_share=0.0) for _ in range(2))
    pushes = [(0.1 * number, 1, 1) for number in range(100)]

    served = await serve_all(patient, [(0.0, 1, 1)] * 60 + [(10.0, 1, 1)] * 10)
    pushed = await serve_all(pushing, [(0.0, 1, 1)] * 60 + pushes + [(10.0, 1, 1)] * 10)

    assert len(refused(served)) == 0
    assert len(refused(pushed)) == 110


async def test_beyond_the_cap_on_concurrency_calls_are_refused() -> None:
    api = HostedAPI(max_concurrency=5, overloaded_share=0.0)

    served = await serve_all(api, [(0.0, 1, 100)] * 8 + [(60.0, 1, 1)])

    assert len(refused(served)) == 3
    assert served[-1].error is None


async def test_a_cancelled_call_frees_its_place_at_once() -> None:
    api = HostedAPI(max_concurrency=1, overloaded_share=0.0)
    leaver = asyncio.create_task(api.serve(1, 10_000))
    await asyncio.sleep(0.01)

    leaver.cancel()
    await asyncio.wait([leaver])

    assert (await serve(api)).error is None


async def test_some_calls_find_the_backend_overloaded() -> None:
    served = await serve_all(unlimited(overloaded_share=0.02), [(0.0, 1, 1)] * 5000)

    failed = [one for one in served if isinstance(one.error, Overloaded)]
    assert len(failed) == pytest.approx(100, abs=30)
    assert all(one.first_token is None for one in failed)


async def test_a_call_above_a_minutes_tokens_never_fits() -> None:
    served = await serve(HostedAPI(tokens_per_minute=1000, max_tokens=500), 501, 1)

    assert isinstance(served.error, ValueError)
    assert str(served.error) == "a call is charged 1001 tokens, more than a minute's 1000"


@pytest.mark.parametrize("name", ["max_concurrency", "requests_per_minute", "tokens_per_minute", "max_tokens"])
def test_a_quota_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a .* number, at least 1, got 0"):
        HostedAPI(**{name: 0})


def test_a_share_beyond_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"overloaded_share must be from 0 to 1, got 1\.5"):
        HostedAPI(overloaded_share=1.5)
