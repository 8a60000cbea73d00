"""How long a decision is kept by what its policy reads, and what a policy hears of single calls in between.

The rest of the governor: test_governor.py, test_governor_edges.py; streams: test_governor_streams.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_traffic_scheduler import Arrived, Decision, Ended, FirstToken, FixedPolicy, Signals
from tests.unit.policies.governed import SLICE, Asked, Counts, House


class AskedOnInteractive(Asked):
    """A policy that looks at interactive counts only, and at no window."""

    reads = frozenset({"batch_max", "batch_min", "interactive_running", "interactive_queued", "throttled_until"})


class AskedOnBatch(Asked):
    """A policy that looks at batch counts only, and at no window."""

    reads = frozenset({"batch_max", "batch_running", "batch_queued"})


class AskedOnNothing(Asked):
    """A policy that looks at bounds only."""

    reads = frozenset({"batch_max", "batch_min"})


class Hears(AskedOnInteractive):
    """And hears of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        self.told.append((now, event))


def counted(policy: Asked, counts: tuple[int, int, int, int]) -> House:
    """Asked once, at 1.0."""
    house = House(policy, Counts(counts=(1, 1, 1, 1)))
    house.governor.limit(1.0)
    assert policy.decided == [1.0]
    house.watched.counts = counts
    return house


@pytest.mark.parametrize("counts", [(1, 1, 2, 1), (1, 1, 1, 5), (1, 1, 0, 0)])
def test_changed_batch_counts_do_not_ask_a_policy_that_reads_interactive_ones_only(
    counts: tuple[int, int, int, int],
) -> None:
    house = counted(policy := AskedOnInteractive(), counts)

    assert house.governor.limit(1.0) == 4
    assert policy.decided == [1.0]


@pytest.mark.parametrize("counts", [(2, 1, 1, 1), (1, 0, 1, 1), (0, 2, 1, 1)])
@pytest.mark.parametrize("policy", [AskedOnInteractive, AskedOnBatch])
def test_changed_interactive_counts_ask_any_policy_that_reads_counts(
    policy: type[Asked], counts: tuple[int, int, int, int]
) -> None:
    house = counted(asked := policy(), counts)

    house.governor.limit(1.0)

    assert asked.decided == [1.0, 1.0]


@pytest.mark.parametrize("counts", [(1, 1, 2, 1), (1, 1, 1, 5)])
def test_changed_batch_counts_ask_a_policy_that_reads_them(counts: tuple[int, int, int, int]) -> None:
    house = counted(policy := AskedOnBatch(), counts)

    house.governor.limit(1.0)

    assert policy.decided == [1.0, 1.0]


def test_counts_that_come_back_to_what_they_were_ask_nobody() -> None:
    house = counted(policy := AskedOnInteractive(), (3, 3, 3, 3))
    house.watched.counts = (1, 1, 7, 7)

    house.governor.limit(1.0)

    assert policy.decided == [1.0]


@pytest.mark.parametrize("policy", [AskedOnInteractive(), AskedOnBatch()])
def test_in_each_slice_in_which_somebody_asks_such_a_policy_is_told_how_things_are_and_asked(policy: Asked) -> None:
    house = House(policy)
    house.arrived(0.0)

    for step in range(200):  # ten times a slice, for twenty slices
        house.governor.limit(step * SLICE / 10)

    slices = [int(now / SLICE + 1e-6) for now in policy.advanced]
    assert slices == list(range(20))
    assert [int(now / SLICE + 1e-6) for now in policy.decided] == list(range(20))
    assert policy.signals.slice_length == pytest.approx(SLICE)


@pytest.mark.parametrize("policy", [AskedOnInteractive(), AskedOnBatch(), AskedOnNothing()])
def test_no_timer_is_set_for_that(policy: Asked) -> None:
    house = House(policy)
    house.arrived(0.0)
    house.completed(0.0, 0.5)
    house.governor.limit(0.0)

    assert house.governor.next_look(0.0) == math.inf


@pytest.mark.parametrize("policy", [AskedOnInteractive, AskedOnBatch, AskedOnNothing])
def test_a_decision_that_expires_is_looked_at_then(policy: type[Asked]) -> None:
    house = House(asked := policy(lambda now, signals: Decision(4, valid_until=1.25)))
    house.arrived(0.0)
    house.governor.limit(1.0)

    assert house.governor.next_look(1.0) == pytest.approx(1.25)
    house.governor.limit(1.24 if policy is AskedOnNothing else 1.0)
    assert asked.decided == [1.0]
    house.governor.limit(1.25)
    assert asked.decided == [1.0, 1.25]


def test_a_policy_that_reads_nothing_is_asked_once_while_nothing_interactive_happens() -> None:
    house = counted(policy := AskedOnNothing(), (1, 1, 3, 3))

    for now in (1.0, 1.5, 20.0, 1e6):
        house.governor.limit(now)

    assert policy.decided == [1.0]
    assert house.governor.kept_until == math.inf


def test_the_fixed_policy_is_one_that_reads_nothing() -> None:
    house = House(FixedPolicy(3))
    house.governor.limit(1.0)

    assert (house.governor.fresh, house.governor.kept, house.governor.kept_until) == (True, 3, math.inf)


@pytest.mark.parametrize("policy", [AskedOnInteractive(), AskedOnNothing()])
def test_throttling_asks_at_once(policy: Asked) -> None:
    house = House(policy)
    house.governor.limit(1.0)

    house.governor.throttled(9.0)
    house.governor.limit(1.0)
    assert policy.signals.throttled_until == 9.0
    house.governor.throttled(5.0)  # which is over sooner, and says nothing new
    house.governor.limit(1.0)

    assert policy.decided == [1.0, 1.0]
    assert policy.signals.throttled_until == 9.0


def test_a_policy_that_reads_no_window_is_told_nothing_of_it_and_a_reader_everything() -> None:
    house = House(policy := AskedOnInteractive(), Counts(counts=(1, 2, 3, 4), submitted=[0.5]))
    house.arrived(1.0)
    house.completed(1.0, 0.5)
    house.governor.limit(1.0)

    assert policy.signals == Signals(
        max_concurrency=8,
        batch_max=6,
        batch_min=2,
        interactive_running=1,
        interactive_queued=2,
        batch_running=3,
        batch_queued=4,
        slice_length=SLICE,
        batch_lowest=3,
    )
    assert house.governor.read(1.0)[1].sample_count == 1


@given(
    st.lists(
        st.tuples(st.floats(0, 3 * SLICE), st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from(["", "arrive", "end"])),
        max_size=40,
    ),
    st.sampled_from([AskedOnInteractive, AskedOnBatch, AskedOnNothing]),
)
def test_a_kept_decision_is_the_one_that_asking_again_would_give(
    steps: list[tuple[float, Any, str]], kind: type[Asked]
) -> None:
    """Of a policy that is a function of what it says it reads, and of what it was last advanced on."""

    def answer(now: float, signals: Signals) -> Decision:
        values = {name: getattr(signals, name) for name in kind.reads}  # type: ignore[attr-defined]
        counts = [value for name, value in sorted(values.items()) if name.endswith(("running", "queued"))]
        return Decision(2 + sum(counts) % 5)

    house, now = House(kind(answer)), 0.0
    for gap, counts, event in steps:
        now += gap
        house.watched.counts = counts
        if event == "arrive":
            house.arrived(now)
        elif event == "end":
            house.completed(now, 0.1)
        assert house.governor.limit(now) == house.governor.read(now)[0].limit
        assert house.governor.next_look(now) > now


# What is told of single calls


def test_an_event_advances_first_and_asks_again() -> None:
    house = House(policy := Hears())
    house.governor.limit(1.0)

    house.governor.tell(1.0 + SLICE, Arrived(7))
    house.governor.tell(1.0 + SLICE, Ended(7))
    house.governor.limit(1.0 + SLICE)

    assert policy.advanced == pytest.approx([1.0, 1.0 + SLICE])
    assert policy.told == [(1.0 + SLICE, Arrived(7)), (1.0 + SLICE, Ended(7))]
    assert policy.decided == [1.0, 1.0 + SLICE]


def test_an_event_in_the_middle_of_a_slice_asks_again_though_no_signal_has_changed() -> None:
    house = House(policy := Hears())
    house.governor.limit(1.0)

    house.governor.tell(1.0, FirstToken(7))
    house.governor.limit(1.0)
    house.governor.limit(1.0)

    assert policy.advanced == [1.0]
    assert policy.decided == [1.0, 1.0]


def test_while_it_hears_the_policy_is_at_work_and_afterwards_no_more() -> None:
    at_work: list[bool] = []

    class Looks(Hears):
        def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
            at_work.append(house.governor.asking)
            raise ValueError

    house = House(Looks())
    house.governor.tell(1.0, Arrived(7))

    assert at_work == [True]
    assert not house.governor.asking
    assert [type(fault) for fault in house.faults] == [ValueError]


@pytest.mark.parametrize("observing, hears", [(True, True), (1, True), (False, False), (None, False)])
def test_it_hears_only_if_it_wants_to(observing: object, hears: bool) -> None:
    policy = Hears()
    policy.observing = observing  # type: ignore[attr-defined]

    assert (House(policy).governor.observe is not None) == hears


def test_a_policy_without_the_door_or_with_something_else_there_hears_nothing() -> None:
    class Odd(Asked):
        observe = 3

    class Unreadable(Hears):
        @property
        def observing(self) -> bool:
            raise RuntimeError

    assert [House(policy).governor.observe for policy in (Asked(), Odd(), Unreadable())] == [None] * 3


def test_another_policy_hears_from_then_on() -> None:
    first, second = Hears(), Hears()
    house = House(first)
    house.governor.set_policy(second)
    house.governor.tell(1.0, Arrived(7))
    house.governor.set_policy(Asked())

    assert house.governor.observe is None
    assert (first.told, second.told) == ([], [(1.0, Arrived(7))])
    assert second.advanced == [1.0]
