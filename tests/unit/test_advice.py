"""For each symptom of MISSION.md's table that a client can see, the right advice, and none where all is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_traffic_scheduler import LimitRecord, SchedulerSnapshot, TrafficScheduler, TrafficSnapshot
from llm_traffic_scheduler.advice import Circumstances, advice, held_since

IDLE = TrafficScheduler(
    max_concurrency=8,
    batch_max_concurrency=6,
    interactive_rps_threshold=20.0,
    interactive_p95_threshold=0.5,
).snapshot()
AROUND = Circumstances(now=1000.0, p95_threshold=0.5, rps_threshold=20.0, flutters=True)


def seen(p95: float = 0.1, **state: Any) -> SchedulerSnapshot:
    traffic = TrafficSnapshot(rps=5.0, p50=p95 / 2, p95=p95, p99=p95, sample_count=50)
    return replace(IDLE, interactive=traffic, **state)


SUFFERING = {"batch_limit": 1, "reason": "latency", "pressure": 2.4}


def test_a_healthy_scheduler_gets_no_advice() -> None:
    assert advice(seen(batch_running=6, batch_queued=50), AROUND) == {}


def test_p95_that_stays_high_while_batch_runs_on_is_told_that_what_runs_is_not_stopped() -> None:
    line = advice(seen(1.2, **SUFFERING, batch_running=5, oldest_batch_running=42.0), AROUND)["latency"]

    assert line.startswith(
        "P95 1.2 s stays high (threshold 0.5 s), the batch limit is at its minimum of 1, and 5 batch"
    )
    assert "the oldest for 42 s" in line
    for remedy in ("batch_max_concurrency", "run_timeout", "checkpoint()", "preemptible=True"):
        assert remedy in line


def test_p95_that_stays_high_without_batch_points_at_the_backend() -> None:
    line = advice(seen(1.2, **SUFFERING, batch_running=1), AROUND)["latency"]

    assert "with only 1 batch running" in line
    assert "other clients or instances" in line
    assert "load test whether it serves max_concurrency (8)" in line
    assert "what runs is not stopped" not in line


def test_a_law_without_a_threshold_says_itself_that_calls_are_late() -> None:
    line = advice(seen(1.2, reason="stalled", batch_limit=1, batch_running=5), Circumstances())["latency"]

    assert line.startswith("P95 1.2 s stays high, the batch limit")


@pytest.mark.parametrize(
    "twin",
    [
        seen(0.49, batch_limit=1, reason="arrivals", batch_running=5),  # within the threshold
        seen(1.2, batch_limit=2, reason="latency", batch_running=5),  # batch has not given way yet
        replace(seen(1.2, **SUFFERING), interactive=TrafficSnapshot(p95=1.2)),  # no call has ended
    ],
)
def test_p95_that_batch_has_not_answered_yet_is_no_symptom(twin: SchedulerSnapshot) -> None:
    assert "latency" not in advice(twin, AROUND)


def test_batch_that_stands_still_for_a_minute_is_told_who_holds_the_slots() -> None:
    still = replace(AROUND, still_for=73.0, holders="8 of 8 slots are held by 8 batch calls")

    line = advice(seen(batch_queued=3), still)["still"]

    assert line == "no batch call has started or ended for 73 s: 8 of 8 slots are held by 8 batch calls"
    assert advice(seen(batch_queued=3), replace(still, still_for=59.0)) == {}
    assert advice(seen(batch_queued=0), still) == {}
    assert advice(seen(batch_queued=3, paused=frozenset({"batch"})), still) == {}


def test_a_limit_that_flutters_is_told_to_look_at_its_window() -> None:
    restless = tuple(LimitRecord(980.0 + step, 1 + 5 * (step % 2), 0.5, "latency") for step in range(20))

    line = advice(seen(), replace(AROUND, history=restless, window=1.0))["flutter"]

    assert "turned 18 times in 60 s, between 1 and 6" in line
    assert "lengthen window (1 s now) or give smoothing" in line


@pytest.mark.parametrize("twin", [{"flutters": False}, {"now": 2000.0}])
def test_a_law_that_follows_calls_or_came_to_rest_does_not_flutter(twin: dict[str, Any]) -> None:
    restless = tuple(LimitRecord(980.0 + step, 1 + 5 * (step % 2), 0.5, "latency") for step in range(20))

    assert advice(seen(), replace(AROUND, history=restless, **twin)) == {}


HELD_BACK = {"reason": "arrivals", "batch_limit": 2, "batch_running": 2, "batch_queued": 90}


def test_batch_that_piles_up_although_latency_is_fine_points_at_the_rate_threshold() -> None:
    line = advice(seen(0.1, **HELD_BACK), AROUND)["piles_up"]

    assert line.startswith("interactive_rps_threshold (20) holds batch back by the rate alone, with P95 at 20% of its")
    assert "load test" in line

    alone = advice(seen(0.1, **HELD_BACK), replace(AROUND, p95_threshold=None))["piles_up"]
    assert "give interactive_p95_threshold instead" in alone


@pytest.mark.parametrize("twin", [{"reason": "latency"}, {"batch_queued": 0}, {"batch_running": 1}, {"p95": 0.3}])
def test_batch_that_is_held_back_for_a_reason_or_not_at_all_does_not_pile_up(twin: dict[str, Any]) -> None:
    assert "piles_up" not in advice(seen(**{**HELD_BACK, **twin}), AROUND)


def test_batch_that_waits_for_long_is_told_that_it_lives_in_memory() -> None:
    line = advice(seen(batch_queued=90, oldest_batch_wait=700.0), AROUND)["memory"]

    assert line.startswith("90 batch calls wait in memory, some for 700 s, and a restart loses them")
    assert advice(seen(batch_queued=90, oldest_batch_wait=599.0), AROUND) == {}


HISTORY = (
    LimitRecord(100.0, 6, 0.0, "calm"),
    LimitRecord(900.0, 3, 0.6, "arrivals"),
    LimitRecord(940.0, 2, 0.8, "arrivals"),
    LimitRecord(960.0, 2, 0.8, "latency"),
    LimitRecord(980.0, 2, 0.7, "arrivals"),
)


def test_the_history_says_since_when_the_limit_is_held_and_by_what() -> None:
    now_held = seen(batch_limit=2, reason="arrivals")

    assert held_since(now_held, HISTORY, 1000.0) == "at 2 for 60 s (3 before), by 'arrivals' for 20 s"
    assert held_since(now_held, HISTORY[:3], 1000.0) == "at 2 for 60 s (3 before), by 'arrivals' for 100 s"
    assert held_since(seen(batch_limit=6, reason="calm"), HISTORY[:1], 101.0) == "at 6 for 1 s, by 'calm' for 1 s"


def test_a_limit_or_a_reason_that_nobody_has_asked_for_yet_has_no_past() -> None:
    assert held_since(seen(batch_limit=4, reason="arrivals"), HISTORY, 1000.0) == ""
    assert held_since(seen(batch_limit=2, reason="calm"), HISTORY, 1000.0) == "at 2 for 60 s (3 before)"
    assert held_since(seen(), (), 1000.0) == ""


def test_a_reason_of_a_users_own_is_told_by_its_name() -> None:
    moon = (LimitRecord(900.0, 2, 0.7, "moon is full"),)

    assert (
        held_since(seen(batch_limit=2, reason="policy"), moon, 1000.0) == "at 2 for 100 s, by 'moon is full' for 100 s"
    )


def test_two_changes_at_one_instant_are_told_apart() -> None:
    history = (LimitRecord(900.0, 6, 0.0, "calm"), LimitRecord(900.0, 2, 0.7, "arrivals"))

    assert held_since(seen(batch_limit=2, reason="arrivals"), history, 1000.0) == (
        "at 2 for 100 s (6 before), by 'arrivals' for 100 s"
    )
