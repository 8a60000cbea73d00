"""Who is stopped, and what it may cost."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler.core.preemption import BUDGET, PER_DECISION, WINDOW, BatchTime, choose, wanted

SECONDS = st.floats(0.0, 100.0)
EVENTS = st.lists(st.tuples(SECONDS, st.integers(0, 5), st.floats(0.0, 10.0)), max_size=60)
COUNT = st.integers(0, 8)


def naive_taken(told: list[tuple[float, int]], now: float, window: float) -> float:
    """Slot-seconds in the last `window` seconds, by hand."""
    ends = [at for at, _ in told[1:]] + [now]
    return sum(
        running * max(0.0, until - max(at, now - window)) for (at, running), until in zip(told, ends, strict=True)
    )


@given(EVENTS)
def test_batch_time_is_what_ran_in_the_last_minute_less_the_slice_that_it_cuts(
    events: list[tuple[float, int, float]],
) -> None:
    time, now = BatchTime(), 1000.0
    told, lost = [(now, 0)], [(now, 0.0)]
    for passed, running, seconds in events:
        now += passed
        time.advance(now, running)
        told.append((now, running))
        time.lose(now, seconds)
        lost.append((now, seconds))
        time.check()

        assert time.taken(now) <= naive_taken(told, now, WINDOW) + 1e-6
        assert time.taken(now) >= naive_taken(told, now, WINDOW - 1.0) - 1e-6
        kept = time.lost(now)
        assert kept >= sum(each for at, each in lost if at > now - WINDOW) - 1e-6
        assert kept <= sum(each for at, each in lost if at > now - WINDOW - 1.0) + 1e-6
        assert time.left(now) == BUDGET * time.taken(now) - time.lost(now)


@given(st.lists(SECONDS, max_size=20), SECONDS, SECONDS, st.integers(0, 5))
def test_what_nobody_told_is_recalled_from_what_runs_still(
    ages: list[float], before: float, after: float, running: int
) -> None:
    time, at = BatchTime(), 1000.0
    time.advance(at, running)
    time.advance(at + before, 0)
    now = at + before + after
    time.recall(now, [now - age for age in ages])
    time.check()

    known = running * max(0.0, at + before - max(at, now - WINDOW))
    known += sum(min(age, after, WINDOW) for age in ages)
    assert known - (running + len(ages)) - 1e-6 <= time.taken(now) <= known + 1e-6
    time.advance(now + 1.0, 0)
    assert time.taken(now + 1.0) >= len(ages) * 1.0 - 1e-6


@given(waiting=COUNT, running=COUNT, batch=COUNT, cap=st.integers(2, 8), minimum=st.integers(1, 4))
def test_as_many_are_wanted_as_bring_slots_to_those_that_wait(
    waiting: int, running: int, batch: int, cap: int, minimum: int
) -> None:
    batch = min(batch, running)

    numbers = wanted(waiting=waiting, running=running, batch_running=batch, max_concurrency=cap, batch_min=minimum)

    for number in range(10):
        brings = cap - (running - number)
        useful = running >= cap and 0 < brings <= waiting
        assert (number in numbers) == (useful and number <= PER_DECISION and batch - number >= minimum)


@given(st.lists(st.floats(0.0, 10.0)), st.integers(0, 3), st.integers(0, 3), st.floats(-1.0, 30.0))
def test_those_in_front_are_chosen_as_long_as_together_they_lose_no_more_than_is_left(
    losses: list[float], fewest: int, most: int, left: float
) -> None:
    numbers = range(fewest, most + 1)

    chosen = choose(((index, loss) for index, loss in enumerate(losses)), numbers, left)

    assert chosen == list(range(len(chosen)))
    assert not chosen or len(chosen) in numbers
    assert not chosen or sum(losses[: len(chosen)]) <= left + 1e-9
    one_more = len(chosen) + 1
    if chosen and one_more in numbers and one_more <= len(losses):
        assert sum(losses[:one_more]) > left - 1e-9


def test_nobody_is_looked_at_beyond_those_that_are_chosen() -> None:
    looked_at: list[int] = []

    def candidates() -> Iterator[tuple[int, float]]:
        for index in range(10):
            looked_at.append(index)
            yield index, 0.0

    assert choose(candidates(), range(1, 3), 1.0) == [0, 1]
    assert looked_at == [0, 1]


def test_a_clock_that_steps_back_counts_nothing_twice() -> None:
    time = BatchTime()
    time.advance(100.0, 2)
    time.advance(110.0, 2)
    time.advance(105.0, 2)
    time.advance(111.0, 2)
    time.check()

    assert time.taken(111.0) == 22.0


def test_sixty_two_slices_are_all_that_is_kept() -> None:
    time = BatchTime()

    for second in range(100_000):
        time.advance(second / 10, 3)
        time.lose(second / 10, 0.1)

    time.check()
    assert len(time._slices) <= 62
