"""Runs spread over processes: order kept, a dead process is an error."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from llm_traffic_scheduler.simulation.pool import run_parallel


def doubled(number: int) -> int:
    return 2 * number


def elsewhere(number: int) -> int:
    return os.getpid()


def inverse(number: int) -> float:
    return 1 / number


def dies(number: int) -> int:
    os._exit(1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_items(jobs: int) -> None:
    heard: list[float] = []

    assert run_parallel(doubled, range(12), jobs=jobs, progress=heard.append) == [2 * number for number in range(12)]
    assert sum(heard) == pytest.approx(1.0)


def test_one_job_is_this_process_and_two_are_others() -> None:
    assert set(run_parallel(elsewhere, [1, 2], jobs=1)) == {os.getpid()}
    assert os.getpid() not in run_parallel(elsewhere, [1, 2], jobs=2)


def test_no_items_are_no_results() -> None:
    assert run_parallel(doubled, []) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_item_that_fails_is_named(jobs: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_parallel(inverse, [2, 0, 1], jobs=jobs)

    assert caught.value.__notes__ == ["in run 2 of 3: 0"]


def test_a_process_that_dies_is_an_error_and_not_a_result() -> None:
    with pytest.raises(BrokenProcessPool):
        run_parallel(dies, [1, 2, 3], jobs=2)
