"""An operator reads in a few lines who runs, who waits, what the batch limit is and why.

Keeps MISSION.md's table of symptoms as far as `explain()` answers it, and the closed set of reasons of API.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from llm_traffic_scheduler import Decision, Signals, TrafficScheduler, TrafficSnapshot
from llm_traffic_scheduler.explain import describe, explain
from llm_traffic_scheduler.snapshot import Reason

IDLE = TrafficScheduler(
    max_concurrency=8,
    batch_max_concurrency=6,
    interactive_rps_threshold=20.0,
    interactive_p95_threshold=0.5,
    name="gpu",
).snapshot()


def told(**state: Any) -> str:
    return explain(replace(IDLE, **state))


def test_it_says_who_runs_and_who_waits() -> None:
    text = told(
        running=7,
        interactive_running=3,
        batch_running=4,
        interactive_queued=2,
        batch_queued=90,
        oldest_interactive_wait=0.25,
        oldest_batch_wait=61.5,
        interactive=TrafficSnapshot(rps=12.5, p50=0.2, p95=0.4, p99=0.8, sample_count=125),
    )

    assert "scheduler 'gpu': 7 of 8 slots taken" in text
    assert "interactive: 3 running, 2 waiting (longest 0.25 s), 12.5 arrivals/s" in text
    assert "P95 0.4 s, P99 0.8 s of 125 calls" in text
    assert "batch: 4 running, 90 waiting (longest 61.5 s)" in text


def test_it_says_what_the_limit_is_and_why() -> None:
    assert "batch limit: 6 of 6 batch calls may run: no interactive traffic in the window" in told()


def test_batch_that_waits_behind_a_full_house_is_told_that_running_calls_are_not_stopped() -> None:
    assert "running calls are not stopped" in told(running=8, batch_running=6, batch_queued=1)


def test_batch_that_waits_for_its_limit_is_told_what_raises_it() -> None:
    assert "rises when the pressure falls" in told(running=2, batch_running=2, batch_limit=2, batch_queued=1)


def test_there_is_no_hint_while_no_batch_waits_or_batch_is_paused() -> None:
    full = {"running": 8, "batch_running": 6, "interactive_running": 2}

    assert "waits for" not in told(**full)
    assert "waits for" not in told(**full, batch_queued=5, paused=frozenset({"batch"}))


def test_a_pause_is_shown_with_what_ends_it() -> None:
    text = told(paused=frozenset({"interactive", "batch"}))

    assert "batch is paused: nothing of it starts until resume('batch')" in text
    assert "interactive is paused: nothing of it starts until resume('interactive')" in text


def test_calls_that_swallow_cancellation_and_faults_are_shown() -> None:
    assert "2 past their run timeout run on" in told(overdue=2)
    assert "faults: 3 of the policy, 1 of listeners" in told(policy_faults=3, listener_faults=1)
    assert "faults" not in told()


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_has_a_sentence_of_its_own(reason: str) -> None:
    code, detail = describe(Decision(3, 0.5, reason), Signals(batch_max=6))

    assert code == reason
    assert detail.startswith("3 of 6 batch calls may run: ")
    assert reason == "policy" or "the policy says" not in detail


def test_a_reason_of_a_users_own_is_shown_as_policy_and_quoted() -> None:
    code, detail = describe(Decision(2, 0.75, "moon is full"), Signals(batch_max=6))

    assert code == "policy"
    assert detail == "2 of 6 batch calls may run: the policy says 'moon is full' at pressure 0.75"


@pytest.mark.parametrize(
    "reason, words",
    [("arrivals", "15 interactive calls per second are 75% of"), ("latency", "P95 of 0.6 s is 75% of")],
)
def test_the_sentence_carries_the_numbers(reason: str, words: str) -> None:
    _, detail = describe(Decision(2, 0.75, reason), Signals(batch_max=6, rps=15.0, p95=0.6))

    assert words in detail


def test_the_scheduler_explains_itself_before_it_has_ever_run() -> None:
    assert TrafficScheduler(max_concurrency=2).explain().startswith("scheduler 'default': 0 of 2 slots taken")
