"""Threads, sockets and signals: what reaches a virtual loop from outside."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from llm_traffic_scheduler.testing import VirtualTimeDeadlock, VirtualTimeLoop, run_virtual

HOUR = 3600.0


def now() -> float:
    return asyncio.get_running_loop().time()


def the_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


@contextlib.contextmanager
def real_seconds(*, at_least: float = 0.0, below: float = math.inf) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert at_least <= time.monotonic() - began < below


def test_a_job_in_a_thread_is_waited_for_without_moving_the_clock_past_a_timer() -> None:
    release = threading.Event()

    async def main() -> float:
        threading.Timer(0.05, release.set).start()
        await asyncio.wait_for(asyncio.to_thread(release.wait), timeout=HOUR)
        return now()

    with real_seconds(at_least=0.04, below=10):
        assert 0 <= run_virtual(main()) < 10


def test_a_job_in_a_thread_is_no_deadlock() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: threading.Event().wait(0.02) or 42)

    assert run_virtual(main()) == 42


def test_a_timer_still_fires_while_a_thread_runs_for_longer_in_real_time() -> None:
    release = threading.Event()

    async def main() -> float:
        job = asyncio.get_running_loop().run_in_executor(None, release.wait)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.shield(job)
        fired = now()
        release.set()
        await job
        return fired

    with real_seconds(at_least=0.04):
        assert 0.05 <= run_virtual(main()) < 5


def test_a_thread_that_waits_for_the_loop_gets_its_answer() -> None:
    async def sleep_and_answer() -> str:
        await asyncio.sleep(0.02)
        return "answer"

    async def main() -> str:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(sleep_and_answer(), loop).result(10))

    assert run_virtual(main()) == "answer"


def test_a_thread_that_floods_the_loop_does_not_stop_the_clock() -> None:
    stop = threading.Event()

    def flood(loop: asyncio.AbstractEventLoop) -> None:
        while not stop.is_set():
            loop.call_soon_threadsafe(int)

    async def main() -> None:
        job = asyncio.get_running_loop().run_in_executor(None, flood, asyncio.get_running_loop())
        await asyncio.sleep(0.05)
        stop.set()
        await job

    with real_seconds(at_least=0.04, below=30):
        run_virtual(main())


def test_the_clock_jumps_again_once_the_job_has_ended() -> None:
    async def main() -> None:
        await asyncio.to_thread(int)
        await asyncio.sleep(HOUR)

    with real_seconds(below=10):
        run_virtual(main())


def test_a_cancelled_job_holds_no_clock() -> None:
    release = threading.Event()

    async def main() -> None:
        job = asyncio.create_task(asyncio.to_thread(release.wait))
        await asyncio.sleep(0)
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job
        await asyncio.sleep(HOUR)
        release.set()

    with real_seconds(below=10):
        run_virtual(main())


def test_a_thread_started_by_hand_wakes_a_loop_that_has_no_timer() -> None:
    async def main() -> None:
        woken = asyncio.Event()
        threading.Timer(0.05, asyncio.get_running_loop().call_soon_threadsafe, [woken.set]).start()
        await woken.wait()

    run_virtual(main())


def test_an_idle_thread_delays_the_deadlock_by_the_patience_asked_for() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with (
            contextlib.closing(VirtualTimeLoop(patience=0.05)) as loop,
            real_seconds(at_least=0.04, below=4),
            pytest.raises(VirtualTimeDeadlock),
        ):
            loop.run_until_complete(loop.create_future())
    finally:
        release.set()
        thread.join()


def test_real_time_makes_timers_wait_for_a_thread_started_by_hand() -> None:
    async def main() -> float:
        woken = asyncio.Event()
        with the_loop().real_time():
            with the_loop().real_time():
                await asyncio.sleep(0)
            threading.Timer(0.05, asyncio.get_running_loop().call_soon_threadsafe, [woken.set]).start()
            async with asyncio.timeout(HOUR):
                await woken.wait()
        await asyncio.sleep(HOUR)
        return now()

    with real_seconds(below=10):
        assert run_virtual(main()) == pytest.approx(HOUR, abs=10)


def test_the_clock_stops_where_real_time_ends() -> None:
    async def main() -> None:
        with the_loop().real_time():
            await asyncio.sleep(0.02)
        ended = now()
        threading.Event().wait(0.05)
        await asyncio.sleep(0)
        assert now() == ended
        await asyncio.sleep(1)
        assert now() == ended + 1

    run_virtual(main())


def test_real_time_that_begins_inside_real_time_loses_none_of_it() -> None:
    async def main() -> float:
        with the_loop().real_time():
            threading.Event().wait(0.05)
            with the_loop().real_time():
                await asyncio.sleep(0)
                return now()

    assert run_virtual(main()) >= 0.05


def test_timers_that_fall_due_during_one_long_callback_each_run_at_their_own_instant() -> None:
    async def main() -> list[float]:
        ran: list[float] = []
        with the_loop().real_time():
            for delay in (0.01, 0.02):
                the_loop().call_later(delay, lambda: ran.append(now()))
            threading.Event().wait(0.05)
            await asyncio.sleep(0.03)
        return ran

    assert run_virtual(main()) == [0.01, 0.02]


def test_the_end_of_the_executor_is_not_timed_out_by_virtual_time() -> None:
    started, release = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        release.wait(0.05)

    async def main() -> None:
        abandoned = asyncio.get_running_loop().run_in_executor(None, job)
        started.wait()
        abandoned.cancel()

    # 3.13's runner allows the threads 300 s; a RuntimeWarning, an error here, would say that they took longer.
    with real_seconds(at_least=0.04):
        run_virtual(main())


def test_sockets_work_at_real_speed_and_nothing_times_out_early() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        await asyncio.sleep(0.05)
        writer.write(line.upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main() -> bytes:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(HOUR):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(HOUR)
        return line

    with real_seconds(at_least=0.04, below=10):
        assert run_virtual(main()) == b"HELLO\n"


def test_a_silent_socket_is_waited_for_without_spinning() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            threading.Timer(0.2, theirs.send, [b"x"]).start()
            began = time.thread_time()
            assert await loop.sock_recv(ours, 1) == b"x"
            assert time.thread_time() - began < 0.1

    run_virtual(main())


def test_a_signal_that_has_arrived_comes_before_the_next_timer() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, stop.set)
        asyncio.get_running_loop().call_later(HOUR, int)
        os.kill(os.getpid(), signal.SIGUSR1)
        await stop.wait()
        loop.remove_signal_handler(signal.SIGUSR1)
        return now()

    assert run_virtual(main()) == 0.0


def test_a_busy_loop_still_hears_signals() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, stop.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(200):
            await asyncio.sleep(0)
        assert stop.is_set()
        loop.remove_signal_handler(signal.SIGUSR1)

    run_virtual(main())


def test_ctrl_c_cancels_main_and_ends_in_a_keyboard_interrupt() -> None:
    cancelled: list[float] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().call_later(5, signal.raise_signal, signal.SIGINT)
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise

    with pytest.raises(KeyboardInterrupt):
        run_virtual(main())

    assert cancelled == [5.0]
