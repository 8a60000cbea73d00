"""Each law for comparison outlives what backends do: it yields where it should, and comes back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest

from llm_traffic_scheduler import LimitPolicy
from llm_traffic_scheduler.simulation import (
    Backend,
    FailingFast,
    Hung,
    Outage,
    Outlier,
    SimpleServer,
    Throttling,
    TimingOut,
)
from llm_traffic_scheduler.simulation.laws import AIMD, FixedTotal, Scavenger
from tests.unit.simulation.laws.driven import Crowd

LAWS: dict[str, Callable[[], LimitPolicy]] = {
    "total": lambda: FixedTotal(16),
    "aimd": lambda: AIMD(2.5),
    "scavenger": lambda: Scavenger(),
}
FAULTS: dict[str, Callable[..., Backend]] = {
    "hung": Hung,
    "timing out": TimingOut,
    "failing fast": FailingFast,
    "429 with Retry-After": partial(Throttling, retry_after=5.0),
    "429": Throttling,
    "outlier": Outlier,
    "outage": Outage,
}
every_law = pytest.mark.parametrize("law", LAWS)
every_fault = pytest.mark.parametrize("fault", FAULTS)


@every_law
@every_fault
@pytest.mark.slow
async def test_a_law_gives_way_where_nothing_is_served_and_comes_back_after_it(law: str, fault: str) -> None:
    crowd = Crowd(LAWS[law](), FAULTS[fault](SimpleServer(), start=100, until=140))

    limits = await crowd.run(270)

    before, at_the_end_of_it, after = fmean(limits[40:100]), fmean(limits[130:140]), fmean(limits[200:])
    if fault not in ("outlier", "failing fast", "outage"):
        assert at_the_end_of_it < 0.5 * before
    if fault == "outlier":
        assert min(fmean(limits[100:140]), after) > 0.7 * before
    assert after > 0.7 * before
    assert all(1 <= limit <= 20 for limit in limits)
    assert "policy_failed" not in crowd.reasons
