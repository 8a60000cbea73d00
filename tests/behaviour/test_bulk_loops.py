"""A bulk operation is consumed by one task at a time, and in the event loop it began in."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler import SchedulerMisuse
from llm_traffic_scheduler.testing import VirtualTimeLoop, run_virtual
from tests.behaviour.doors import assert_whole, outcome, start
from tests.behaviour.test_bulk import doubled, sleepy
from tests.support import make_scheduler, settle


async def test_it_is_consumed_by_one_task_at_a_time() -> None:
    scheduler = make_scheduler()
    results = scheduler.map("batch", sleepy, [5.0, 1.0])
    first = start(anext(results))
    await settle()

    with pytest.raises(SchedulerMisuse, match="another task waits"):
        await anext(results)

    assert await first == 5.0
    assert await anext(results) == 1.0
    await results.aclose()


async def test_closing_from_another_task_ends_the_iteration() -> None:
    scheduler = make_scheduler()
    results = scheduler.map("batch", sleepy, [5.0, 1.0])
    waiting = start(anext(results))
    await settle()

    await results.aclose()

    assert await outcome(waiting) is StopAsyncIteration
    await assert_whole(scheduler)


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
def test_closing_it_in_another_loop_is_refused_unless_its_own_is_closed(closed: bool) -> None:
    scheduler, loop = make_scheduler(max_concurrency=4), VirtualTimeLoop()
    results = scheduler.map("batch", sleepy, range(1, 9))
    loop.run_until_complete(anext(results))
    if closed:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

        run_virtual(results.aclose())

        assert run_virtual(results.aclose()) is None
    else:
        with pytest.raises(SchedulerMisuse, match="closed in the loop it began in"):
            run_virtual(results.aclose())
        loop.run_until_complete(results.aclose())
        loop.close()


def test_it_goes_on_in_the_loop_it_began_in() -> None:
    scheduler = make_scheduler()
    first, second = VirtualTimeLoop(), VirtualTimeLoop()
    results = scheduler.map("batch", doubled, range(5))

    async def pull() -> int:
        return await anext(results)

    assert first.run_until_complete(pull()) == 0
    with pytest.raises(SchedulerMisuse, match="the event loop it began in"):
        second.run_until_complete(pull())
    assert first.run_until_complete(pull()) == 2
    first.run_until_complete(results.aclose())
    first.close()
    second.close()


def test_a_thread_of_its_own_is_refused_while_the_scheduler_is_in_use() -> None:
    scheduler = make_scheduler()

    async def elsewhere() -> list[int]:
        return [each async for each in scheduler.map("batch", doubled, range(3))]

    async def main() -> None:
        running = start(scheduler.submit("batch", asyncio.sleep, 1.0))
        await settle()
        with pytest.raises(SchedulerMisuse, match="another running event loop"):
            await asyncio.to_thread(run_virtual, elsewhere())
        await running

    run_virtual(main())
