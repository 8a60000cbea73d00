"""Calls that wait and take no place from others: those that gave their slot up, may get one lent, or are bulk work.

Keeps the core's part of promises 7 and 8 of SEMANTICS.md where such calls are about.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_traffic_scheduler.core.admission import AWAY, GONE, QUEUED, RUNNING, Admission
from tests.unit.core.jobs import Job, arrive, make_admission, occupy, release


def full(bound: int) -> Admission[Job]:
    """No free slot, and so many of each kind may wait."""
    admission = make_admission()
    occupy(admission)
    admission.set_limits(replace(admission.limits, max_queued_interactive=bound, max_queued_batch=bound))
    return admission


def step_aside(admission: Admission[Job], job: Job, now: float) -> None:
    """It gives its slot up and waits for it at once; nobody else gets it meanwhile."""
    admission.give_up(job)
    admission.come_back(job, now)


@pytest.mark.parametrize("interactive", [True, False])
def test_an_exempt_call_waits_however_full_its_queue_is(interactive: bool) -> None:
    admission = full(0)

    assert admission.offer(Job(interactive)) == GONE
    assert admission.offer_as(Job(interactive), True) == QUEUED


@pytest.mark.parametrize("why", [True, False, None], ids=["nested", "came back", "bulk"])
@pytest.mark.parametrize("interactive", [True, False])
def test_who_stands_aside_leaves_room_in_the_queue_of_its_kind_and_only_there(
    interactive: bool, why: bool | None
) -> None:
    admission = full(1)
    returned = Job(interactive)
    assert admission.offer_as(returned, True) == QUEUED
    admission.aside[returned] = why
    assert admission.offer(Job(not interactive)) == QUEUED

    assert admission.offer(Job(not interactive)) == GONE
    assert admission.offer(Job(interactive)) == QUEUED
    assert admission.offer(Job(interactive)) == GONE
    admission.withdraw(returned)
    assert (admission.offer(Job(interactive)), len(admission.aside)) == (GONE, 0)
    admission.check()


def test_each_kind_has_a_bound_of_its_own_to_tell() -> None:
    admission = make_admission()
    admission.set_limits(replace(admission.limits, max_queued_interactive=3, max_queued_batch=5))

    assert admission.bound(True) == 3
    assert admission.bound(False) == 5


@pytest.mark.parametrize("interactive", [True, False])
def test_a_call_that_comes_back_waits_without_a_deadline_and_may_leave(interactive: bool) -> None:
    admission = make_admission()
    job = Job(interactive, deadline=5.0)
    arrive(admission, job)
    occupy(admission)

    admission.give_up(job)
    assert (job.state, list(admission.away), admission.running) == (AWAY, [job], 1)
    assert not admission.idle
    admission.come_back(job, 7.0)
    assert (job.state, job.queued_at, list(admission.away)) == (QUEUED, 7.0, [])
    assert admission.aside == {job: False}
    assert admission.expire(100.0) == []
    assert admission.oldest_wait(interactive, 9.0) == 2.0

    admission.withdraw(job)

    assert (job.state, len(admission.aside)) == (GONE, 0)
    admission.check()


def test_a_call_that_gets_its_slot_back_is_a_call_like_any_other() -> None:
    admission = make_admission()
    job, *_ = occupy(admission)
    step_aside(admission, job, 1.0)

    assert admission.fill(2.0) == [job]

    assert (job.state, job.started_at, len(admission.aside)) == (RUNNING, 2.0, 0)
    admission.check()


def test_interactive_work_that_comes_back_does_not_set_starving_batch_back() -> None:
    admission = make_admission()
    admission.set_limits(replace(admission.limits, starvation_timeout=30.0))
    first, second = occupy(admission)
    nightly = Job(interactive=False, submitted=10.0)
    arrive(admission, nightly)

    step_aside(admission, first, 39.0)

    assert admission.fill(40.0) == [nightly]
    assert release(admission, second, 41.0) == [first]


def test_batch_that_comes_back_to_an_empty_queue_starves_from_then_on() -> None:
    admission = make_admission()
    admission.set_limits(replace(admission.limits, starvation_timeout=30.0))
    nightly, chat = Job(interactive=False), Job()
    arrive(admission, nightly, chat)
    admission.give_up(nightly)
    first, second = Job(submitted=100.0), Job(submitted=100.0)
    arrive(admission, first)

    admission.come_back(nightly, 100.0)
    arrive(admission, second)

    assert release(admission, chat, 129.0) == [second]
    arrive(admission, Job(submitted=129.0))
    assert release(admission, first, 130.0) == [nightly]


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("interactive", [True, False])
def test_one_that_comes_back_hides_nobody_who_has_waited_longer(interactive: bool, tenant: str | None) -> None:
    admission = make_admission()
    first, second = Job(interactive, tenant=tenant), Job(interactive, submitted=1.0, tenant=tenant)
    arrive(admission, first)
    occupy(admission)
    admission.give_up(first)
    arrive(admission, Job(submitted=1.0))
    arrive(admission, Job(interactive, priority=9, submitted=1.0, tenant=tenant))
    arrive(admission, second)

    admission.come_back(first, 50.0)

    assert admission.oldest_wait(interactive, 60.0) == 59.0
    admission.check()


def test_whoever_came_back_last_hides_no_older_call_from_the_window() -> None:
    admission = make_admission()
    old, young = Job(), Job(submitted=50.0)
    arrive(admission, old, young)
    for job in (old, young):
        admission.give_up(job)
    arrive(admission, *[Job(submitted=55.0, priority=9) for _ in range(3)])

    admission.come_back(old, 60.0)
    admission.come_back(young, 61.0)

    assert admission.oldest_unfinished(70.0) == 70.0
    assert admission.unfinished(70.0, 30.0) == ([70.0], 50.0)
    admission.check()


def test_a_call_that_waits_for_the_second_time_is_one_sample() -> None:
    admission = make_admission(max_concurrency=1)
    holder, *waiting = [Job(priority=priority) for priority in (0, 9, 8, 7, 1)]
    arrive(admission, holder, *waiting)
    agent = waiting[-1]
    assert release(admission, holder) == [agent]
    admission.give_up(agent)
    admission.fill(1.0)

    admission.come_back(agent, 2.0)

    assert admission.unfinished(10.0, 5.0)[0] == [10.0] * 4
    admission.check()


@pytest.mark.parametrize("interactive", [True, False])
def test_while_a_call_is_away_admission_is_not_idle(interactive: bool) -> None:
    admission = make_admission()
    job = Job(interactive)
    arrive(admission, job)

    admission.give_up(job)
    assert (admission.running, admission.idle) == (0, False)
    admission.leave(job)

    assert (job.state, admission.idle) == (GONE, True)


def test_who_takes_a_slot_back_hears_how_many_wait_for_one() -> None:
    admission = make_admission()
    first, second = occupy(admission)
    arrive(admission, Job(), Job(interactive=False), Job(interactive=False))

    assert admission.release(first) == 3
    assert admission.release(second) == 3
