"""The other arms do what their names say, and never more at once than they are told."""

from __future__ import annotations

import asyncio

import pytest

from llm_traffic_scheduler.simulation import SlotServer
from llm_traffic_scheduler.simulation.arms import Arm, FixedSplit, SemaphoreArm, Unscheduled, opponents
from llm_traffic_scheduler.simulation.recording import ArmRun, Recorder


async def _flood(arm: Arm) -> ArmRun:
    """Twenty batch calls at once, and ten interactive ones a little later; the server takes any number."""
    server, recorder = SlotServer(100), Recorder(arm)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(recorder.call("batch", lambda: server.serve(1.0)))
        await asyncio.sleep(0.5)
        for _ in range(10):
            group.create_task(recorder.call("interactive", lambda: server.serve(0.25)))
    return recorder.result("arm")


async def test_no_scheduler_sends_everything_at_once() -> None:
    run = await _flood(Unscheduled())

    assert run.peak_at_server == 30
    assert run.interactive.p99 == pytest.approx(0.25)


async def test_a_semaphore_keeps_the_cap_and_makes_interactive_calls_wait_behind_batch() -> None:
    run = await _flood(SemaphoreArm(4))

    assert run.peak_at_server == 4
    assert min(call.latency for call in run.of_kind("interactive")) == pytest.approx(4.5 + 0.25)


async def test_a_fixed_split_keeps_cap_and_split_and_lets_interactive_calls_pass() -> None:
    arm = FixedSplit(4, 3)
    run = await _flood(arm)

    assert run.peak_at_server == 4
    # One slot is free from the start; at 1.0 all four are, and batch gets none before the last interactive call ends.
    assert run.interactive.p99 == pytest.approx(1.0)
    assert max(call.ended for call in run.of_kind("batch")) == pytest.approx(1.5 + 6)


async def test_batch_never_holds_more_than_the_split_even_when_nothing_else_runs() -> None:
    server, recorder = SlotServer(100), Recorder(FixedSplit(4, 3))
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(recorder.call("batch", lambda: server.serve(1.0)))

    assert recorder.result("arm").peak_at_server == 3


async def test_a_fixed_split_forgets_calls_that_leave_its_queue() -> None:
    arm, server = FixedSplit(2, 1), SlotServer(2)
    running, leaver, stayer = (asyncio.create_task(arm.submit("batch", server.serve, 1.0)) for _ in range(3))
    await asyncio.sleep(0.5)

    leaver.cancel()
    await asyncio.gather(running, stayer)

    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


def test_all_arms_have_the_same_cap_and_the_same_room_for_batch() -> None:
    assert list(opponents(8, 6)) == ["no scheduler", "semaphore of 8", "priority with fixed split (6)"]
