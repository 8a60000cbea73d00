"""What is written down of a run is what happened, however the arm behaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llm_traffic_scheduler import TrafficScheduler
from llm_traffic_scheduler.simulation import SlotServer
from llm_traffic_scheduler.simulation.arms import Unscheduled
from llm_traffic_scheduler.simulation.recording import ArmRun, CallRecord, Latency, Recorder, Sample, Steering


def test_quantiles_are_nearest_rank() -> None:
    latency = Latency.of(float(n) for n in range(100, 0, -1))

    assert latency == Latency(count=100, p50=50.0, p95=95.0, p99=99.0)
    assert Latency.of([0.3]) == Latency(1, 0.3, 0.3, 0.3)
    assert Latency.of([]) == Latency(0, 0.0, 0.0, 0.0)


async def test_a_call_is_measured_from_submit_to_completion_and_counted_only_at_the_server() -> None:
    class LateArm:
        async def submit(self, kind: str, coro_fn: Callable[..., Awaitable[None]], /, *args: object) -> None:
            await asyncio.sleep(1.0)
            await coro_fn(*args)
            await asyncio.sleep(1.5)

    recorder, server = Recorder(LateArm()), SlotServer(1)  # type: ignore[arg-type]
    call = asyncio.create_task(recorder.call("interactive", lambda: server.serve(0.75), 77))
    sampler = asyncio.create_task(recorder.sample(every=1.0))
    await call
    sampler.cancel()

    run = recorder.result("late")

    assert run.calls == (CallRecord("interactive", 0.0, 3.25, 77),)
    assert run.calls[0].latency == run.interactive.p50 == 3.25
    assert [sample.interactive for sample in run.samples] == [0, 1, 0]
    assert run.peak_at_server == 1
    assert run.limits == ()


async def test_samples_come_between_round_times_and_stop_at_the_end() -> None:
    heard: list[float] = []
    recorder = Recorder(Unscheduled())

    await recorder.sample(every=0.5, until=2.0, tick=heard.append)

    assert heard == [0.25, 0.75, 1.25, 1.75]
    assert recorder.result("").samples[0] == Sample(0.25, 0, 0, None)


async def test_the_shortest_run_has_one_sample() -> None:
    recorder = Recorder(Unscheduled())

    await recorder.sample(every=0.5, until=0.0)

    assert len(recorder.result("").samples) == 1


async def test_a_scheduler_is_asked_for_its_limit_and_pressure() -> None:
    scheduler = TrafficScheduler(max_concurrency=8, batch_max_concurrency=6, interactive_rps_threshold=1.0, window=1.0)
    recorder = Recorder(scheduler)
    await recorder.call("interactive", lambda: asyncio.sleep(0.5))
    await recorder.call("interactive", lambda: asyncio.sleep(0.1))

    await recorder.sample(every=0.1, until=0.1)

    (sample,) = recorder.result("ours").samples
    # Two arrivals within a second against a threshold of one: twice the pressure that closes the range.
    assert sample.steering == Steering(batch_limit=1, pressure=2.0)
    assert recorder.result("ours").limits == ((sample.time, 1),)


@pytest.mark.asyncio(loop_factories=["real"])
async def test_a_blocked_loop_skips_samples_and_does_not_take_them_all_at_once() -> None:
    recorder = Recorder(Unscheduled())
    sampler = asyncio.create_task(recorder.sample(every=0.01, until=0.2))
    await asyncio.sleep(0)

    while recorder.now < 0.1:
        pass
    await sampler

    times = [sample.time for sample in recorder.result("").samples]
    assert times[0] >= 0.1
    assert len(times) <= 11


def test_an_arms_calls_can_be_had_by_kind() -> None:
    chat, nightly = CallRecord("interactive", 0.0, 1.0), CallRecord("batch", 0.0, 9.0)
    run = ArmRun("arm", (chat, nightly), (), 2)

    assert run.of_kind("batch") == (nightly,)
    assert run.interactive.count == 1
