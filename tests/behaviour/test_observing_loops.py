"""What a policy hears of calls from threads, and of calls whose event loop has gone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from llm_traffic_scheduler import Arrived, Ended, FirstToken, current_slot
from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.behaviour.doors import Door, assert_whole, each_door, start
from tests.behaviour.left_behind import Left
from tests.behaviour.threads import bound_scheduler
from tests.heard import Heard
from tests.support import make_scheduler, noop, settle


@pytest.mark.asyncio(loop_factories=["virtual", "debug", "real", "uvloop"])
async def test_calls_from_threads_are_heard_of_on_the_loops_own_thread() -> None:
    threads: set[int] = set()

    class Where(Heard):
        def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
            threads.add(threading.get_ident())
            super().observe(now, event)

    heard = Where()
    scheduler = await bound_scheduler(policy=heard)

    async def ask() -> None:
        slot = current_slot()
        assert slot is not None
        slot.first_token()

    def work() -> None:
        scheduler.submit_from_thread("interactive", ask).result(10)
        with scheduler.slot_from_thread("interactive"):
            slot = current_slot()
            assert slot is not None
            slot.first_token()
            slot.tokens(5)
        with scheduler.slot_from_thread("batch"):
            pass

    await asyncio.to_thread(work)

    assert heard.names == ["Arrived", "FirstToken", "completed"] * 2
    assert heard.of(Ended)[1].tokens == 5
    assert heard.of(FirstToken)[1].elapsed == heard.of(Ended)[1].first_token
    assert threads == {threading.get_ident()}
    heard.check()


@each_door
def test_with_the_loop_its_calls_are_forgotten_and_their_late_ends_not_heard_of(run: Door) -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    left = Left(scheduler, run)
    assert len(heard.unfinished) == 4
    resets = heard.resets

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run(scheduler, "interactive", noop))
        assert heard.resets == resets + 1
        assert heard.names == ["Arrived", "completed"]
        left.finish()
        assert heard.names == ["Arrived", "completed"]
        heard.check()
        assert heard.unfinished == {}
        runner.run(assert_whole(scheduler))
    heard.check()


def test_what_a_call_of_a_loop_that_is_gone_reports_is_not_heard_of() -> None:
    heard = Heard()
    scheduler = make_scheduler(policy=heard)
    first, second = VirtualTimeLoop(), VirtualTimeLoop()
    opened = asyncio.Event()

    async def work() -> None:
        slot = current_slot()
        await opened.wait()
        assert slot is not None
        slot.first_token()
        slot.throttled(100)

    async def begin() -> asyncio.Task[None]:
        task = start(scheduler.submit("interactive", work))
        await settle()
        return task

    async def end() -> None:
        opened.set()
        await task

    task = first.run_until_complete(begin())
    second.run_until_complete(scheduler.submit("interactive", noop))
    first.run_until_complete(end())

    assert heard.names == ["Arrived", "completed"]
    assert scheduler.snapshot().reason != "throttled"
    for loop in (first, second):
        loop.close()
