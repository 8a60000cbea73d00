"""Tenants take turns for slots, and one at its bound blocks nobody else.

Keeps the core's part of promises 2 and 6 of SEMANTICS.md where tenants are named.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from llm_traffic_scheduler.core.admission import GONE, QUEUED, RUNNING, Admission
from llm_traffic_scheduler.core.fair_queue import FairQueue
from llm_traffic_scheduler.core.priority_queue import PriorityQueue
from tests.unit.core.jobs import Job, arrive, make_admission, occupy, release


def bounded(bound: int | None, *, max_concurrency: int = 4, batch_max: int = 3) -> Admission[Job]:
    admission = make_admission(max_concurrency, batch_max)
    admission.set_limits(replace(admission.limits, max_running_per_tenant=bound))
    return admission


def of(tenant: str | None, number: int = 1, *, interactive: bool = True, priority: float = 0) -> list[Job]:
    return [Job(interactive, priority, tenant=tenant) for _ in range(number)]


def order(admission: Admission[Job], running: Job) -> list[Job]:
    """Who gets this slot, one after the other."""
    started = []
    while following := release(admission, running):
        (running,) = following
        started.append(running)
    return started


def test_a_tenant_with_one_call_does_not_wait_behind_anothers_thousand() -> None:
    admission = make_admission()
    blocker, _ = occupy(admission)
    arrive(admission, *of("a", 30))
    (only,) = of("b")
    arrive(admission, only)

    assert order(admission, blocker).index(only) == 1


def test_calls_without_a_tenant_that_already_wait_share_with_those_that_come_with_one() -> None:
    admission = make_admission()
    blocker, _ = occupy(admission)
    arrive(admission, *of(None, 4), *of("a", 2))

    assert [job.tenant for job in order(admission, blocker)] == ["a", None, "a", None, None, None]


def test_batch_tenants_share_too() -> None:
    admission = make_admission(2, 1)
    (blocker,) = of("a", interactive=False)
    arrive(admission, blocker, *of("a", 3, interactive=False), *of("b", 2, interactive=False))

    assert [job.tenant for job in order(admission, blocker)] == ["b", "a", "b", "a", "a"]


def test_queues_stay_plain_until_a_call_with_a_tenant_has_to_wait() -> None:
    admission = make_admission()
    arrive(admission, *of("a", 2), *of(None, 3))
    assert isinstance(admission.interactive_queue, PriorityQueue)
    assert admission.tenants is None

    arrive(admission, *of("a"))

    assert isinstance(admission.interactive_queue, FairQueue)
    assert admission.tenants is not None
    assert admission.tenants.running("a") == 2


def test_whoever_has_waited_longest_is_known_after_the_change_of_queues() -> None:
    admission = make_admission()
    occupy(admission)
    for at in (1.0, 2.0):
        arrive(admission, Job(submitted=at, priority=-at))
    arrive(admission, Job(submitted=3.0, tenant="a"))

    assert admission.oldest_wait(interactive=True, now=5.0) == 4.0
    assert admission.unfinished(5.0, 2.5) == ([5.0, 5.0, 4.0, 3.0], 3.0)
    first = next(iter(admission.interactive_queue.ordered()))
    admission.withdraw(first)
    assert admission.oldest_wait(interactive=True, now=5.0) == 4.0
    admission.check()


def test_a_tenant_at_its_bound_waits_although_slots_are_free() -> None:
    admission = bounded(2)
    jobs = of("a", 4)
    arrive(admission, *jobs)

    assert [job.state for job in jobs] == [RUNNING, RUNNING, QUEUED, QUEUED]
    assert release(admission, jobs[1]) == [jobs[2]]


@pytest.mark.parametrize("interactive", [True, False])
def test_a_newcomer_passes_those_whose_tenants_are_at_their_bound(interactive: bool) -> None:
    admission = bounded(1)
    arrive(admission, *of("a", 3, interactive=interactive))
    (newcomer,) = of("b", interactive=interactive)

    assert admission.offer(newcomer) == RUNNING

    admission.check()
    admission.check_conserving(0.0)
    assert newcomer in (admission.interactive_running if interactive else admission.batch_running)


def test_a_newcomer_that_may_run_is_not_refused_because_the_queue_is_full_of_others() -> None:
    admission = bounded(1)
    admission.set_limits(replace(admission.limits, max_queued_interactive=1))
    arrive(admission, *of("a", 2))

    assert admission.offer(*of("a")) == GONE
    assert admission.offer(Job(tenant="b", deadline=0.0)) == RUNNING


def test_a_newcomer_does_not_pass_those_of_its_kind_that_may_run() -> None:
    admission = bounded(1)
    admission.set_paused(frozenset({"interactive"}), 0.0)
    arrive(admission, *of("a"))
    admission.set_paused(frozenset(), 0.0)  # and nobody has filled yet

    assert admission.offer(*of("b")) == QUEUED


def test_a_newcomer_passes_nobody_into_a_slot_that_is_not_there() -> None:
    admission = bounded(1, max_concurrency=2, batch_max=1)
    arrive(admission, *of("a", 2), *of("b"))
    (chat,), (nightly,) = of("c"), of("d", interactive=False)

    assert (admission.offer(chat), admission.offer(nightly)) == (QUEUED, QUEUED)
    admission.check()


def test_batch_beyond_its_limit_does_not_pass_either() -> None:
    admission = bounded(1, max_concurrency=4, batch_max=1)
    arrive(admission, *of("a", 2, interactive=False))

    assert admission.offer(*of("b", interactive=False)) == QUEUED


def test_the_bound_is_on_both_kinds_together() -> None:
    admission = bounded(1)
    (nightly,), (chat,) = of("a", interactive=False), of("a")
    arrive(admission, nightly, chat)
    assert (nightly.state, chat.state) == (RUNNING, QUEUED)

    assert release(admission, nightly) == [chat]


def test_batch_runs_while_all_interactive_calls_are_at_their_bound() -> None:
    admission = bounded(1)
    arrive(admission, *of("a", 3))
    nightly = of("b", 2, interactive=False)
    arrive(admission, *nightly)

    assert [job.state for job in nightly] == [RUNNING, QUEUED]


def test_starving_batch_at_its_bound_does_not_go_first() -> None:
    admission = bounded(1, max_concurrency=2, batch_max=1)
    admission.set_limits(replace(admission.limits, starvation_timeout=0.0))
    chats = of("a") + of("b")
    arrive(admission, *chats, *of("a", 1, interactive=False), *of("c"))

    started = release(admission, chats[1])

    assert [job.tenant for job in started] == ["c"]


def test_a_raised_bound_starts_waiting_calls_and_a_lowered_one_stops_nothing() -> None:
    admission = bounded(1)
    jobs = of("a", 4)
    arrive(admission, *jobs)

    admission.set_limits(replace(admission.limits, max_running_per_tenant=3))
    assert admission.fill(0.0) == jobs[1:3]

    admission.set_limits(replace(admission.limits, max_running_per_tenant=1))
    assert admission.fill(0.0) == []
    assert release(admission, jobs[0]) == []
    assert release(admission, jobs[1]) == []
    assert release(admission, jobs[2]) == [jobs[3]]

    admission.set_limits(replace(admission.limits, max_running_per_tenant=None))
    arrive(admission, *(more := of("a", 3)))
    assert [job.state for job in more] == [RUNNING] * 3


def test_a_bound_set_while_calls_run_counts_them() -> None:
    admission = make_admission(4, 3)
    arrive(admission, *of("a", 2))

    admission.set_limits(replace(admission.limits, max_running_per_tenant=2))

    assert admission.offer(*of("a")) == QUEUED
    assert admission.offer(*of(None)) == RUNNING


def test_a_call_whose_caller_has_left_costs_its_tenant_no_turn() -> None:
    admission = make_admission()
    blocker, _ = occupy(admission)
    leaver, *stayers = of("a", 3)
    arrive(admission, leaver, *stayers, *of("b", 2))
    leaver.left = True

    assert [job.tenant for job in order(admission, blocker)] == ["a", "b", "a", "b"]
    assert admission.dropped == [leaver]


def test_those_that_expire_leave_nothing_behind() -> None:
    admission = bounded(1)
    (running,) = of("a")
    arrive(admission, running, *(Job(tenant="a", deadline=3.0) for _ in range(5)))
    assert admission.next_look(0.0) == 3.0

    assert len(admission.expire(3.0)) == 5
    admission.fill(3.0)
    release(admission, running)

    assert admission.idle
    assert admission.next_look(3.0) == math.inf
    assert repr(admission.interactive_queue) == "<FairQueue: 0 queued, 0 tenants, 0 ready>"


@pytest.mark.parametrize("bound", [None, 1])
def test_a_call_that_gave_its_slot_up_is_in_its_old_place_and_costs_no_second_turn(bound: int | None) -> None:
    admission = bounded(bound, max_concurrency=2, batch_max=1)
    first, blocker = *of("a"), *of("x")
    arrive(admission, first, blocker, *of("b", 2), *of("a", 2))

    admission.give_up(first)
    (other,) = admission.fill(0.0)
    admission.come_back(first, 0.0)
    admission.check()

    assert other.tenant == "b"
    assert release(admission, other) == [first]
    assert [job.tenant for job in order(admission, first)] == ["a", "b", "a"]


def test_a_call_that_waits_for_its_slot_back_pays_nothing_for_a_change_of_limits() -> None:
    admission = bounded(4, max_concurrency=2, batch_max=1)
    first, blocker = *of("a"), *of("x")
    arrive(admission, first, blocker, *of("b", 2), *of("a", 2))
    admission.give_up(first)
    (other,) = admission.fill(0.0)
    admission.come_back(first, 0.0)

    admission.set_limits(replace(admission.limits, max_running_per_tenant=3))

    admission.check()
    assert release(admission, other) == [first]
    assert [job.tenant for job in order(admission, first)] == ["a", "b", "a"]


def test_a_call_that_ends_while_it_is_away_is_forgotten() -> None:
    admission = bounded(1)
    (away,) = of("a")
    arrive(admission, away)

    admission.give_up(away)
    assert admission.offer(*of("a")) == RUNNING
    admission.leave(away)

    admission.check()
    release(admission, next(iter(admission.interactive_running)))
    assert repr(admission.interactive_queue) == "<FairQueue: 0 queued, 0 tenants, 0 ready>"


@pytest.mark.parametrize("interactive", [True, False])
def test_a_call_that_was_away_when_tenants_began_to_share_comes_back_to_its_old_place(interactive: bool) -> None:
    admission = make_admission(2, 1)
    first, blocker = *of("a", interactive=interactive), *of("x")
    arrive(admission, first, blocker)
    admission.give_up(first)
    (filler,) = of("y", interactive=interactive)
    arrive(admission, filler, *of("b", 3, interactive=interactive))

    admission.come_back(first, 0.0)

    admission.check()
    assert release(admission, filler) == [first]
