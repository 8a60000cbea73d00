"""Any thread may read the window while another adds to it: it sees it before or after, never between.

Keeps promise 26 as far as the window goes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics, WindowReading
from llm_traffic_scheduler.core.window import Grid
from tests.unit.core.tracing import EveryInstruction


def busy() -> SlidingWindowMetrics:
    """A window with something in every part of it, and something to fold, to drop and to keep."""
    metrics = SlidingWindowMetrics(10.0, slices=10)
    metrics.completed(0.0, 40.0)
    metrics.arrived(0.5)
    metrics.failed(3.5, 5.0, counts=True)
    metrics.failed(3.5, 0.1, counts=False)
    metrics.advance(3.5)
    metrics.arrived(4.0)
    metrics.failed(4.5, 6.0, counts=True)
    return metrics


CHANGES: dict[str, Callable[[SlidingWindowMetrics], None]] = {
    "an arrival": lambda metrics: metrics.arrived(5.0),
    "a success": lambda metrics: metrics.completed(5.0, 1.0),
    "a failure": lambda metrics: metrics.failed(5.0, 9.0, counts=True),
    "a fold": lambda metrics: metrics.advance(5.0),
    "the last success leaving": lambda metrics: metrics.advance(10.5),
    "everything leaving": lambda metrics: metrics.advance(60.0),
    "a look at what comes": lambda metrics: print(metrics.next_change()),
}


@pytest.mark.parametrize("ages", [(), (7.0, 2.0)], ids=["finished", "with unfinished"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [5.0, 10.5, 12.0])
@pytest.mark.slow
def test_a_reader_at_any_instruction_sees_the_window_before_or_after(
    change: str, at: float, ages: tuple[float, ...]
) -> None:
    metrics = busy()
    seen: list[WindowReading] = [metrics.read(at, ages)]

    with EveryInstruction(lambda: seen.append(metrics.read(at, ages))):
        CHANGES[change](metrics)

    after = metrics.read(at, ages)
    assert len(seen) > 3
    assert all(reading in (seen[0], after) for reading in seen)
    assert sum(one != other for one, other in pairwise(seen)) <= 1


def test_a_fold_of_many_samples_is_never_seen_half_done() -> None:
    metrics = SlidingWindowMetrics(10.0)
    for number in range(255):
        metrics.completed(number * 0.001, 1.0)
    seen: list[WindowReading] = []

    with EveryInstruction(lambda: seen.append(metrics.read(0.3))):
        metrics.completed(0.3, 1.0)

    assert {reading.sample_count for reading in seen} == {255, 256}


def test_a_grid_finds_every_slice_begun_at_its_start_and_not_before() -> None:
    for origin in (0.0, 0.3, 12_345.678, 1e9 + 0.1):
        for length, slices in ((10.0, 100), (0.3, 100), (7.0, 13)):
            grid = Grid(origin, length, slices)
            for index in range(500):
                start = grid.start(index)

                assert grid.index(start) == index
                assert start == pytest.approx(origin + index * length / slices)
