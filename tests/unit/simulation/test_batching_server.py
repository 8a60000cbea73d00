"""The simulated engine does, in leaps, what an engine does step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import A100, H100, TWO_CORE_CPU, BatchingServer, Engine
from llm_traffic_scheduler.testing import run_virtual
from tests.unit.simulation.naive_engine import Arrival, run_naively

SMALL = replace(A100, kv_tokens=60, max_num_seqs=4, token_budget=16)

# Times that never fall together with the end of a step but by chance, dense and sparse against steps of 11 ms.
ARRIVALS = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 0.05), st.floats(0, 2)),
        st.integers(0, 30),
        st.integers(0, 25),
    ),
    min_size=1,
    max_size=20,
).map(sorted)
ENGINES = st.builds(
    lambda kv_tokens, seats, budget: replace(
        A100, kv_tokens=kv_tokens, max_num_seqs=seats, token_budget=seats + budget
    ),
    st.sampled_from([56, 80, 200, 5000]),
    st.sampled_from([1, 2, 5, 12]),
    st.sampled_from([1, 7, 40, 500]),
)


async def _run(server: BatchingServer, arrivals: Sequence[Arrival]) -> list[float]:
    loop = asyncio.get_running_loop()

    async def call(arrival: Arrival) -> float:
        time, prompt, output = arrival
        await asyncio.sleep(time)
        await server.serve(prompt, output)
        server.check()
        return loop.time()

    return list(await asyncio.gather(*map(call, arrivals)))


@given(engine=ENGINES, arrivals=ARRIVALS)
def test_every_call_ends_when_the_step_by_step_engine_says(engine: Engine, arrivals: list[Arrival]) -> None:
    ends = run_virtual(_run(BatchingServer(engine), arrivals))

    assert ends == pytest.approx(run_naively(engine, arrivals), abs=1e-9)


async def test_one_call_alone_takes_what_the_formula_says() -> None:
    # The prompt is one step; the two steps after it decode with 1001 and 1002 tokens of context.
    prefill = 4.5e-3 + 0.068e-3 * 1000 + 1.5e-3 + 3.0e-9 * 1000 * 500
    decode = 9.8e-3 + 0.027e-3 + 1.5e-3

    ends = await _run(BatchingServer(), [(0.0, 1000, 3)])

    assert ends == pytest.approx([prefill + 2 * decode + 0.080e-6 * (1001 + 1002)])


async def test_calls_that_come_together_enter_together() -> None:
    ends = await _run(BatchingServer(), [(0.0, 10, 1), (0.0, 10, 1)])

    assert ends[0] == ends[1]


async def test_a_prompt_above_the_token_budget_takes_several_steps() -> None:
    steps = 3  # 16, 16 and 8 tokens

    ends = await _run(BatchingServer(SMALL), [(0.0, 40, 1)])

    assert ends[0] > steps * (A100.floor + A100.overhead)
    assert ends == pytest.approx(run_naively(SMALL, [(0.0, 40, 1)]))


async def test_when_memory_overflows_the_newest_call_starts_again_and_the_oldest_goes_on() -> None:
    arrivals = [(0.0, 20, 30), (0.0, 20, 30)]
    alone = await _run(BatchingServer(SMALL), arrivals[:1])
    server = BatchingServer(SMALL)

    start = asyncio.get_running_loop().time()
    ends = [end - start for end in await _run(server, arrivals)]

    # 31 tokens of the first and 29 of the second, which entered a step later, are all that fits.
    assert server.recomputed_tokens == 29
    assert ends[0] < 1.2 * alone[0] < ends[1]
    assert ends == pytest.approx(run_naively(SMALL, arrivals))


async def test_a_call_beyond_max_num_seqs_waits_for_the_first_end() -> None:
    engine = replace(SMALL, max_num_seqs=1)

    first, second = await _run(BatchingServer(engine), [(0.0, 5, 5), (0.0, 5, 5)])

    assert second == pytest.approx(2 * first)


async def test_a_cancelled_call_goes_on_in_the_engine_and_harms_nobody() -> None:
    server = BatchingServer(SMALL)
    leaver = asyncio.create_task(server.serve(10, 20))
    stayer = asyncio.create_task(_run(server, [(0.0, 10, 20)]))
    await asyncio.sleep(0.1)

    leaver.cancel()

    assert await stayer == pytest.approx(run_naively(SMALL, [(0.0, 10, 20)] * 2)[1:])


async def test_a_call_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="a call of 61 tokens never fits the engine's memory \\(60 tokens\\)"):
        await BatchingServer(SMALL).serve(60, 1)


def test_an_engine_without_room_for_prefill_is_refused() -> None:
    with pytest.raises(ConfigError, match="token_budget \\(4\\) must be above max_num_seqs \\(4\\)"):
        replace(SMALL, token_budget=4)


async def test_steps_that_only_decode_cost_one_timer_however_many_they_are() -> None:
    loop = asyncio.get_running_loop()
    timers = 0
    call_at = loop.call_at

    def counting(*args: object, **kwargs: object) -> object:
        nonlocal timers
        timers += 1
        return call_at(*args, **kwargs)  # type: ignore[arg-type]

    loop.call_at = counting  # type: ignore[method-assign, assignment]
    await BatchingServer().serve(100, 5000)

    assert timers == 2


async def test_a_call_on_the_cpu_takes_what_the_formula_says() -> None:
    # 0.3 ms and 0.16 ms for each token of the prompt; then steps of 0.7 ms with 101 and 102 tokens of context.
    ends = await _run(BatchingServer(TWO_CORE_CPU), [(0.0, 100, 3)])

    assert ends == pytest.approx([0.3e-3 + 16e-3 + 2 * 0.7e-3 + 0.5e-6 * (101 + 102)])


def test_the_faster_card_is_faster() -> None:
    a100, h100 = (run_virtual(_run(BatchingServer(engine), [(0.0, 4000, 400)] * 64)) for engine in (A100, H100))

    assert max(h100) < 0.6 * max(a100)


async def test_a_call_that_is_computed_again_has_one_first_token() -> None:
    server, firsts = BatchingServer(SMALL), list[int]()

    await asyncio.gather(*(server.serve(20, 30, first_token=partial(firsts.append, call)) for call in (1, 2)))

    assert server.recomputed_tokens > 0
    assert firsts == [1, 2]


async def test_a_first_token_that_raises_does_not_stop_the_engine() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)

    def fail() -> None:
        raise RuntimeError("heard")

    await BatchingServer(SMALL).serve(10, 10, first_token=fail)
