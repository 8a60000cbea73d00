"""The second opinion: a step costs a + b * running, and a prompt stalls everybody."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import ConfigError
from llm_traffic_scheduler.simulation import SimpleServer
from llm_traffic_scheduler.testing import run_virtual
from tests.unit.simulation.serving import serve, serve_all

Calls = list[tuple[float, int, int]]


def make(max_running: int = 256) -> SimpleServer:
    return SimpleServer(per_step=0.01, per_running=0.001, per_prompt_token=0.0001, max_running=max_running)


def run_step_by_step(calls: Calls, max_running: int) -> list[float]:
    """The same engine, every step on its own: when each call ends."""
    now, ends = 0.0, [0.0] * len(calls)
    coming = sorted(range(len(calls)), key=lambda number: calls[number][0])
    waiting: list[int] = []
    left: dict[int, int] = {}
    while coming or waiting or left:
        if not waiting and not left:
            now = max(now, calls[coming[0]][0])
        while coming and calls[coming[0]][0] <= now:
            waiting.append(coming.pop(0))
        entering = waiting[: max_running - len(left)]
        del waiting[: len(entering)]
        now += 0.01 + 0.001 * (len(left) + len(entering)) + 0.0001 * sum(max(1, calls[one][1]) for one in entering)
        stepping = entering or list(left)
        left.update({one: max(1, calls[one][2]) for one in entering})
        for one in stepping:
            left[one] -= 1
            if not left[one]:
                del left[one]
                ends[one] = now
    return ends


CALLS = st.lists(
    st.tuples(st.one_of(st.floats(0, 0.05), st.floats(0, 2)), st.integers(0, 300), st.integers(0, 25)),
    min_size=1,
    max_size=15,
).map(sorted)


@given(calls=CALLS, max_running=st.sampled_from([1, 2, 5, 50]))
def test_every_call_ends_when_the_step_by_step_engine_says(calls: Calls, max_running: int) -> None:
    served = run_virtual(serve_all(make(max_running), calls))

    ends = [at + one.seconds for (at, _, _), one in zip(calls, served, strict=True)]
    assert ends == pytest.approx(run_step_by_step(calls, max_running), abs=1e-9)


async def test_one_call_alone_takes_what_the_formula_says() -> None:
    served = await serve(make(), 1000, 5)

    assert served.first_token == pytest.approx(0.011 + 0.1)
    assert served.seconds == pytest.approx(0.011 + 0.1 + 4 * 0.011)


async def test_a_prompt_stalls_everybody_who_decodes() -> None:
    decoding, _ = await serve_all(make(), [(0.0, 0, 50), (0.2, 9000, 1)])

    # The prompt's step of 0.9 s and 12 ms is none of its own 50 steps.
    assert decoding.seconds == pytest.approx(50 * 0.011 + 0.012 + 0.9, abs=0.001)


async def test_every_call_more_makes_every_step_longer() -> None:
    seconds = [max(one.seconds for one in await serve_all(make(), [(0.0, 1, 100)] * n)) for n in (1, 2, 8, 32)]

    assert all(few < many for few, many in pairwise(seconds))
    assert seconds[-1] == pytest.approx(100 * 0.042 + 0.0032)


async def test_beyond_max_running_calls_wait_in_order_of_arrival() -> None:
    first, second, third = await serve_all(make(1), [(0.0, 1, 10), (0.0, 1, 10), (0.0, 1, 10)])

    assert second.seconds == pytest.approx(2 * first.seconds)
    assert third.seconds == pytest.approx(3 * first.seconds)


@pytest.mark.parametrize("wrong", [{"per_step": 0.0}, {"per_running": -1.0}, {"per_prompt_token": float("nan")}])
def test_a_cost_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be a finite number"):
        SimpleServer(per_step=wrong.get("per_step", 1.0), **{k: v for k, v in wrong.items() if k != "per_step"})  # type: ignore[arg-type]


def test_a_server_that_runs_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_running must be a whole number, at least 1, got 0"):
        SimpleServer(max_running=0)
