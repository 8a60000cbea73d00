"""The laws for comparison on any history: whole numbers within the bounds, pure reading, no clock but the one given.

Keeps the list under "Properties" in CONTROL.md, as far as it is about laws with a state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import Arrived, Decision, Ended, LimitPolicy, ObservingPolicy, Signals
from llm_traffic_scheduler.simulation.laws import AIMD, FixedTotal, Scavenger

LAWS: dict[str, Callable[[], LimitPolicy]] = {
    "total": lambda: FixedTotal(24),
    "aimd": lambda: AIMD(2.0, increase=50.0),
    "scavenger": lambda: Scavenger(),
}
every_law = pytest.mark.parametrize("law", LAWS)

# In 1/1024 s sums and differences are exact, so a shift in time can be compared bit by bit.
TICKS = st.integers(0, 2**14).map(lambda ticks: ticks / 1024)
SECONDS = st.one_of(st.just(0.0), st.integers(0, 2**16).map(lambda ticks: ticks / 1024))
COUNTS = st.integers(0, 100)
SLICE = 0.125


@dataclass(frozen=True)
class Told:
    """What a law hears after `wait` seconds: signals at a slice's first event, or the end of a call."""

    wait: float
    what: Signals | Ended | Arrived


Histories: TypeAlias = Sequence[Told]

ends = st.builds(
    Ended,
    call=COUNTS,
    latency=SECONDS,
    first_token=st.one_of(st.none(), TICKS),
    tokens=COUNTS,
    outcome=st.sampled_from(["completed", "completed", "completed", "failed", "cancelled", "timed_out", "rejected"]),
)


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    batch_max = draw(st.integers(1, 100))
    return Signals(
        max_concurrency=batch_max + 1,
        batch_max=batch_max,
        batch_min=draw(st.integers(1, batch_max)),
        interactive_running=draw(COUNTS),
        interactive_queued=draw(COUNTS),
        batch_running=draw(COUNTS),
        p95=draw(SECONDS),
        oldest_unfinished=draw(SECONDS),
        throttled_until=draw(st.one_of(st.just(-math.inf), SECONDS)),
        slice_length=SLICE,
    )


tellings = st.builds(Told, TICKS, st.one_of(signals(), signals(), ends, st.builds(Arrived, COUNTS)))
histories = st.lists(tellings, min_size=1, max_size=60)


def tell(law: LimitPolicy, history: Histories, start: float = 0.0) -> tuple[float, Signals]:
    """Tell the law a history from `start` on; when it ended, and on which signals."""
    now, last = start, Signals(slice_length=SLICE)
    for told in history:
        now += told.wait
        if isinstance(told.what, Signals):
            last = shifted(told.what, start)
            law.advance(now, last)
        elif isinstance(law, ObservingPolicy):
            law.observe(now, told.what)
    return now, last


def shifted(told: Signals, by: float) -> Signals:
    return replace(told, throttled_until=told.throttled_until + by)


@every_law
@given(history=histories, later=TICKS)
def test_the_limit_is_a_whole_number_within_the_bounds(law: str, history: Histories, later: float) -> None:
    told = LAWS[law]()
    now, last = tell(told, history)

    decision = told.decide(now + later, last)

    assert type(decision.limit) is int
    assert last.batch_min <= decision.limit <= last.batch_max
    assert decision.pressure >= 0
    assert decision.valid_until == decision.valid_until


@every_law
@given(history=histories, later=TICKS)
def test_deciding_changes_nothing(law: str, history: Histories, later: float) -> None:
    asked, left_alone = LAWS[law](), LAWS[law]()
    for count in range(len(history)):
        now, last = tell(asked, history[count : count + 1])
        asked.decide(now + later, last)
        tell(left_alone, history[count : count + 1])

    assert state(asked) == state(left_alone)


@every_law
@given(history=histories, shift=st.integers(0, 2**20))
def test_a_shift_in_time_changes_nothing_but_times(law: str, history: Histories, shift: int) -> None:
    here, there = LAWS[law](), LAWS[law]()
    now, last = tell(here, history)
    then, last_there = tell(there, history, start=float(shift))

    decision, moved = here.decide(now, last), there.decide(then, last_there)

    assert (moved.limit, moved.reason, moved.pressure) == (decision.limit, decision.reason, decision.pressure)
    assert moved.valid_until - shift == pytest.approx(decision.valid_until, abs=1e-6)


@every_law
@given(history=histories, share=st.floats(0, 1, exclude_max=True))
def test_until_a_decision_expires_it_stands(law: str, history: Histories, share: float) -> None:
    told = LAWS[law]()
    now, last = tell(told, history)
    decision = told.decide(now, last)

    later = told.decide(now + share * (min(decision.valid_until, now + 1000) - now), last)

    if decision.valid_until > now:
        assert later.limit == decision.limit


@every_law
@given(history=histories)
def test_a_replica_goes_its_own_way(law: str, history: Histories) -> None:
    told = LAWS[law]()
    tell(told, history)
    before = state(told)

    replica = getattr(told, "replica", lambda: deepcopy(told))()
    tell(replica, history)

    assert state(told) == before


@every_law
@given(history=histories)
def test_after_a_reset_an_earlier_clock_does_no_harm(law: str, history: Histories) -> None:
    told = LAWS[law]()
    tell(told, history, start=2.0**20)

    getattr(told, "reset", lambda: None)()
    now, last = tell(told, history)

    assert last.batch_min <= told.decide(now, last).limit <= last.batch_max


@every_law
@given(history=histories, reading=signals())
def test_what_a_law_does_not_read_does_not_matter(law: str, history: Histories, reading: Signals) -> None:
    told = LAWS[law]()
    now, last = tell(told, history)
    reads = told.reads  # type: ignore[attr-defined]
    other = replace(reading, **{name: getattr(last, name) for name in reads})

    assert told.decide(now, other) == told.decide(now, last)


@given(history=histories)
def test_an_aimd_that_is_not_used_does_not_grow(history: Histories) -> None:
    law = AIMD(2.0)
    now, last = tell(law, history)
    unused = replace(last, batch_running=0, batch_min=1, throttled_until=-math.inf)
    law.advance(now, unused)
    before = limit(law.decide(now, unused))

    for step in range(100):
        law.advance(now + step * SLICE, unused)

    assert limit(law.decide(now + 100 * SLICE, unused)) <= max(before, 2)


def limit(decision: Decision) -> int:
    return decision.limit


def state(law: LimitPolicy) -> dict[str, str]:
    """Every attribute; as text, because NaN is not equal to itself."""
    return {name: repr(getattr(law, name)) for name in type(law).__slots__}  # type: ignore[attr-defined]
