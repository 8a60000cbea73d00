"""A limit that never moves, whatever the traffic.

Keeps the part of API.md on `FixedPolicy`.
"""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler import ConfigError, Decision, FixedPolicy, LimitPolicy, Signals


def test_the_limit_is_the_one_given_whatever_the_signals() -> None:
    policy = FixedPolicy(3)
    storm = Signals(
        max_concurrency=8, batch_max=6, rps=1e9, p95=math.inf, interactive_queued=500, throttled_until=math.inf
    )
    policy.advance(1.0, storm)

    assert policy.decide(0.0, Signals()) == policy.decide(1e9, storm) == Decision(3, 0.0, "fixed", math.inf)


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, None, math.nan])
def test_a_limit_that_is_no_whole_number_above_zero_is_refused(limit: int) -> None:
    with pytest.raises(ConfigError, match=r"^limit must be "):
        FixedPolicy(limit)


def test_it_reads_no_signal_so_its_answer_is_kept_for_ever() -> None:
    policy = FixedPolicy(1)

    assert policy.reads == frozenset()
    assert isinstance(policy, LimitPolicy)


def test_repr_shows_the_limit() -> None:
    assert repr(FixedPolicy(4)) == "FixedPolicy(4)"


def test_it_says_that_no_traffic_moves_it_and_what_raises_it() -> None:
    policy, signals = FixedPolicy(3), Signals(batch_max=6)

    assert policy.describe(0.0, Decision(3), signals) == "the limit is fixed"
    assert "configure(policy=FixedPolicy(...)) raises it, up to 6" in policy.outlook(0.0, Decision(3), signals)[0]
    assert "all that batch_max_concurrency (6) allows" in policy.outlook(0.0, Decision(6), signals)[0]
