"""The stage sees what it is there to see: each of its six checks fails where it should."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable

import pytest

from tests.behaviour.doors import Door, each_door, start
from tests.scenarios.stage import Stage, _play, scenario
from tests.support import hold, noop, settle


async def _leaves_a_task(stage: Stage) -> None:
    stage.stray = asyncio.ensure_future(asyncio.Event().wait())  # type: ignore[attr-defined]


async def _leaves_a_timer(stage: Stage) -> None:
    asyncio.get_running_loop().call_later(1, noop)


async def _leaves_a_call(stage: Stage) -> None:
    hold(stage.scheduler())
    await settle()


async def _leaks_a_slot(stage: Stage) -> None:
    scheduler = stage.scheduler()
    held = hold(scheduler)
    await settle()
    scheduler._home.complete = lambda call: None  # type: ignore[method-assign]
    held.release()
    await held.task


async def _runs_too_many(stage: Stage) -> None:
    scheduler = stage.scheduler()
    await stage.canaries(scheduler)
    scheduler._home.admission._interactive_door = 3
    crowd = [hold(scheduler) for _ in range(3)]
    await settle()
    for held in crowd:
        held.release()
    await settle()


async def _miscounts(stage: Stage) -> None:
    scheduler = stage.scheduler()
    await scheduler.submit("batch", noop)
    scheduler._tallies["batch"].completed -= 1
    scheduler._tallies["batch"].failed += 1


async def _logs(stage: Stage) -> None:
    logging.getLogger("asyncio").warning("something")


async def _warns(stage: Stage) -> None:
    warnings.warn("something", stacklevel=1)


async def _never_awaits(stage: Stage) -> None:
    noop()  # type: ignore[unused-coroutine]


async def _calls_the_exception_handler(stage: Stage) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "something"})


async def _destroys_a_pending_task(stage: Stage) -> None:
    async def waits_for_itself() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(waits_for_itself())
    await settle()
    del task


FAULTS = [
    _leaves_a_task,
    _leaves_a_timer,
    _leaves_a_call,
    _leaks_a_slot,
    _runs_too_many,
    _miscounts,
    _logs,
    _warns,
    _never_awaits,
    _calls_the_exception_handler,
    _destroys_a_pending_task,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_fault_does_not_pass(fault: Callable[[Stage], Awaitable[None]]) -> None:
    with pytest.raises(AssertionError):
        _play(fault, "default")


@scenario
@each_door
async def test_work_of_every_ending_passes(stage: Stage, run: Door) -> None:
    scheduler = stage.scheduler()

    async def fails() -> None:
        raise ConnectionError

    tasks = [start(run(scheduler, kind, job)) for kind in ("interactive", "batch") for job in (noop, fails) * 3]
    tasks += [start(run(scheduler, "batch", asyncio.sleep, 5, run_timeout=stage.seconds(1)))]
    tasks += [start(run(scheduler, "batch", noop, queue_timeout=0))]
    tasks += [start(run(scheduler, "batch", asyncio.sleep, 5))]
    await settle()
    tasks[-1].cancel()
    await asyncio.wait(tasks)
    await stage.canaries(scheduler)

    assert scheduler.endings == {"completed": 8, "failed": 6, "timed_out": 1, "rejected": 1, "cancelled": 1}
