"""Batch work is not starved in the queue.

Keeps promise 7 of SEMANTICS.md, and the guard's rest of promise 9.
"""

from __future__ import annotations

from dataclasses import replace

from llm_traffic_scheduler.core.admission import Admission
from tests.unit.core.jobs import Job, arrive, batch, make_admission, occupy, release


def starving(timeout: float | None = 30.0, *, max_concurrency: int = 2) -> tuple[Admission[Job], list[Job], Job]:
    """A full house, a batch call that waits since second 10, and interactive calls that wait too."""
    admission = make_admission(max_concurrency)
    admission.set_limits(replace(admission.limits, starvation_timeout=timeout))
    running = occupy(admission)
    nightly = batch(submitted=10.0)
    arrive(admission, nightly)
    arrive(admission, *(Job(submitted=11.0) for _ in range(5)))
    return admission, running, nightly


def test_batch_that_waited_the_starvation_timeout_gets_the_next_free_slot() -> None:
    admission, (first, second), nightly = starving()

    assert nightly not in release(admission, first, 39.99)
    assert release(admission, second, 40.0) == [nightly]


def test_the_guard_passes_one_batch_call_and_then_counts_anew() -> None:
    admission, running, nightly = starving(max_concurrency=4)
    second = batch(submitted=12.0)
    arrive(admission, second)

    assert release(admission, running[0], 100.0) == [nightly]
    assert all(job.interactive for job in release(admission, nightly, 129.9))
    assert release(admission, running[1], 130.0) == [second]


def test_the_guard_counts_from_when_the_batch_queue_became_non_empty() -> None:
    admission = make_admission()
    running = [batch(), Job()]
    arrive(admission, *running)  # the last batch start is at 0
    assert release(admission, running[0], 1.0) == []
    chat, late = Job(submitted=100.0), batch(submitted=100.0)
    arrive(admission, chat, late)
    arrive(admission, Job(submitted=100.0))

    assert late not in release(admission, running[1], 129.0)
    assert release(admission, chat, 130.0) == [late]


def test_the_guard_rests_while_the_floor_of_batch_calls_runs() -> None:
    admission = make_admission(3, 2)
    nightly, chat, other = batch(), Job(), Job()
    arrive(admission, nightly, chat, other, batch(), Job())

    started = release(admission, chat, 1000.0)

    assert [job.interactive for job in started] == [True]


def test_the_guard_can_be_switched_off() -> None:
    admission, (first, _), nightly = starving(None)

    assert nightly not in release(admission, first, 1e9)


def test_the_guard_never_passes_the_cap_or_a_pause() -> None:
    admission, (first, second), nightly = starving()

    assert admission.fill(1000.0) == []
    admission.set_paused(frozenset({"batch"}), 1000.0)
    assert nightly not in release(admission, first, 1000.0)
    admission.set_paused(frozenset(), 1001.0)
    assert nightly not in release(admission, second, 1030.9)


def test_the_guard_counts_anew_when_batch_is_resumed() -> None:
    admission, (first, _), nightly = starving()
    admission.set_paused(frozenset({"batch"}), 1000.0)
    admission.set_paused(frozenset(), 1001.0)

    assert release(admission, first, 1031.0) == [nightly]


def test_pausing_interactive_work_leaves_the_guard_alone() -> None:
    admission, (first, _), nightly = starving()
    admission.set_paused(frozenset({"interactive"}), 30.0)
    admission.set_paused(frozenset(), 30.0)

    assert release(admission, first, 40.0) == [nightly]
