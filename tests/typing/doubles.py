"""What type checkers know of the doubles for tests and of calibrations.

Checked by `mypy --strict`, never run, as public_api.py says.
"""

from __future__ import annotations

from typing import assert_type

from llm_traffic_scheduler import Calibration, CalibrationPoint, Slot, TrafficScheduler, calibrate
from llm_traffic_scheduler.testing import HeldSlots, VirtualTimeLoop, hold, run_virtual, unlimited
from tests.typing.asked import ask, ping, scheduler


def virtual_time_returns_what_the_main_coroutine_does() -> None:
    assert_type(run_virtual(ask("why?")), list[str])
    assert_type(VirtualTimeLoop().time(), float)


async def doubles_have_the_types_of_the_real_thing() -> None:
    with hold(scheduler, 2) as held:
        assert_type(held, HeldSlots)
    double = unlimited()
    assert_type(double.calls[0].kind, str | None)
    assert_type(await double.submit("batch", ask, "why?"), list[str])
    assert_type(await double.submit(None, ask, "why?", 0.7, label="a"), list[str])
    async with double.slot() as slot:
        assert_type(slot, Slot)

    @double.wrap()
    async def question(text: str) -> bytes:
        return text.encode()

    assert_type(await question(text="why?"), bytes)
    await double.submit("batch", ask, 3)  # type: ignore[arg-type]
    await question(3)  # type: ignore[arg-type]


async def a_calibration_makes_a_scheduler_or_has_gaps() -> None:
    result = await calibrate(ping, rates=[1, 2.5], seconds_per_rate=20, progress=lambda share, text: print(share, text))
    assert_type(result, Calibration)
    assert_type(result.max_concurrency, int | None)
    assert_type(result.interactive_rps_threshold, float | None)
    assert_type(result.points, tuple[CalibrationPoint, ...])
    assert_type(result.points[0].p95, float | None)
    TrafficScheduler(**result.arguments())
    TrafficScheduler(batch_max_concurrency=2, **result.arguments())
    await calibrate(lambda: ask("why?"), rates=(1, 2), seconds_per_rate=20.0, is_throttled=lambda error: 3.0)

    TrafficScheduler(max_concurrency=result.max_concurrency)  # type: ignore[arg-type]
    await calibrate(ask, rates=[1], seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping(), rates=[1], seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping, rates=[1])  # type: ignore[call-arg]
    await calibrate(ping, rates=3, seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping, rates=[1], seconds_per_rate=20, is_throttled=lambda error: "yes")  # type: ignore[arg-type, return-value]
