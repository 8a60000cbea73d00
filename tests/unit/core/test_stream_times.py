"""How soon streams begin and how fast they go on, over a window: P95s, and when they change by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler.core.stream_times import StreamTimes

WINDOW = 10.0
SLICE = WINDOW / 100

SAMPLES = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(1e-3, 1e3)), max_size=40)


def about(seconds: float) -> Any:
    """What is read of it."""
    return pytest.approx(seconds, rel=0.01)


def nearest_rank(values: list[float]) -> float | None:
    """The exact P95, None of nothing."""
    return sorted(values)[math.ceil(0.95 * len(values) - 1e-9) - 1] if values else None


def test_nothing_is_known_until_something_is_reported() -> None:
    times = StreamTimes(WINDOW)

    assert times.read(5.0) == (None, None)
    assert times.next_change() == math.inf


def test_a_first_token_says_nothing_of_the_pace_and_the_pace_nothing_of_it() -> None:
    begun, ended = StreamTimes(WINDOW), StreamTimes(WINDOW)
    begun.first_token(1.0, 0.25)
    ended.pace(1.0, 0.02)

    assert begun.read(1.0) == (about(0.25), None)
    assert ended.read(1.0) == (None, about(0.02))


def test_a_sample_leaves_with_the_window_and_then_nothing_is_known_again() -> None:
    times = StreamTimes(WINDOW)
    times.first_token(1.0, 0.25)
    times.pace(3.0, 0.02)

    assert times.read(11.0 - 2 * SLICE)[0] is not None
    assert times.read(11.0) == (None, about(0.02))
    assert times.read(13.0) == (None, None)


def test_the_next_change_is_when_the_older_of_both_kinds_of_samples_leaves() -> None:
    times = StreamTimes(WINDOW)
    times.pace(2.0, 0.02)
    times.first_token(3.0, 0.25)

    assert times.next_change() == pytest.approx(12.0)
    times.advance(12.0)
    assert times.next_change() == pytest.approx(13.0)
    times.advance(13.0)
    assert times.next_change() == math.inf


@given(first_tokens=SAMPLES, paces=SAMPLES, quiet=st.floats(0.0, 2 * WINDOW))
def test_both_are_the_p95_of_what_the_window_holds(
    first_tokens: list[tuple[float, float]], paces: list[tuple[float, float]], quiet: float
) -> None:
    times, now = StreamTimes(WINDOW), 100.0
    held: dict[str, list[tuple[float, float]]] = {"first_token": [], "pace": []}
    for name, samples in (("first_token", first_tokens), ("pace", paces)):
        at = now
        for gap, value in samples:
            at += gap
            getattr(times, name)(at, value)
            held[name].append((at, value))
    end = max([now, *(at for samples in held.values() for at, _ in samples)]) + quiet

    # Within a slice of the edge of the window either answer is right.
    surely = {name: [value for at, value in samples if at > end - WINDOW + 2 * SLICE] for name, samples in held.items()}
    at_most = {name: [value for at, value in samples if at > end - WINDOW] for name, samples in held.items()}
    for name, seen in zip(("first_token", "pace"), times.read(end), strict=True):
        if surely[name] == at_most[name]:
            expected = nearest_rank(surely[name])
            assert seen == (None if expected is None else about(expected))


@given(SAMPLES, st.floats(0.0, 3 * WINDOW))
def test_once_advanced_the_next_change_is_ahead_and_what_is_read_stays_until_then(
    samples: list[tuple[float, float]], quiet: float
) -> None:
    times, now = StreamTimes(WINDOW), 100.0
    for number, (gap, value) in enumerate(samples):
        now += gap
        (times.pace if number % 3 else times.first_token)(now, value)
    now += quiet

    before = times.read(now)
    times.advance(now)

    assert times.read(now) == before
    assert times.next_change() > now
    if (until := times.next_change()) < math.inf:
        assert times.read(math.nextafter(until, 0.0)) == before


def test_a_window_of_another_length_keeps_what_fits_it() -> None:
    times = StreamTimes(WINDOW)
    times.first_token(1.0, 0.25)
    times.pace(8.0, 0.02)

    shorter = times.resized(WINDOW / 2, 9.0)

    assert shorter.read(9.0) == (None, about(0.02))
    assert shorter.next_change() == pytest.approx(13.0, abs=2 * SLICE)
    assert times.read(9.0)[0] is not None
