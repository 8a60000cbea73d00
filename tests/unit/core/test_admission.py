"""Who runs next, who leaves the queue, and when to look again, decided without a clock or a loop.

Keeps promises 1 to 6, 8, 9, 13 and 14 of SEMANTICS.md as far as the core decides them.
"""

from __future__ import annotations

import math
import random
import weakref
from dataclasses import replace

import pytest

from llm_traffic_scheduler.core.admission import GONE, QUEUED, RUNNING, Limits
from tests.unit.core.jobs import Job, ScriptedLimit, arrive, batch, make_admission, occupy, release


def test_a_call_that_finds_room_runs_at_once() -> None:
    admission = make_admission()
    job = Job(submitted=3.0)

    assert admission.offer(job) == RUNNING

    assert (job.state, job.started_at) == (RUNNING, 3.0)
    assert admission.counts == (1, 0, 0, 0)


def test_a_free_slot_goes_to_interactive_work_before_batch_that_came_first() -> None:
    admission = make_admission()
    first, second = occupy(admission)
    nightly, chat = batch(priority=-5), Job(priority=5)
    arrive(admission, nightly, chat)

    assert release(admission, first) == [chat]
    assert release(admission, second) == [nightly]


def test_within_a_kind_lower_priority_runs_first_and_then_who_came_first() -> None:
    admission = make_admission()
    blocker, _ = occupy(admission)
    jobs = [Job(priority=priority) for priority in (1, 0.5, 1, -2, 0.5, 0)]
    arrive(admission, *jobs)

    order = []
    running = blocker
    while started := release(admission, running):
        (running,) = started
        order.append(jobs.index(running))

    assert order == [3, 5, 1, 4, 0, 2]


def test_batch_at_its_limit_does_not_block_interactive_work() -> None:
    admission = make_admission(4, 2)
    arrive(admission, *(batch() for _ in range(5)))

    chat = Job()

    assert admission.offer(chat) == RUNNING
    assert admission.counts == (1, 0, 2, 3)


def test_paused_interactive_work_does_not_block_batch() -> None:
    admission = make_admission()
    admission.set_paused(frozenset({"interactive"}), 0.0)
    chat, nightly = Job(), batch()

    arrive(admission, chat, nightly)

    assert (chat.state, nightly.state) == (QUEUED, RUNNING)


@pytest.mark.parametrize("interactive", [True, False])
def test_a_newcomer_never_passes_a_call_of_its_kind_that_waits(interactive: bool) -> None:
    admission = make_admission()
    kind = "interactive" if interactive else "batch"
    admission.set_paused(frozenset({kind}), 0.0)
    arrive(admission, Job(interactive=interactive))
    admission.set_paused(frozenset(), 0.0)  # and nobody has filled yet

    assert admission.offer(Job(interactive=interactive, priority=-1)) == QUEUED


def test_batch_never_holds_the_last_slot() -> None:
    admission = make_admission(3, 2)

    arrive(admission, *(batch() for _ in range(10)))

    assert admission.counts == (0, 0, 2, 8)
    assert admission.offer(Job()) == RUNNING


def test_the_batch_limit_is_asked_before_each_single_start() -> None:
    class Shrinking(ScriptedLimit):
        def limit(self, now: float) -> int:
            super().limit(now)
            return 4 - self.asked

    limiter = Shrinking()
    admission = make_admission(10, 9, limiter=limiter)
    admission.set_paused(frozenset({"batch"}), 0.0)
    arrive(admission, *(batch() for _ in range(6)))
    admission.set_paused(frozenset(), 0.0)

    admission.fill(0.0)

    # The first start is the floor's; then 3 allow a second and 2 no third.
    assert len(admission.batch_running) == 2
    assert limiter.asked == 2


@pytest.mark.parametrize("fresh, now, started", [(True, 9.0, 2), (True, 10.0, 1), (False, 9.0, 1)])
def test_a_limit_that_was_kept_counts_while_it_is_fresh_until_it_is_over(fresh: bool, now: float, started: int) -> None:
    limiter = ScriptedLimit(value=1)
    admission = make_admission(4, 3, limiter=limiter)
    blockers = occupy(admission)
    arrive(admission, *(batch() for _ in range(3)))
    limiter.fresh, limiter.kept, limiter.kept_until = fresh, 2, 10.0
    for blocker in blockers:
        admission.release(blocker)

    assert len(admission.fill(now)) == started


def test_below_the_floor_no_policy_is_asked() -> None:
    limiter = ScriptedLimit(value=0)
    admission = make_admission(8, 6, batch_min=3, limiter=limiter)

    arrive(admission, *(batch() for _ in range(3)))

    assert admission.counts == (0, 0, 3, 0)
    assert limiter.asked == 0


def test_a_lowered_limit_stops_nothing_and_a_raised_one_starts_waiting_work() -> None:
    admission = make_admission(8, 6)
    jobs = [batch() for _ in range(9)]
    arrive(admission, *jobs)

    admission.set_limits(Limits(max_concurrency=3, batch_max=2))
    assert admission.fill(0.0) == []
    assert admission.running == 6

    admission.set_limits(Limits(max_concurrency=9, batch_max=8))
    assert admission.fill(0.0) == jobs[6:8]


def test_a_limit_lowered_below_what_runs_and_raised_again_invents_no_slots() -> None:
    admission = make_admission(8, 7)
    running = occupy(admission)
    waiting = [Job() for _ in range(10)]
    arrive(admission, *waiting)

    for cap in (2, 5, 2, 8, 3):
        admission.set_limits(Limits(max_concurrency=cap, batch_max=1))
        assert admission.fill(0.0) == []
    for job in running[:5]:
        assert release(admission, job) == []

    assert admission.running == 3
    assert release(admission, running[5]) == waiting[:1]


@pytest.mark.parametrize("kind", ["interactive", "batch"])
def test_nothing_of_a_paused_kind_starts_until_it_is_resumed(kind: str) -> None:
    admission = make_admission()
    admission.set_paused(frozenset({kind}), 0.0)
    job = Job(interactive=kind == "interactive")
    arrive(admission, job)
    assert job.state == QUEUED

    admission.set_paused(frozenset(), 1.0)

    assert admission.fill(1.0) == [job]


def test_pausing_outlives_a_change_of_limits() -> None:
    admission = make_admission()
    admission.set_paused(frozenset({"interactive", "batch"}), 0.0)

    admission.set_limits(Limits(max_concurrency=8, batch_max=6))

    assert admission.offer(Job()) == QUEUED
    assert admission.offer(batch()) == QUEUED


def test_a_withdrawn_call_never_runs_and_the_next_one_moves_up() -> None:
    admission = make_admission()
    first, _ = occupy(admission)
    leaver, stayer = Job(), Job()
    arrive(admission, leaver, stayer)

    admission.withdraw(leaver)

    assert leaver.state == GONE
    assert release(admission, first) == [stayer]


@pytest.mark.parametrize("interactive", [True, False])
def test_a_slot_meant_for_a_call_whose_caller_has_gone_goes_to_the_next(interactive: bool) -> None:
    admission = make_admission()
    first, second = occupy(admission)
    gone, also_gone, stayer, last = jobs = [Job(interactive, deadline=9.0) for _ in range(4)]
    arrive(admission, *jobs)

    gone.left = also_gone.left = True

    assert release(admission, first) == [stayer]
    assert admission.dropped == [gone, also_gone]
    assert (gone.state, also_gone.state) == (GONE, GONE)
    assert admission.expire(9.0) == [last]
    assert release(admission, second) == []


def test_thousands_whose_callers_have_gone_cost_no_recursion() -> None:
    admission = make_admission()
    running, _ = occupy(admission)
    jobs = [Job(left=True) for _ in range(5000)]
    for job in jobs:
        admission.offer(job)

    assert release(admission, running) == []
    assert admission.dropped == jobs


def test_expire_withdraws_what_has_waited_long_enough_earliest_deadline_first() -> None:
    admission = make_admission()
    occupy(admission)
    jobs = [Job(deadline=5.0), batch(deadline=2.0), Job(deadline=2.5), Job(deadline=5.001), Job()]
    arrive(admission, *jobs)

    assert admission.expire(1.999) == []
    assert admission.expire(5.0) == [jobs[1], jobs[2], jobs[0]]
    assert all(job.state == GONE for job in jobs[:3])
    assert admission.counts == (2, 2, 0, 0)
    admission.check()


def test_a_call_that_got_its_slot_has_no_queue_deadline_any_more() -> None:
    admission = make_admission()
    first, _ = occupy(admission)
    job = Job(deadline=5.0)
    arrive(admission, job)
    release(admission, first, 4.0)

    assert admission.expire(100.0) == []
    assert job.state == RUNNING


def test_two_thousand_withdrawn_calls_leave_no_memory_behind() -> None:
    admission = make_admission()
    occupy(admission)
    jobs = [Job(deadline=1e6 + index, priority=index % 7) for index in range(2000)]
    for job in jobs:
        assert admission.offer(job) == QUEUED
    stayers, leavers = jobs[::100], [job for index, job in enumerate(jobs) if index % 100]
    random.Random(1).shuffle(leavers)
    traces = [weakref.ref(job) for job in leavers]

    for job in leavers:
        admission.withdraw(job)
    del jobs, leavers, job

    # The heaps keep at most as many dead as living, the arrival order as many, plus 64.
    assert sum(trace() is not None for trace in traces) <= 2 * (len(stayers) + 64)
    admission.check()


@pytest.mark.parametrize("first", [True, False])
def test_calls_of_both_kinds_in_turn_leave_no_memory_behind(first: bool) -> None:
    admission = make_admission()
    occupy(admission)
    admission.set_paused(frozenset({"interactive", "batch"}), 0.0)
    arrive(admission, Job(), batch())  # two that stay, so that neither queue is ever empty
    traces = []

    for number in range(1000):
        job = Job(interactive=first == (number % 2 == 0))
        assert admission.offer(job) == QUEUED
        admission.withdraw(job)
        traces.append(weakref.ref(job))
    del job

    assert sum(trace() is not None for trace in traces) <= 2 * (2 + 64)
    admission.check()


def test_calls_that_pass_a_patient_one_leave_no_memory_behind() -> None:
    admission = make_admission()
    running, _ = occupy(admission)
    arrive(admission, Job(priority=9), *(Job() for _ in range(500)))

    traces = []
    for _ in range(500):
        traces.append(weakref.ref(running))
        (running,) = release(admission, running)  # checks, too, that no invariant breaks on the way

    assert sum(trace() is not None for trace in traces) <= 2 * (1 + 64)


@pytest.mark.parametrize("interactive", [True, False])
@pytest.mark.parametrize("bound", [0, 2])
def test_a_queue_takes_as_many_as_its_bound_and_turns_the_next_away(interactive: bool, bound: int) -> None:
    admission = make_admission()
    occupy(admission)
    admission.set_limits(replace(admission.limits, max_queued_interactive=bound, max_queued_batch=bound))
    arrive(admission, *(Job(interactive) for _ in range(bound)))
    refused = Job(interactive)

    assert admission.offer(refused) == refused.state == GONE
    assert admission.offer(Job(not interactive)) == (GONE if bound == 0 else QUEUED)
    assert len(list(admission.calls())) == 2 + bound + (bound > 0)


@pytest.mark.parametrize("deadline, state", [(9.0, GONE), (10.0, GONE), (10.001, QUEUED)])
def test_a_call_whose_time_to_wait_is_over_never_enters_the_queue(deadline: float, state: int) -> None:
    admission = make_admission()
    first, _ = occupy(admission)

    assert admission.offer(Job(submitted=10.0, deadline=deadline)) == state
    assert len(admission.interactive_queue) == (state == QUEUED)

    # With room there is nothing to wait for.
    admission.release(first)
    assert state == QUEUED or admission.offer(Job(submitted=10.0, deadline=deadline)) == RUNNING


def test_nothing_has_to_be_looked_at_while_nothing_waits() -> None:
    admission = make_admission(8, 6, limiter=ScriptedLimit(rises_at=7.0))
    arrive(admission, Job(deadline=3.0), batch(deadline=4.0))

    assert admission.next_look(0.0) == math.inf


def test_the_earliest_queue_deadline_is_a_time_to_look() -> None:
    admission = make_admission()
    occupy(admission)
    early = Job(deadline=4.0)
    arrive(admission, Job(deadline=9.0), early, batch(deadline=6.0))

    assert admission.next_look(0.0) == 4.0
    admission.withdraw(early)
    assert admission.next_look(0.0) == 6.0


def test_when_the_last_deadline_has_gone_time_alone_changes_nothing() -> None:
    admission = make_admission()
    occupy(admission)
    hurried = Job(deadline=4.0)
    arrive(admission, hurried, Job(), batch())
    assert admission.timed

    admission.withdraw(hurried)
    admission.fill(0.0)

    assert not admission.timed


def test_a_batch_limit_that_rises_by_itself_is_looked_at_only_while_a_slot_is_free() -> None:
    admission = make_admission(3, 2, limiter=ScriptedLimit(value=1, rises_at=7.0))
    arrive(admission, batch(), batch())
    assert admission.next_look(0.0) == 7.0

    occupy(admission)
    assert admission.next_look(0.0) == math.inf


@pytest.mark.parametrize("taken", [0, 1])
def test_an_offer_alone_says_whether_time_may_start_the_batch_call_it_left_waiting(taken: int) -> None:
    admission = make_admission(2, 1, limiter=ScriptedLimit(rises_at=7.0))
    admission.offer(batch())
    for _ in range(taken):
        admission.offer(Job())

    admission.offer(batch())

    assert admission.timed is (taken == 0)


@pytest.mark.parametrize("obstacle", ["paused", "at its ceiling"])
def test_a_batch_limit_that_could_not_help_is_not_looked_at(obstacle: str) -> None:
    admission = make_admission(8, 2, limiter=ScriptedLimit(value=1 if obstacle == "paused" else 2, rises_at=7.0))
    arrive(admission, *(batch() for _ in range(3)))
    if obstacle == "paused":
        admission.set_paused(frozenset({"batch"}), 0.0)

    assert admission.next_look(0.0) == math.inf
