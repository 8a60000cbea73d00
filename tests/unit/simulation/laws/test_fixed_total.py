"""A fixed total: batch has what interactive calls leave of it, at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_traffic_scheduler import ConfigError, Signals
from llm_traffic_scheduler.simulation.laws import FixedTotal

SIGNALS = Signals(max_concurrency=128, batch_max=64, batch_min=2)


@pytest.mark.parametrize(
    "total, running, queued, limit",
    [(48, 0, 0, 48), (48, 10, 0, 38), (48, 10, 5, 33), (48, 60, 0, 2), (200, 10, 0, 64), (1, 0, 0, 2)],
)
def test_the_limit_is_what_interactive_calls_leave_of_the_total(
    total: int, running: int, queued: int, limit: int
) -> None:
    signals = replace(SIGNALS, interactive_running=running, interactive_queued=queued)

    assert FixedTotal(total).decide(0.0, signals).limit == limit


def test_while_throttled_the_floor_holds() -> None:
    decision = FixedTotal(48).decide(5.0, replace(SIGNALS, throttled_until=7.0))

    assert (decision.limit, decision.reason, decision.valid_until) == (2, "throttled", 7.0)
    assert FixedTotal(48).decide(7.0, replace(SIGNALS, throttled_until=7.0)).limit == 48


@pytest.mark.parametrize("total", [0, -1, 1.5, True])
def test_a_total_that_is_no_number_of_calls_is_refused(total: int) -> None:
    with pytest.raises(ConfigError, match="total must be a whole number, at least 1"):
        FixedTotal(total)


def test_it_shows_its_total() -> None:
    assert repr(FixedTotal(48)) == "FixedTotal(48)"
