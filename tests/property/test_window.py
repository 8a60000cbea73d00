"""The window against the dullest possible twin, which keeps every sample and counts in whole ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler.core.metrics import SlidingWindowMetrics, WindowReading

# Powers of two, so that a time in seconds is exact and the twin can do without.
TICK = 1 / 16
TICKS_PER_SLICE = 4
SLICES = 8
LENGTH = SLICES * TICKS_PER_SLICE * TICK

Latency = float | None


@dataclass(frozen=True)
class Step:
    """Some ticks pass, then `times` samples of one kind come, `pace` ticks apart."""

    gap: int
    kind: str
    latency: float
    counts: bool
    times: int
    pace: int
    ages: tuple[float, ...]


@dataclass
class Twin:
    """Every sample there ever was, as (slice, kind, latency or None)."""

    samples: list[tuple[int, str, Latency]] = field(default_factory=list)
    origin: int | None = None

    def add(self, tick: int, kind: str, latency: Latency = None) -> None:
        if self.origin is None:
            self.origin = tick
        self.samples.append(((tick - self.origin) // TICKS_PER_SLICE, kind, latency))

    def present(self, tick: int) -> int:
        return 0 if self.origin is None else (tick - self.origin) // TICKS_PER_SLICE

    def visible(self, present: int) -> list[tuple[int, str, Latency]]:
        return [sample for sample in self.samples if present - SLICES < sample[0] <= present]

    def held(self, present: int) -> float:
        """What is kept of the P95, found by walking through all slices there ever were."""
        held = 0.0
        for index in range(present + 1):
            before = self.visible(index - 1)
            after = [sample for sample in before if sample[0] > index - SLICES]
            if kinds(before) == {"success", "failure"} and kinds(after) == {"failure"}:
                held = rank(95, latencies(before))
            if "failure" not in kinds(after):
                held = 0.0
            if "success" in kinds(self.visible(index)):
                held = 0.0
        return held

    def reading(self, tick: int, ages: Sequence[float]) -> WindowReading:
        present = self.present(tick)
        visible = self.visible(present)
        finished, held = latencies(visible), self.held(present)
        both = sorted([*finished, *ages])
        return WindowReading(
            rps=sum(kind == "arrival" for _, kind, _ in visible) / LENGTH,
            sample_count=len(both),
            p50=rank(50, both),
            p95=max(rank(95, both), held),
            p99=rank(99, both),
            p95_finished=max(rank(95, finished), held),
            p95_sampled=rank(95, both),
        )


def kinds(samples: list[tuple[int, str, Latency]]) -> set[str]:
    return {kind for _, kind, _ in samples if kind != "arrival"}


def latencies(samples: list[tuple[int, str, Latency]]) -> list[float]:
    return sorted(latency for _, _, latency in samples if latency is not None)


def rank(percent: int, ordered: list[float]) -> float:
    """Nearest rank: the smallest sample with at least `percent` of all at or below it."""
    for place, sample in enumerate(ordered, start=1):
        if place * 100 >= percent * len(ordered):
            return sample
    return 0.0


def feed(metrics: SlidingWindowMetrics, step: Step, time: float) -> None:
    if step.kind == "arrival":
        metrics.arrived(time)
    elif step.kind == "success":
        metrics.completed(time, step.latency)
    elif step.kind == "failure":
        metrics.failed(time, step.latency, counts=step.counts)


def ticks_of(step: Step, tick: int) -> list[int]:
    return [tick + step.gap + number * step.pace for number in range(step.times)]


def look(metrics: SlidingWindowMetrics, step: Step, time: float) -> None:
    """Look in one of the ways there are."""
    if step.times % 2:
        metrics.advance(time)
    if step.pace:
        metrics.next_change()
    metrics.end_of_slice(time)
    metrics.read(time, step.ages)


some_latencies = st.one_of(st.sampled_from([0.0, 0.5, 0.5001, 2.0, 3.0]), st.floats(1e-9, 1e9), st.floats(1e-3, 10.0))
some_ages = st.lists(st.one_of(st.sampled_from([0.5, 3.0]), st.floats(1e-3, 1e3)), max_size=4).map(
    lambda ages: tuple(sorted(ages, reverse=True))
)
steps = st.builds(
    Step,
    gap=st.one_of(st.integers(0, 3), st.integers(0, 3 * SLICES * TICKS_PER_SLICE)),
    kind=st.sampled_from(["arrival", "success", "failure", "failure", "look"]),
    latency=some_latencies,
    counts=st.booleans(),
    times=st.one_of(st.just(1), st.integers(1, 4), st.just(300)),
    pace=st.sampled_from([0, 0, 0, 1]),
    ages=some_ages,
)
runs = st.lists(steps, min_size=1, max_size=12)


def test_the_twin_knows_the_nearest_rank() -> None:
    assert [rank(95, [float(each) for each in range(1, n + 1)]) for n in (0, 1, 20, 21)] == [0.0, 1.0, 19.0, 20.0]


@given(runs)
def test_the_window_reads_like_a_twin_that_keeps_every_sample(run: list[Step]) -> None:
    metrics, twin, tick = SlidingWindowMetrics(LENGTH, slices=SLICES), Twin(), 0
    for step in run:
        for each in ticks_of(step, tick):
            feed(metrics, step, each * TICK)
            if step.kind != "look":
                joins = step.kind == "success" or (step.kind == "failure" and step.counts)
                twin.add(each, step.kind, step.latency if joins else None)
            tick = each
        metrics.check()
        expected, got = twin.reading(tick, step.ages), metrics.read(tick * TICK, step.ages)

        assert (got.rps, got.sample_count) == (expected.rps, expected.sample_count)
        assert list(got) == pytest.approx(list(expected), rel=0.01, abs=0)


@given(runs, st.integers(0, 3 * SLICES * TICKS_PER_SLICE))
def test_reading_gives_what_advancing_and_reading_gives_and_changes_nothing(run: list[Step], later: int) -> None:
    metrics, tick = SlidingWindowMetrics(LENGTH, slices=SLICES), 0
    for step in run:
        for each in ticks_of(step, tick):
            feed(metrics, step, each * TICK)
            tick = each
        then = (tick + later) * TICK
        before = repr(metrics)
        here, there = metrics.read(tick * TICK, step.ages), metrics.read(then, step.ages)

        assert repr(metrics) == before
        assert metrics.read(tick * TICK, step.ages) == here

        if step.pace:
            metrics.advance(tick * TICK)
            assert metrics.read(tick * TICK, step.ages) == here
    metrics.advance(then)
    metrics.check()
    assert metrics.read(then, run[-1].ages) == there


@given(runs)
def test_who_looked_in_between_makes_no_difference(run: list[Step]) -> None:
    watched, left_alone = (SlidingWindowMetrics(LENGTH, slices=SLICES) for _ in range(2))
    tick = 0
    for step in run:
        look(watched, step, tick * TICK)
        for each in ticks_of(step, tick):
            feed(watched, step, each * TICK)
            feed(left_alone, step, each * TICK)
            look(watched, step, each * TICK)
            tick = each
        watched.check()

        assert watched.read(tick * TICK, step.ages) == left_alone.read(tick * TICK, step.ages)
        assert watched.end_of_slice(tick * TICK) == left_alone.end_of_slice(tick * TICK)
    left_alone.advance(tick * TICK)
    watched.advance(tick * TICK)
    assert watched.next_change() == left_alone.next_change()


@given(runs, st.sampled_from([1.0, 1e9, 2.0**40 + 0.5]))
def test_it_does_not_matter_where_the_clock_starts(run: list[Step], start: float) -> None:
    at_zero, shifted = (SlidingWindowMetrics(LENGTH, slices=SLICES) for _ in range(2))
    tick = 0
    for step in run:
        for each in ticks_of(step, tick):
            feed(at_zero, step, each * TICK)
            feed(shifted, step, start + each * TICK)
            tick = each

        assert at_zero.read(tick * TICK, step.ages) == shifted.read(start + tick * TICK, step.ages)
        assert at_zero.end_of_slice(tick * TICK) + start == shifted.end_of_slice(start + tick * TICK)
        assert at_zero.next_change() + start == shifted.next_change()


@given(
    times=st.lists(st.floats(0, 40), min_size=1, max_size=60).map(sorted),
    later=st.floats(0, 15),
    length=st.floats(0.5, 30),
)
def test_a_sample_leaves_at_most_one_slice_early_and_never_late(
    times: list[float], later: float, length: float
) -> None:
    metrics = SlidingWindowMetrics(length)
    for time in times:
        metrics.arrived(time)
        metrics.completed(time, 1.0)
    now = times[-1] + later

    reading = metrics.read(now)

    rounding = 1e-9
    must = sum(now - time < length * 0.99 - rounding for time in times)
    may = sum(now - time < length + rounding for time in times)
    assert must <= reading.sample_count <= may
    assert reading.rps == reading.sample_count / length


@given(runs, st.integers(0, 20))
def test_between_two_changes_nothing_changes(run: list[Step], later: int) -> None:
    metrics, tick = SlidingWindowMetrics(LENGTH, slices=SLICES), 0
    for step in run:
        for each in ticks_of(step, tick):
            feed(metrics, step, each * TICK)
            tick = each
    metrics.advance(tick * TICK)
    now, due = tick * TICK, metrics.next_change()

    until = min(now + later * TICK, math.nextafter(due, 0))

    assert due > now
    assert metrics.read(until) == metrics.read(now)


@given(
    times=st.lists(st.integers(0, 400), min_size=1, max_size=60).map(sorted),
    before=st.sampled_from([4.0, 10.0, 30.0]),
    after=st.sampled_from([2.0, 5.0, 10.0, 60.0]),
    later=st.floats(0, 20),
)
def test_another_length_keeps_what_fits_in_both(times: list[int], before: float, after: float, later: float) -> None:
    metrics = SlidingWindowMetrics(before)
    for time in times:
        metrics.arrived(time * TICK)
        metrics.completed(time * TICK, 1.0 + time)
    now = times[-1] * TICK
    both = min(before, after)

    other = metrics.resized(after, now)
    other.check()
    at_once, in_a_while = other.read(now), other.read(now + later)

    kept = [time * TICK for time in times if now - time * TICK < before * 0.99 - 1e-9]
    early = before / 100 + after / 100 + 1e-9
    assert sum(now - time < both - early for time in kept) <= at_once.sample_count
    assert at_once.sample_count <= sum(now - time * TICK < both + 1e-9 for time in times)
    assert sum(now + later - time < after - early for time in kept) <= in_a_while.sample_count
    assert in_a_while.sample_count <= sum(now + later - time * TICK < after + 1e-9 for time in times)


@given(
    times=st.lists(st.integers(0, 1_600), min_size=1, max_size=80).map(sorted),
    length=st.sampled_from([12.0, 20.0, 60.0]),
)
def test_a_longer_window_presumes_no_more_than_the_rate_it_was_given(times: list[int], length: float) -> None:
    metrics = SlidingWindowMetrics(10.0)
    for time in times:
        metrics.arrived(time * TICK)
    now = times[-1] * TICK

    other = metrics.resized(length, now)
    other.check()

    counted = metrics.read(now).rps * 10.0
    assert counted / length - 1e-9 <= other.read(now).rps <= metrics.read(now).rps * 1.01 + 0.5 / length
