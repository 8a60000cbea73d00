"""What the adaptive law says of itself: the numbers it goes by, and what would move them."""

from __future__ import annotations

from llm_traffic_scheduler import AdaptivePolicy, Arrived, Ended, Signals

ROOM = Signals(max_concurrency=48, batch_max=40, batch_running=10, batch_queued=5)


def learnt(policy: AdaptivePolicy, *, calls: int = 100, latency: float = 1.0) -> float:
    """Let the policy see calls of one latency, one after the other; returns the time then."""
    now = 0.0
    policy.advance(now, ROOM)
    for call in range(1, calls + 1):
        policy.observe(now, Arrived(call))
        now += latency
        policy.advance(now, ROOM)
        policy.observe(now, Ended(call, latency))
    return now


def told(policy: AdaptivePolicy, now: float, signals: Signals = ROOM) -> tuple[str, str, tuple[str, ...]]:
    decision = policy.decide(now, signals)
    return decision.reason, policy.describe(now, decision, signals), policy.outlook(now, decision, signals)


def with_interactive(running: int) -> Signals:
    return Signals(max_concurrency=48, batch_max=40, batch_running=10, batch_queued=5, interactive_running=running)


def test_without_a_target_it_names_the_reserve_and_how_to_give_one() -> None:
    reason, why, outlook = told(AdaptivePolicy(), 0.0, with_interactive(3))

    assert reason == "headroom"
    assert why == "3 interactive calls and a reserve of 8 come first; there is no target to learn from"
    assert outlook[0] == "each interactive call takes one off it: with about 36 more at once it is at its minimum of 1"
    assert "p95_target" in outlook[1]


def test_the_first_calls_are_counted() -> None:
    policy = AdaptivePolicy(p95_target=2.0)
    now = learnt(policy, calls=4)

    reason, why, _ = told(policy, now)

    assert reason == "learning"
    assert why == "4 of the first 10 interactive calls have ended; until then three batch calls"


def test_the_total_and_what_comes_off_it_are_told_with_the_target() -> None:
    policy = AdaptivePolicy(p95_target=1.05)
    now = learnt(policy)
    policy.observe(now, Arrived(1000))

    reason, why, outlook = told(policy, now, with_interactive(1))

    assert reason == "budget"
    assert "keeps the p95_target of 1.05 s, as far as is known from 100 calls; 1 interactive call and 0.8 for" in why
    assert "it is at its minimum of 1" in outlook[0]
    assert outlook[-1] == "shorter calls, a faster backend or a higher p95_target let it rise, up to 40"


def test_as_many_more_calls_as_it_says_bring_the_limit_to_its_minimum() -> None:
    policy = AdaptivePolicy(p95_target=1.05)
    now = learnt(policy)
    _, _, outlook = told(policy, now)
    more = int(outlook[0].split("about ")[1].split(" more")[0])

    for call in range(more):
        assert policy.decide(now, with_interactive(call)).limit > 1
        policy.observe(now, Arrived(1000 + call))

    assert policy.decide(now, with_interactive(more)).limit == 1


def test_a_total_on_its_way_says_where_to() -> None:
    policy = AdaptivePolicy(p95_target=20.0)
    now = learnt(policy, calls=20)

    _, _, outlook = told(policy, now)

    assert any(line.startswith("the total rises to ") for line in outlook)


def test_late_calls_are_counted_where_the_backend_stalls() -> None:
    policy = AdaptivePolicy(p95_target=2.0)
    now = learnt(policy)
    for call in range(3):
        policy.observe(now, Arrived(1000 + call))
    policy.advance(now + 2.5, ROOM)

    reason, why, _ = told(policy, now + 2.5, with_interactive(3))

    assert reason == "stalled"
    assert why == "3 of 3 interactive calls are past the p95_target of 2 s already"


def test_of_several_targets_the_one_that_holds_is_named() -> None:
    policy = AdaptivePolicy(p95_target=50.0, ttft_target=1.05)
    now = learnt(policy)

    _, why, _ = told(policy, now)

    assert "ttft_target of 1.05 s" in why


def test_bounds_that_leave_no_room_are_told() -> None:
    policy = AdaptivePolicy(p95_target=2.0)
    narrow = Signals(max_concurrency=8, batch_max=4, batch_min=4)
    policy.advance(0.0, narrow)

    _, _, outlook = told(policy, 0.0, narrow)

    assert outlook == ("batch_min_concurrency equals batch_max_concurrency (4): nothing moves the limit",)


def test_a_throttled_limit_says_for_how_long() -> None:
    policy = AdaptivePolicy(p95_target=2.0)

    _, why, _ = told(policy, 10.0, Signals(max_concurrency=8, batch_max=6, throttled_until=12.5))

    assert why == "the backend has asked us to wait for another 2.5 s"
