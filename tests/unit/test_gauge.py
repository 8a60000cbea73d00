"""Reports from any thread, each with its time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from llm_traffic_scheduler import Gauge, GaugeReading


def test_before_the_first_report_it_shows_nothing() -> None:
    assert Gauge()() is None


def test_it_shows_the_latest_report() -> None:
    times = iter([1.0, 2.0])
    gauge = Gauge(clock=lambda: next(times))
    gauge.report(0.2)
    gauge.report(0.8)

    assert gauge() == GaugeReading(0.8, 2.0)


def test_the_same_report_is_the_same_object_so_that_it_can_be_told_from_a_new_one() -> None:
    gauge = Gauge(clock=lambda: 0.0)
    gauge.report(0.5)
    first = gauge()
    assert gauge() is first

    gauge.report(0.5)

    assert gauge() is not first


async def test_on_a_loop_with_its_own_time_a_report_has_that_time() -> None:
    gauge = Gauge()
    await asyncio.sleep(1000)
    gauge.report(0.5)

    assert gauge() == GaugeReading(0.5, asyncio.get_running_loop().time())


def test_in_a_thread_without_a_loop_a_report_has_the_time_of_asyncios_loops() -> None:
    gauge = Gauge()
    before = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gauge.report, 0.5).result()

    reading = gauge()
    assert reading is not None
    assert before <= reading.at <= time.monotonic()


def test_repr_shows_the_latest_report() -> None:
    gauge = Gauge()
    assert repr(gauge) == "<Gauge without a report>"

    gauge.report(0.5)

    assert repr(gauge) == "<Gauge at 0.5>"
