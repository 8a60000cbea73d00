"""What can be read of admission, and what its checks notice.

Keeps the core's part of promises 7 (the longest wait is visible), 29 (unfinished calls) and 33 of SEMANTICS.md.
"""

from __future__ import annotations

import math

import pytest

from tests.unit.core.jobs import Job, arrive, batch, make_admission, occupy, release


def test_the_longest_wait_of_a_kind_is_that_of_its_oldest_call_whatever_the_priorities() -> None:
    admission = make_admission()
    first, _ = occupy(admission)
    arrive(admission, Job(priority=9, submitted=1.0))
    arrive(admission, urgent := Job(priority=0, submitted=5.0))

    assert release(admission, first, 6.0) == [urgent]
    assert admission.oldest_wait(True, 8.0) == 7.0
    assert admission.oldest_wait(False, 8.0) == 0.0


def test_unfinished_calls_are_those_that_run_and_those_that_wait() -> None:
    admission = make_admission()
    arrive(admission, Job(submitted=0.0))
    arrive(admission, Job(submitted=4.0))
    arrive(admission, Job(submitted=6.0))
    arrive(admission, Job(submitted=9.0))

    assert admission.unfinished(10.0, 3.0) == ([10.0, 6.0, 4.0], 9.0)
    assert admission.oldest_unfinished(10.0) == 10.0


def test_unfinished_calls_come_oldest_first_whatever_the_order_of_their_starts() -> None:
    admission = make_admission()
    first, second = occupy(admission)
    arrive(admission, Job(priority=1, submitted=2.0), Job(priority=0, submitted=6.0))
    release(admission, first, 7.0)
    release(admission, second, 7.0)

    assert admission.unfinished(10.0, 1.0) == ([8.0, 4.0], math.inf)


def test_an_age_equal_to_the_threshold_has_not_joined_yet() -> None:
    admission = make_admission()
    arrive(admission, Job(submitted=7.0))

    assert admission.unfinished(10.0, 3.0) == ([], 7.0)


def test_calls_that_are_not_observed_are_no_unfinished_calls() -> None:
    admission = make_admission()
    arrive(admission, Job(observed=False), Job(submitted=2.0), Job(observed=False), Job(submitted=5.0))

    assert admission.unfinished(10.0, 1.0) == ([8.0, 5.0], math.inf)
    assert admission.oldest_unfinished(10.0) == 8.0


def test_batch_calls_are_no_unfinished_interactive_calls() -> None:
    admission = make_admission()
    arrive(admission, batch(), batch())

    assert admission.unfinished(10.0, 1.0) == ([], math.inf)
    assert admission.oldest_unfinished(10.0) == 0.0


def test_calls_lists_those_that_run_and_then_those_that_wait_in_their_order() -> None:
    admission = make_admission()
    nightly, chat = batch(), Job()
    queued = [Job(priority=1), Job(priority=0), batch(priority=3), batch(priority=2)]
    arrive(admission, nightly, chat, *queued)

    assert list(admission.calls()) == [chat, nightly, queued[1], queued[0], queued[3], queued[2]]


def test_idle_means_that_nothing_runs_and_nothing_waits() -> None:
    admission = make_admission()
    assert admission.idle

    admission.set_paused(frozenset({"interactive"}), 0.0)
    job = Job()
    arrive(admission, job)
    assert not admission.idle

    admission.set_paused(frozenset(), 0.0)
    admission.fill(0.0)
    assert not admission.idle
    admission.release(job)
    assert admission.idle


def test_a_slot_that_was_taken_back_cannot_be_taken_back_again() -> None:
    admission = make_admission()
    job = Job()
    arrive(admission, job)
    admission.release(job)

    with pytest.raises(KeyError):
        admission.release(job)


def test_check_conserving_notices_a_call_that_may_run_and_waits() -> None:
    admission = make_admission()
    first, _ = occupy(admission)
    arrive(admission, Job())

    admission.release(first)

    with pytest.raises(AssertionError):
        admission.check_conserving(0.0)
