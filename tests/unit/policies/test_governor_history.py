"""What the governor keeps of its decisions: each change, no repetition, and nothing that a reader asked for."""

from __future__ import annotations

from llm_traffic_scheduler import Decision, LimitRecord, PressurePolicy
from llm_traffic_scheduler.policies.diagnosis import Range
from tests.unit.policies.governed import Asked, House, failing


def test_a_change_of_the_limit_or_of_its_reason_is_kept_and_nothing_else() -> None:
    answers = {1.0: (4, "calm"), 2.0: (4, "calm"), 3.0: (3, "calm"), 4.0: (3, "latency"), 5.0: (3, "latency")}
    house = House(Asked(lambda now, signals: Decision(answers[now][0], now / 10, answers[now][1], valid_until=now)))

    for now in answers:
        house.governor.limit(now)

    assert house.governor.history.records() == (
        LimitRecord(1.0, 4, 0.1, "calm"),
        LimitRecord(3.0, 3, 0.3, "calm"),
        LimitRecord(4.0, 3, 0.4, "latency"),
    )
    assert house.changes == [(4, 3)]  # listeners hear of limits only


def test_a_fault_and_its_end_are_kept() -> None:
    house = House(Asked(failing(ValueError(), until=3.0)))

    for now in (0.5, 1.0, 2.0, 3.0):
        house.governor.limit(now)

    kept = [(record.time, record.limit, record.reason) for record in house.governor.history.records()]
    assert kept == [(0.5, 4, "policy"), (1.0, 4, "policy_failed"), (3.0, 4, "policy")]


def test_reading_leaves_no_trace() -> None:
    house = House(Asked(lambda now, signals: Decision(4 if now < 5 else 3, valid_until=now)))
    house.governor.limit(1.0)

    house.governor.read(9.0)

    assert len(house.governor.history.records()) == 1


def test_a_burst_that_comes_and_goes_between_two_looks_shows_in_the_tide() -> None:
    house = House(PressurePolicy(rps_threshold=5.0, p95_threshold=1.0))
    for _ in range(30):
        house.arrived(1.01)
    house.completed(1.02, 0.75)

    house.arrived(60.0)

    rps, p95 = house.governor.tide.take()
    assert (rps.low, rps.high) == (0.0, 3.0)
    assert p95.low == 0.0
    assert 0.74 <= p95.high <= 0.76
    assert house.governor.tide.take() == (Range(), Range())


def test_a_policy_that_reads_counts_or_does_not_say_follows_single_calls() -> None:
    class Counting(Asked):
        reads = frozenset({"interactive_running"})

    assert not House(PressurePolicy(rps_threshold=5.0)).governor.follows_calls
    assert House(Counting()).governor.follows_calls
    assert House(Asked()).governor.follows_calls
