"""One arm on one instance: what is kept of a run."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest

from llm_traffic_scheduler.simulation.comparison.families import OURS, Candidate, Room, candidates
from llm_traffic_scheduler.simulation.comparison.instances import Instance
from llm_traffic_scheduler.simulation.comparison.trials import Trial, run_trial, seconds_to_open

ROOM = Room(max_concurrency=32, batch_max=16)
CALM = Instance("steady", 0, 60.0)
ARMS = {(candidate.family, candidate.setting): candidate for candidate in candidates()}
ALONE = run_trial(Trial(CALM, ROOM))


def trial(family: str, setting: str, instance: Instance = CALM) -> Trial:
    return Trial(instance, ROOM, ARMS[family, setting], ALONE.p95)


def test_without_an_arm_there_is_no_batch() -> None:
    assert (ALONE.goodput, ALONE.most_starts, ALONE.limit_turns) == (0.0, 0, None)
    assert 0 < ALONE.ttft_p95 < ALONE.p50 < ALONE.p95 < ALONE.p99


def test_a_wider_split_has_more_goodput_and_a_higher_p95() -> None:
    narrow, wide = (run_trial(trial("static split", limit)) for limit in ("1", "17"))

    assert (narrow.calls, narrow.idle_slots) == (wide.calls, 15.0)
    assert wide.idle_slots < 1.0  # interactive calls had them, at the cap
    assert narrow.goodput < wide.goodput
    assert narrow.p95 < wide.p95


def test_only_arms_with_a_target_keep_a_share_within_it_and_only_moving_limits_turn() -> None:
    fixed, ours = run_trial(trial("static split", "4")), run_trial(trial(OURS, "1.4 x"))

    assert (fixed.within_target, fixed.limit_turns) == (None, None)
    assert ours.within_target is not None
    assert 0.5 < ours.within_target <= 1.0
    assert ours.total_turns is not None


def test_the_threshold_of_the_literal_law_goes_with_the_p95_without_batch() -> None:
    literal = ARMS["literal law", "1 x"]
    strict, lax = (run_trial(Trial(CALM, ROOM, literal, p95_alone)) for p95_alone in (1e-6, 1e6))

    assert strict.goodput < lax.goodput / 2


def test_a_law_that_reads_first_tokens_and_tokens_is_told_of_them() -> None:
    scavenger = ARMS["scavenger", "rise 0.2"]
    told, untold = (run_trial(Trial(CALM, ROOM, replace(scavenger, reports=reports))) for reports in (True, False))

    assert scavenger.reports
    assert told == run_trial(Trial(CALM, ROOM, scavenger))
    assert told != untold


def test_bursts_are_looked_for_in_bursts_only() -> None:
    assert run_trial(trial("static split", "4")).bursts == ()
    assert len(run_trial(trial("static split", "4", Instance("burst", 0, 120.0))).bursts) == 1


def test_a_trial_says_what_it_is_and_goes_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(trial("fixed total", "16")))

    assert repr(sent) == "fixed total 16 on steady, seed 0, A100"
    assert repr(Trial(CALM, ROOM)) == "no batch on steady, seed 0, A100"
    assert run_trial(sent) == run_trial(trial("fixed total", "16"))


def test_a_cold_start_is_over_when_batch_max_calls_run() -> None:
    fixed, never = ARMS["static split", "17"], ARMS["static split", "8"]

    assert seconds_to_open(fixed, ROOM, span=5.0) == pytest.approx(0.25)
    assert seconds_to_open(never, ROOM, span=5.0) == math.inf
    assert 20 < seconds_to_open(ARMS[OURS, "1.4 x"], ROOM) <= 60


def test_the_backlog_presses_through_the_arm_alone() -> None:
    closed = Candidate("closed", "", ARMS["static split", "1"].build)

    assert run_trial(Trial(CALM, ROOM, closed, ALONE.p95)) == run_trial(trial("static split", "1"))
