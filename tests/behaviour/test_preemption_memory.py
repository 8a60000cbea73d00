"""Nothing of a call or of a run that was stopped is left, neither for its caller nor in memory. Promise 20."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from llm_traffic_scheduler.surroundings import active
from tests.behaviour.doors import start
from tests.behaviour.preempted import Work, person, preempted, run, stage
from tests.support import settle


def test_a_call_whose_coroutine_is_thrown_away_is_forgotten() -> None:
    async def main() -> None:
        scheduler, _ = await stage()
        coroutine = scheduler.submit("batch", Work(), preemptible=True)
        coroutine.send(None)
        preemption = scheduler._home.preemption
        assert preemption is not None
        assert len(preemption._running) == 1
        thread = threading.Thread(target=coroutine.close)
        thread.start()
        thread.join()
        await settle()
        assert not preemption._running
        assert scheduler.snapshot().batch_running == 1

    asyncio.run(main())


async def test_no_frame_of_a_run_that_was_stopped_is_kept() -> None:
    scheduler, _ = await stage()

    class Big:
        """Something that a run holds."""

    async def work() -> None:
        big = Big()
        await gate.wait()
        del big

    gate = asyncio.Event()
    task = await run(scheduler, work)
    first = await person(scheduler)
    assert first.started
    gc.disable()
    try:
        assert not [each for each in gc.get_objects() if isinstance(each, Big)]
    finally:
        gc.enable()
    first.release()
    await settle()
    gate.set()
    await task


class Payload:
    """Something whose end is seen."""


async def fail(payload: Payload) -> None:
    await asyncio.sleep(0)
    raise ConnectionError(payload)


@pytest.mark.parametrize("again", [False, True])
async def test_nothing_of_a_call_outlives_it_even_without_a_garbage_collector(again: bool) -> None:
    scheduler, _ = await stage()
    gate = asyncio.Event()

    async def wait(payload: Payload) -> Payload:
        await gate.wait()
        return payload

    async def caller(payload: Payload) -> None:
        if again:
            await scheduler.submit("batch", wait, payload, preemptible=True)
        else:
            await scheduler.submit("batch", lambda: asyncio.ensure_future(fail(payload)), preemptible=True)

    async def one_call() -> weakref.ref[Payload]:
        payload = Payload()
        task = start(caller(payload))
        await settle()
        if again:
            (await person(scheduler)).release()
            assert preempted(scheduler) == 1
            await settle()
            gate.set()
        await asyncio.wait([task])
        return weakref.ref(payload)

    gc.collect()
    gc.disable()
    try:
        payload = await one_call()
        await settle()
        assert payload() is None
    finally:
        gc.enable()


async def test_the_caller_is_outside_of_its_calls_afterwards_however_they_end() -> None:
    scheduler, _ = await stage()

    async def caller() -> None:
        await scheduler.submit("batch", work, preemptible=True)
        assert active.get() is None
        with pytest.raises(ConnectionError):
            await scheduler.submit("batch", fail, Payload(), preemptible=True)
        assert active.get() is None

    work = Work()
    task = start(caller())
    await settle()
    (await person(scheduler)).release()
    await settle()
    work.gate.set()
    await task
    assert work.runs == 2
