"""An operator reads in a few lines who runs, who waits, what the batch limit is and why.

Keeps MISSION.md's table of symptoms as far as `explain()` answers it, and the closed set of reasons of API.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, get_args

import pytest

from llm_traffic_scheduler import Decision, LimitRecord, Signals, TrafficScheduler, TrafficSnapshot
from llm_traffic_scheduler.advice import Circumstances
from llm_traffic_scheduler.explain import describe, explain, outlook
from llm_traffic_scheduler.snapshot import Reason

IDLE = TrafficScheduler(
    max_concurrency=8,
    batch_max_concurrency=6,
    interactive_rps_threshold=20.0,
    interactive_p95_threshold=0.5,
    name="gpu",
).snapshot()


def told(around: Circumstances | None = None, /, **state: Any) -> str:
    return explain(replace(IDLE, **state), around or Circumstances())


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
    held_back = {"running": 2, "batch_running": 2, "batch_limit": 2, "batch_queued": 1}
    moves = Circumstances(outlook=("it rises at dawn", "it falls at dusk"))

    assert "rises when the pressure falls" in told(**held_back)
    assert "limit: it rises at dawn\nbatch limit: it falls at dusk\nbatch waits for its limit" in told(
        moves, **held_back
    )
    assert "when the pressure falls" not in told(moves, **held_back)


def test_there_is_no_hint_while_no_batch_waits_or_batch_is_paused() -> None:
    full = {"running": 8, "batch_running": 6, "interactive_running": 2}

    assert "waits for" not in told(**full)
    assert "waits for" not in told(**full, batch_queued=5, paused=frozenset({"batch"}))


def test_a_pause_is_shown_with_what_ends_it() -> None:
    text = told(paused=frozenset({"interactive", "batch"}))

    assert "batch is paused: nothing of it starts until resume('batch')" in text
    assert "interactive is paused: nothing of it starts until resume('interactive')" in text


def test_calls_that_swallow_cancellation_and_faults_are_shown() -> None:
    assert "2 past their run timeout run on and keep their slots: they swallow" in told(overdue=2)
    assert "1 past its run timeout runs on and keeps its slot: it swallows" in told(overdue=1)
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


def test_one_is_one_and_two_are_two() -> None:
    traffic = TrafficSnapshot(rps=0.1, p50=0.2, p95=0.2, p99=0.2, sample_count=1)

    assert "1 tenant runs as many" in told(tenants_at_bound=1)
    assert "2 tenants run as many" in told(tenants_at_bound=2)
    assert "1 of those that wait is inside released() and needs" in told(released=1)
    assert "2 of those that wait are inside released() and need" in told(released=2)
    assert told(interactive=traffic).count("of 1 call\n") == 1


def test_a_limit_is_told_since_when_it_is_what_it_is() -> None:
    history = (LimitRecord(10.0, 3, 0.6, "calm"), LimitRecord(30.0, 6, 0.0, "calm"))

    text = told(Circumstances(now=42.0, history=history))

    assert "batch limit: at 6 for 12 s (3 before), by 'calm' for 32 s" in text


def test_what_was_warned_of_shows_unless_it_shows_as_it_is_now() -> None:
    warned = {"still": "batch stood still", "never": "thresholds never bite"}
    still = Circumstances(still_for=70.0, holders="nobody knows", warnings=warned)

    assert "warned: batch stood still\nwarned: thresholds never bite" in told(Circumstances(warnings=warned))
    assert "for 70 s: nobody knows\nwarned: thresholds never bite" in told(still, batch_queued=2)
    assert "batch stood still" not in told(still, batch_queued=2)


class Talking:
    """A law that says of itself what the test wants, or raises it."""

    def __init__(self, words: Any, prospects: Any) -> None:
        self.words, self.prospects = words, prospects

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(3, 0.5, "budget")

    def describe(self, now: float, decision: Decision, signals: Signals) -> Any:
        return self._say(self.words)

    def outlook(self, now: float, decision: Decision, signals: Signals) -> Any:
        return self._say(self.prospects)

    def _say(self, what: Any) -> Any:
        if isinstance(what, BaseException):
            raise what
        return what


def test_a_policy_explains_itself_in_its_own_words() -> None:
    scheduler = TrafficScheduler(max_concurrency=8, policy=Talking("the moon is full", ("wait for dawn",)))

    assert scheduler.snapshot().detail == "3 of 6 batch calls may run: the moon is full"
    assert scheduler.snapshot().reason == "budget"
    assert "batch limit: wait for dawn" in scheduler.explain().splitlines()


@pytest.mark.parametrize("words", [None, "", 3, ValueError("no words"), asyncio.CancelledError(), ["a list"]])
@pytest.mark.parametrize("prospects", [None, (), (3, None), 7, ValueError("no prospects"), "no tuple"])
def test_a_policy_that_cannot_explain_itself_is_explained_by_its_reason(words: Any, prospects: Any) -> None:
    scheduler = TrafficScheduler(max_concurrency=8, policy=Talking(words, prospects))

    assert "may run: interactive calls take their share" in scheduler.snapshot().detail
    assert scheduler.explain().count("batch limit: ") == 1
    assert scheduler.snapshot().policy_faults == 0


def test_a_policy_is_not_asked_about_a_decision_that_was_made_in_its_place() -> None:
    silent = Talking("I decided so", ("wait for dawn",))
    fallback = Decision(3, 0.5, "policy_failed")

    assert "the policy raised" in describe(fallback, Signals(batch_max=6), silent)[1]
    assert outlook(fallback, Signals(batch_max=6), silent, 0.0) == ()


@pytest.mark.parametrize("meant_for_the_process", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_process_is_not_kept_from_it(meant_for_the_process: type[BaseException]) -> None:
    with pytest.raises(meant_for_the_process):
        TrafficScheduler(max_concurrency=8, policy=Talking(meant_for_the_process(), ())).snapshot()


def test_the_scheduler_explains_itself_before_it_has_ever_run() -> None:
    assert TrafficScheduler(max_concurrency=2).explain().startswith("scheduler 'default': 0 of 2 slots taken")
