from __future__ import annotations

import asyncio
import math

import pytest

from llm_traffic_scheduler import ConfigError, SchedulerMisuse, traffic
from tests.support import make_scheduler


async def test_timeouts_in_force_are_those_of_the_kind_unless_a_block_says_otherwise() -> None:
    scheduler = make_scheduler(interactive_queue_timeout=5, batch_queue_timeout=50, batch_run_timeout=60)

    assert scheduler.timeouts_in_force("interactive") == (5, math.inf)
    assert scheduler.timeouts_in_force("batch") == (50, 60)
    with traffic("batch", queue_timeout=7):
        assert scheduler.timeouts_in_force() == (7, 60)
        assert scheduler.timeouts_in_force("interactive") == (7, 60)
        assert await asyncio.to_thread(scheduler.timeouts_in_force) == (7, 60)
        async with scheduler.slot(queue_timeout=1, run_timeout=2):
            assert scheduler.timeouts_in_force() == (7, 60)


def test_where_no_kind_is_in_force_one_has_to_be_named() -> None:
    scheduler = make_scheduler()

    with pytest.raises(SchedulerMisuse):
        scheduler.timeouts_in_force()
    with pytest.raises(ConfigError):
        scheduler.timeouts_in_force("chat")  # type: ignore[arg-type]
