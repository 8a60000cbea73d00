"""Slots of a scheduler that are taken, for the tests of calls inside of calls."""

from __future__ import annotations

from typing import Any

from llm_traffic_scheduler import TrafficScheduler
from tests.support import hold, settle

__all__ = ["full"]


async def full(scheduler: TrafficScheduler, slots: int = 1) -> list[Any]:
    """Interactive calls in so many slots."""
    held = [hold(scheduler) for _ in range(slots)]
    await settle()
    return held
