"""`progress=`: a function hears of each item that has ended, and True shows a bar."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_traffic_scheduler import ConfigError
from tests.behaviour.doors import assert_whole
from tests.behaviour.test_bulk import both, counted, doubled, each_way, sleepy, until_error
from tests.support import make_scheduler, other_tasks


@each_way
@pytest.mark.parametrize("total", [3, None])
async def test_a_function_gets_how_many_have_ended_and_how_many_there_are(way: str, total: int | None) -> None:
    scheduler = make_scheduler(max_concurrency=4)
    heard: list[tuple[float, int, int | None]] = []
    loop = asyncio.get_running_loop()

    def listen(done: int, total: int | None) -> None:
        heard.append((loop.time(), done, total))

    items = [3.0, 1.0, 2.0]
    async for _ in both(scheduler, way, "batch", sleepy, items if total else iter(items), progress=listen):
        pass

    assert heard == [(1.0, 1, total), (2.0, 2, total), (3.0, 3, total)]


async def test_errors_count_and_the_cancelled_rest_does_not() -> None:
    scheduler = make_scheduler(max_concurrency=4)
    heard: list[int] = []

    async def fails(number: int) -> None:
        await asyncio.sleep(number)
        if number == 1:
            raise ConnectionError

    await until_error(scheduler.map("batch", fails, range(4), progress=lambda done, total: heard.append(done)))

    assert heard == [1, 2]


@each_way
async def test_what_the_function_raises_ends_the_iteration(way: str) -> None:
    scheduler = make_scheduler(max_concurrency=4)

    def fail(done: int, total: int | None) -> None:
        raise ZeroDivisionError

    _, error = await until_error(both(scheduler, way, "batch", doubled, range(30), progress=fail))

    assert isinstance(error, ZeroDivisionError)
    assert not other_tasks()
    await assert_whole(scheduler)


async def test_true_shows_a_bar_that_leaves_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make_scheduler()
    threads = threading.active_count()

    async for _ in scheduler.map("batch", doubled, range(12), progress=True, label="embed"):
        pass

    shown = capsys.readouterr().err
    assert "embed: 100%" in shown
    assert "12/12" in shown
    assert threading.active_count() == threads


async def test_a_bar_is_finished_where_the_operation_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make_scheduler()

    async with scheduler.map("batch", doubled, range(12), progress=True) as results:
        await anext(results)
        assert not capsys.readouterr().err.endswith("\n")

    assert capsys.readouterr().err.endswith("\n")


async def test_a_bar_without_a_total_counts(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make_scheduler()

    async for _ in scheduler.map("batch", doubled, counted(5), progress=True):
        pass

    assert "5it" in capsys.readouterr().err


@pytest.mark.parametrize("progress", [None, False])
async def test_nothing_is_shown_unasked(progress: Any, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make_scheduler()

    async for _ in scheduler.map("batch", doubled, range(3), progress=progress):
        pass

    assert capsys.readouterr().err == ""


async def test_without_tqdm_a_bar_is_refused_at_once_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler()
    monkeypatch.setitem(sys.modules, "tqdm", None)

    with pytest.raises(ConfigError, match=r"pip install 'llm-traffic-scheduler\[progress\]'"):
        scheduler.map("batch", doubled, range(3), progress=True)


def test_tqdm_loads_only_where_a_bar_was_asked_for() -> None:
    program = """
import asyncio, sys
from llm_traffic_scheduler import TrafficScheduler
async def main(progress):
    scheduler = TrafficScheduler(max_concurrency=2)
    return [each async for each in scheduler.map("batch", asyncio.sleep, [0, 0], progress=progress)]
asyncio.run(main(None)); print("tqdm" in sys.modules)
asyncio.run(main(True)); print("tqdm" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["False", "True"]


async def test_a_bar_of_no_items_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make_scheduler()

    async def nothing() -> AsyncIterator[int]:
        return
        yield 1

    async for _ in scheduler.map("batch", doubled, nothing(), progress=True):
        pass

    assert capsys.readouterr().err == ""
