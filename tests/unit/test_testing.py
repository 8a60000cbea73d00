from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import itertools
import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler.testing import VirtualTimeDeadlock, VirtualTimeLoop, run_virtual

HOUR = 3600.0


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.contextmanager
def real_seconds(*, below: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < below


@pytest.mark.parametrize("start", [0.0, -5.0, 1e9, 1e15])
def test_a_sleep_ends_exactly_at_its_instant(start: float) -> None:
    async def main() -> list[float]:
        seen = [now()]
        for delay in (0.1, 0.25, HOUR):
            await asyncio.sleep(delay)
            seen.append(now())
        return seen

    seen = run_virtual(main(), start=start)

    assert seen == list(itertools.accumulate((0.1, 0.25, HOUR), initial=start))


def test_ten_years_take_no_time() -> None:
    async def main() -> None:
        await asyncio.sleep(10 * 365 * 24 * HOUR)

    with real_seconds(below=5):
        run_virtual(main())


def test_a_delay_too_small_to_move_a_large_clock_still_ends() -> None:
    async def main() -> float:
        await asyncio.sleep(1e-9)
        return now()

    assert run_virtual(main(), start=1e9) == 1e9


def test_the_clock_stands_still_while_callbacks_run() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert run_virtual(main(), start=7.0) == 7.0


def test_a_timer_due_in_the_past_runs_in_the_next_pass_and_moves_nothing() -> None:
    async def main() -> list[str]:
        ran: list[str] = []
        asyncio.get_running_loop().call_at(now() - 1, ran.append, "past")
        asyncio.get_running_loop().call_soon(ran.append, "soon")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert now() == 100.0
        return ran

    assert run_virtual(main(), start=100.0) == ["soon", "past"]


def test_a_timer_due_in_the_past_does_not_turn_the_clock_back() -> None:
    async def main() -> float:
        woken = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_at(now() - 1, woken.set_result, None)
        await woken
        return now()

    assert run_virtual(main(), start=100.0) == 100.0


def test_a_busy_loop_does_not_keep_a_due_timer_waiting() -> None:
    async def main() -> None:
        ran = asyncio.Event()
        asyncio.get_running_loop().call_later(0, ran.set)
        for _ in range(2):
            await asyncio.sleep(0)
        assert ran.is_set()

    run_virtual(main())


def test_timers_of_one_instant_run_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        woken: list[int] = []
        for number in range(1000):
            asyncio.get_running_loop().call_at(1.0, woken.append, number)
        await asyncio.sleep(1)
        return woken

    assert run_virtual(main()) == list(range(1000))


@given(
    st.lists(
        st.tuples(st.floats(min_value=0, max_value=10) | st.integers(min_value=0, max_value=3), st.booleans()),
        max_size=300,
    )
)
def test_timers_run_like_a_sorted_list_without_the_cancelled_ones(timers: list[tuple[float, bool]]) -> None:
    ran: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        handles = [
            loop.call_at(when, lambda number=number: ran.append((now(), number)))  # type: ignore[misc]
            for number, (when, _) in enumerate(timers)
        ]
        for handle, (_, cancelled) in zip(handles, timers, strict=True):
            if cancelled:
                handle.cancel()
        await asyncio.sleep(20)

    run_virtual(main())

    assert ran == sorted((when, number) for number, (when, cancelled) in enumerate(timers) if not cancelled)


def test_a_cancelled_timer_does_not_run_even_if_its_instant_has_come() -> None:
    async def main() -> list[str]:
        ran: list[str] = []
        loop = asyncio.get_running_loop()
        late = loop.call_later(1, ran.append, "cancelled before its instant")
        loop.call_later(0.5, late.cancel)
        due = loop.call_at(0, ran.append, "cancelled when due")
        loop.call_soon(due.cancel)
        await asyncio.sleep(3)
        return ran

    assert run_virtual(main()) == []


def test_a_timer_may_cancel_another_of_the_same_instant() -> None:
    async def main() -> list[str]:
        ran: list[str] = []
        victims: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()
        loop.call_at(1, lambda: victims[0].cancel())
        victims.append(loop.call_at(1, ran.append, "cancelled"))
        await asyncio.sleep(1)
        return ran

    assert run_virtual(main()) == []


def test_the_clock_does_not_pass_through_cancelled_timers() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(HOUR, int).cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.Event().wait()
        await asyncio.sleep(0)
        return now()

    assert run_virtual(main()) == 2.0


def test_twenty_thousand_cancelled_timers_leave_no_memory_behind() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        tracemalloc.start()
        try:
            for _ in range(20_000):
                loop.call_later(HOUR, int).cancel()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert run_virtual(main()) < 200_000


def test_the_order_survives_the_sweep_of_cancelled_timers() -> None:
    async def main() -> list[int]:
        ran: list[int] = []
        loop = asyncio.get_running_loop()
        timers = {when: loop.call_at(when, ran.append, when) for when in (1 + 387 * n % 1000 for n in range(1000))}
        for when in range(1, 1001):
            if when % 3:
                timers[when].cancel()
        await asyncio.sleep(2000)
        return ran

    assert run_virtual(main()) == list(range(3, 1001, 3))


def test_cancelling_costs_the_same_among_a_hundred_thousand_timers_as_among_ten() -> None:
    async def seconds_to_cancel(*, among: int) -> float:
        loop = asyncio.get_running_loop()
        for number in range(among):
            loop.call_later(HOUR + number, int)
        gc.collect()
        began = time.process_time()
        for _ in range(30_000):
            loop.call_later(1, int).cancel()
        return time.process_time() - began

    few, many = run_virtual(seconds_to_cancel(among=10)), run_virtual(seconds_to_cancel(among=100_000))

    # 1.0 to 1.3 as built, above 20 if each hundredth cancel swept.
    assert many < 10 * few


def test_an_instant_that_is_none_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="a timer needs an instant, got nan"):
            asyncio.get_running_loop().call_at(math.nan, int)

    run_virtual(main())


@pytest.mark.parametrize("start", [math.nan, math.inf, -math.inf])
def test_a_start_that_is_no_instant_is_refused(start: float) -> None:
    with pytest.raises(ValueError, match="start must be a finite number of seconds"):
        VirtualTimeLoop(start)


@pytest.mark.parametrize("patience", [math.nan, math.inf, -1.0])
def test_a_patience_that_is_no_duration_is_refused(patience: float) -> None:
    with pytest.raises(ValueError, match="patience must be a finite number of real seconds"):
        VirtualTimeLoop(patience=patience)


def test_everything_waiting_raises_and_says_who_waits_where() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(3)
        waiter = asyncio.create_task(wait_for_ever(), name="the forgotten one")
        await waiter

    with pytest.raises(VirtualTimeDeadlock) as caught:
        run_virtual(main())

    message = str(caught.value)
    assert "no timer is set, at 3.0 s of virtual time, 2 tasks waiting: " in message
    assert "the forgotten one in " in message
    assert "wait_for_ever (test_testing.py:" in message
    assert "real_time()" in message


def test_without_other_threads_the_deadlock_is_raised_at_once() -> None:
    program = """
from llm_traffic_scheduler.testing import VirtualTimeLoop
loop = VirtualTimeLoop(patience=1000)
loop.run_until_complete(loop.create_future())
"""

    # In a process of its own, as another test may have left a thread alive.
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "VirtualTimeDeadlock: everything waits" in ended.stderr


def test_a_bare_future_that_nobody_sets_raises() -> None:
    with contextlib.closing(VirtualTimeLoop()) as loop, pytest.raises(VirtualTimeDeadlock, match="0 tasks waiting"):
        loop.run_until_complete(loop.create_future())


def test_many_waiting_tasks_are_counted_and_ten_are_shown() -> None:
    async def main() -> None:
        gate = asyncio.Event()
        await asyncio.gather(*(gate.wait() for _ in range(30)))

    with pytest.raises(VirtualTimeDeadlock, match=r"31 tasks waiting: .*; and 21 more: ") as caught:
        run_virtual(main())

    assert str(caught.value).count("test_testing.py") + str(caught.value).count("locks.py") == 10


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_timer_that_never_comes_does_not_count_as_one(cancelled: bool) -> None:
    async def main() -> None:
        handle = asyncio.get_running_loop().call_later(HOUR if cancelled else math.inf, int)
        if cancelled:
            handle.cancel()
        await asyncio.Event().wait()

    with pytest.raises(VirtualTimeDeadlock, match=r"at 0\.0 s of virtual time"):
        run_virtual(main())


def test_the_loop_is_usable_after_it_raised() -> None:
    with contextlib.closing(VirtualTimeLoop()) as loop:
        task = loop.create_task(asyncio.Event().wait())
        with pytest.raises(VirtualTimeDeadlock):
            loop.run_until_complete(task)

        loop.run_until_complete(asyncio.sleep(5))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

        assert loop.time() == 5.0


def test_run_virtual_cleans_up_what_waits_before_it_raises() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append("main")

    with pytest.raises(VirtualTimeDeadlock):
        run_virtual(main())

    assert cleaned == ["main"]


async def _sleep_an_hour() -> float:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(asyncio.sleep(HOUR))
    return now()


@pytest.mark.parametrize("debug", [None, False, True])
def test_run_virtual_returns_the_result_of_main(debug: bool | None) -> None:
    assert run_virtual(_sleep_an_hour(), start=5.0, debug=debug) == HOUR + 5


def test_a_runner_takes_the_class_as_its_loop_factory() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(_sleep_an_hour()) == HOUR
        assert runner.run(_sleep_an_hour()) == 2 * HOUR


if sys.version_info >= (3, 12):

    def test_asyncio_run_takes_the_class_as_its_loop_factory() -> None:
        assert asyncio.run(_sleep_an_hour(), loop_factory=VirtualTimeLoop) == HOUR

    def test_eager_tasks_work() -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.get_loop().set_task_factory(asyncio.eager_task_factory)

            assert runner.run(_sleep_an_hour()) == HOUR


def test_debug_mode_refuses_a_coroutine_function_as_a_callback() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="coroutines cannot be used with call_at"):
            asyncio.get_running_loop().call_at(1, _sleep_an_hour)

    run_virtual(main(), debug=True)


def test_debug_mode_runs_each_timer_once() -> None:
    async def main() -> list[int]:
        ran: list[int] = []
        for number in range(5):
            asyncio.get_running_loop().call_later(1, ran.append, number)
        await asyncio.sleep(2)
        return ran

    assert run_virtual(main(), debug=True) == list(range(5))


def test_a_closed_loop_takes_no_timers() -> None:
    loop = VirtualTimeLoop()
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, int)


def test_context_variables_reach_timers() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    async def main() -> int:
        seen = asyncio.get_running_loop().create_future()
        context = contextvars.Context()
        context.run(variable.set, 7)
        asyncio.get_running_loop().call_later(1, lambda: seen.set_result(variable.get()), context=context)
        return int(await seen)

    assert run_virtual(main()) == 7


@pytest.mark.slow
def test_a_hundred_thousand_sleeps_at_distinct_instants_take_seconds() -> None:
    async def sleeper(offset: float) -> None:
        for _ in range(100):
            await asyncio.sleep(36 + offset)

    async def main() -> None:
        await asyncio.gather(*(sleeper(number / 1000) for number in range(1000)))

    # 1 to 2 s on two noisy cores; a scan over the timers at each jump would take minutes.
    with real_seconds(below=60):
        run_virtual(main())
