"""Made-up traffic has the rates it says, and one seed gives the same calls at every rate."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import (
    Agents,
    CallLength,
    RecordedCall,
    burst,
    chat_lengths,
    diurnal,
    gamma_gaps,
    sparse,
    square,
    steady,
)
from llm_traffic_scheduler.simulation.recording import Latency

ANY_LENGTH = [CallLength(10, 5)]
ALL_SHAPES: list[Callable[[int], tuple[RecordedCall, ...]]] = [
    lambda seed: steady(rate=1, seed=seed),
    lambda seed: gamma_gaps(rate=1, cv=3, seed=seed),
    lambda seed: square(low=0.2, high=2, seed=seed),
    lambda seed: burst(seed=seed),
    lambda seed: sparse(seed=seed),
    lambda seed: diurnal(low=0.1, high=2, seed=seed),
]


def gaps(calls: Sequence[RecordedCall]) -> list[float]:
    return [after.arrival - before.arrival for before, after in pairwise(calls)]


def share(calls: Sequence[RecordedCall], inside: Callable[[float], bool]) -> float:
    return sum(inside(call.arrival) for call in calls) / len(calls)


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_a_seed_gives_the_same_calls_again_and_another_seed_others(
    shape: Callable[[int], tuple[RecordedCall, ...]],
) -> None:
    assert shape(1) == shape(1) != shape(2)


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_calls_come_in_order_and_within_the_span(shape: Callable[[int], tuple[RecordedCall, ...]]) -> None:
    calls = shape(3)

    assert all(gap >= 0 for gap in gaps(calls))
    assert calls[0].arrival >= 0
    assert calls[-1].arrival < 600


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_call_number_k_has_the_same_length_in_every_shape(
    shape: Callable[[int], tuple[RecordedCall, ...]],
) -> None:
    calls, others = shape(5), steady(rate=20, seed=5)

    assert [call.length for call in calls] == [call.length for call in others[: len(calls)]]


def test_at_twice_the_rate_the_same_calls_come_in_half_the_time() -> None:
    slow, fast = steady(rate=1, span=1000), steady(rate=2, span=500)

    assert [call.arrival / 2 for call in slow] == pytest.approx([call.arrival for call in fast])


@pytest.mark.parametrize("cv", [0.5, 1, 1.5, 3])
@pytest.mark.slow
def test_gamma_gaps_have_the_mean_and_the_variation_they_are_asked_for(cv: float) -> None:
    found = gaps(gamma_gaps(rate=4, cv=cv, span=20_000, lengths=ANY_LENGTH))

    assert statistics.fmean(found) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(found) / statistics.fmean(found) == pytest.approx(cv, rel=0.05)


def test_a_steady_stream_has_the_gaps_of_a_poisson_process() -> None:
    found = gaps(steady(rate=4, span=5000, lengths=ANY_LENGTH))

    assert statistics.fmean(found) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(found) == pytest.approx(0.25, rel=0.03)


def test_gaps_say_nothing_about_lengths() -> None:
    def draw(numbers: random.Random) -> CallLength:
        return CallLength(round(1e6 * numbers.random()), 1)

    calls = steady(rate=4, span=5000, lengths=draw)

    lengths = [float(call.length.prompt_tokens) for call in calls]
    assert abs(statistics.correlation(lengths[1:], gaps(calls))) < 0.03
    assert abs(statistics.correlation(lengths[:-1], gaps(calls))) < 0.03


def test_traffic_does_not_begin_on_the_dot() -> None:
    first = [steady(rate=1, span=100, seed=seed, lengths=ANY_LENGTH)[0].arrival for seed in range(200)]

    assert statistics.fmean(first) == pytest.approx(1.0, rel=0.2)


def test_a_square_wave_is_low_in_the_first_half_of_each_period() -> None:
    calls = square(low=1, high=4, period=30, span=6000, lengths=ANY_LENGTH)

    assert len(calls) == pytest.approx(6000 * 2.5, rel=0.03)
    assert share(calls, lambda time: time % 30 < 15) == pytest.approx(1 / 5, abs=0.01)


def test_a_burst_ends_each_stretch_of_calm() -> None:
    calls = burst(low=0, high=5, every=60, length=15, span=6000, lengths=ANY_LENGTH)

    assert len(calls) == pytest.approx(6000 / 4 * 5, rel=0.03)
    assert all(45 <= call.arrival % 60 < 60 for call in calls)


def test_sparse_calls_are_further_apart_than_a_window() -> None:
    found = gaps(sparse(gap=20, span=6000))

    assert statistics.fmean(found) == pytest.approx(20, rel=0.03)
    assert all(15 <= gap <= 25 for gap in found)


def test_a_day_begins_at_the_low_rate_and_has_its_peak_at_noon() -> None:
    calls = diurnal(low=0, high=10, day=1000, span=10_000, lengths=ANY_LENGTH)

    assert len(calls) == pytest.approx(10_000 * 5, rel=0.02)
    # The share of sin^2 that lies in the middle half, and in the outer tenths.
    assert share(calls, lambda time: 250 <= time % 1000 < 750) == pytest.approx(0.818, abs=0.01)
    assert share(calls, lambda time: 100 <= time % 1000 < 900) == pytest.approx(0.987, abs=0.01)


def test_chat_lengths_have_the_quantiles_of_recorded_chat() -> None:
    prompts = Latency.of(length.prompt_tokens for length in chat_lengths())
    answers = Latency.of(length.output_tokens for length in chat_lengths())

    assert (prompts.p50, prompts.p95) == pytest.approx((1020, 4083), rel=0.05)
    assert (answers.p50, answers.p95) == pytest.approx((129, 451), rel=0.05)


def test_lengths_may_be_drawn_by_a_function() -> None:
    def draw(numbers: random.Random) -> CallLength:
        return CallLength(numbers.randint(1, 9), 1)

    calls = steady(rate=5, lengths=draw)

    assert {call.length.prompt_tokens for call in calls} == set(range(1, 10))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: steady(rate=0), "rate must be a finite number above 0, got 0"),
        (lambda: steady(rate=float("nan")), "rate must be a finite number above 0, got nan"),
        (lambda: steady(rate=1, span=-1), "span must be a finite number above 0, got -1"),
        (lambda: steady(rate=1e6, span=1e6), "about 1,000,000,000,000 calls are too many"),
        (lambda: gamma_gaps(rate=1e6, cv=1, span=1e6), "are too many"),
        (lambda: sparse(gap=1e-6, span=1e6), "are too many"),
        (lambda: gamma_gaps(rate=1, cv=0), "cv must be a finite number above 0, got 0"),
        (lambda: gamma_gaps(rate=1, cv=1e308), "cv must be 0.01 to 100, got"),
        (lambda: gamma_gaps(rate=1, cv=1e-308), "cv must be 0.01 to 100, got 1e-308"),
        (lambda: square(low=-1, high=1), "low must be a finite number, at least 0, got -1"),
        (lambda: burst(every=10, length=10), r"length must be below every \(10 s\), got 10"),
        (lambda: square(low=1, high=2, period=1e-6), "600 s hold too many periods of 1e-06 s"),
        (lambda: sparse(gap=20, span=10), "no call comes in this span"),
        (lambda: steady(rate=1, lengths=[]), "lengths must hold at least one CallLength"),
        (lambda: Agents(number=0, think=1), "number must be a whole number, at least 1, got 0"),
        (lambda: Agents(number=1, think=-1), "think must be a finite number, at least 0, got -1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


async def play(agents: Agents, *, seconds: float, span: float = 200.0) -> list[tuple[float, CallLength]]:
    loop, calls = asyncio.get_running_loop(), list[tuple[float, CallLength]]()

    async def call(length: CallLength) -> None:
        calls.append((loop.time(), length))
        await asyncio.sleep(seconds)

    await agents.play(call, span)
    return calls


async def test_an_agent_calls_again_only_after_its_last_call_has_ended() -> None:
    calls = await play(Agents(number=1, think=1.0), seconds=5.0)

    assert all(after - before > 5.0 for (before, _), (after, _) in pairwise(calls))
    assert len(calls) == pytest.approx(200 / 6, rel=0.15)


async def test_a_slow_backend_gets_fewer_calls_of_the_same_agents_but_the_same_ones() -> None:
    agents = Agents(number=1, think=1.0, seed=4)

    slow, fast = await play(agents, seconds=9.0), await play(agents, seconds=0.1)

    assert len(slow) * 5 < len(fast)
    assert [length for _, length in slow] == [length for _, length in fast[: len(slow)]]


async def test_agents_do_not_march_in_step() -> None:
    calls = await play(Agents(number=20, think=1.0), seconds=1.0)

    assert len({time for time, _ in calls}) == len(calls)


async def test_after_the_span_no_agent_calls_but_the_last_calls_end() -> None:
    loop, began, ended = asyncio.get_running_loop(), list[float](), list[float]()

    async def call(length: CallLength) -> None:
        began.append(loop.time())
        await asyncio.sleep(0.1)
        ended.append(loop.time())

    await Agents(number=20, think=5.0).play(call, 10.0)

    assert max(began) < 10.0
    assert loop.time() == max(ended)
    assert len(ended) == len(began)


async def test_agents_that_are_cancelled_take_their_calls_with_them() -> None:
    ended = list[bool]()

    async def call(length: CallLength) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    playing = asyncio.create_task(Agents(number=3, think=0.0).play(call, 100.0))
    await asyncio.sleep(1)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing

    assert ended == [True] * 3
