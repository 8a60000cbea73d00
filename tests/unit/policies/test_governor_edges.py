"""Where the governor changes its mind: ends of slices, failures, thresholds, and what a policy does not read.

Keeps promises 29, 30 and 32 of SEMANTICS.md at their edges.
"""

from __future__ import annotations

import math

import pytest

from llm_traffic_scheduler import Decision, PressurePolicy
from tests.unit.policies.governed import SLICE, WINDOW, Asked, AskedOnRate, Counts, House, failing


def test_another_window_is_looked_at_from_its_first_event_on() -> None:
    house = House(Asked())
    house.arrived(1.0)

    house.governor.set_window(house.governor.window.resized(2 * WINDOW, 1.0), 1.0)
    assert house.governor.limit(1.05) == 4

    assert house.governor.window.length == 2 * WINDOW
    assert house.governor.slice_end == house.governor.window.slice_end > 1.05


def test_another_window_makes_the_governor_ask_again() -> None:
    policy = AskedOnRate()
    house = House(policy)
    house.arrived(1.0)
    house.governor.limit(1.0)

    house.governor.set_window(house.governor.window.resized(WINDOW / 2, 1.0), 1.0)
    house.governor.limit(1.0)

    assert policy.decided == [1.0, 1.0]
    assert policy.signals.rps == 2 / WINDOW


def test_a_policy_that_cannot_say_what_it_reads_is_told_everything() -> None:
    class Shy(Asked):
        @property
        def reads(self) -> frozenset[str]:
            raise RuntimeError

    policy = Shy()
    house = House(policy, Counts(counts=(1, 2, 3, 4), submitted=[7.0]))

    house.governor.limit(9.0)
    house.watched.counts = (1, 2, 2, 4)
    house.governor.limit(9.0)

    assert policy.decided == [9.0, 9.0]
    assert policy.signals.oldest_unfinished == 2.0


def test_a_failure_at_the_very_end_of_a_slice_advances_the_policy_first() -> None:
    policy = Asked()
    house = House(policy)
    house.arrived(1.0)
    end = house.governor.slice_end

    house.governor.failed(end, 0.5)

    assert policy.advanced[-1] == end
    assert house.governor.slice_end > end


def test_before_any_decision_it_is_looked_at_once_a_slice() -> None:
    house = House(Asked())

    assert house.governor.next_look(2.0) == pytest.approx(2.0 + SLICE)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_reader_is_not_kept_from_being_interrupted(error: type[BaseException]) -> None:
    house = House(Asked(failing(error(), until=math.inf)))

    with pytest.raises(error):
        house.governor.read(1.0)
    assert house.faults == []


def test_at_the_very_end_of_a_slice_a_reader_sees_what_is_decided_there() -> None:
    looked_at, moved_on = (House(PressurePolicy(rps_threshold=0.1, smoothing=3.0)) for _ in range(2))
    for house in (looked_at, moved_on):
        for _ in range(3):
            house.arrived(0.0)
    end = looked_at.governor.slice_end

    seen = looked_at.governor.read(end)[0]
    moved_on.governor.limit(end)

    assert moved_on.governor.slice_end > end
    assert end < seen.valid_until < math.inf  # the policy has heard of the arrivals
    assert seen == moved_on.governor.read(end)[0]


def test_a_smoothing_policy_can_be_read_before_anything_has_happened() -> None:
    house = House(PressurePolicy(rps_threshold=1.0, smoothing=3.0))

    assert house.governor.read(1.0)[0] == Decision(6, 0.0, "calm")


class Copied(Asked):
    """A policy with a copy, which keeps when it was told something."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Asked] = []

    def replica(self) -> Asked:
        self.copies.append(Asked())
        return self.copies[-1]


@pytest.mark.parametrize("quiet", [1.5 * WINDOW, 1000.0])
def test_the_copy_that_is_read_after_a_spell_longer_than_the_window_hears_last_of_now(quiet: float) -> None:
    policy = Copied()
    house = House(policy)
    house.arrived(1.0)

    house.governor.read(1.0 + quiet)

    told = policy.copies[0].advanced
    assert told[-1] == 1.0 + quiet
    assert told[:-1] == pytest.approx([house.governor.slice_end + step * SLICE for step in range(100)])
    assert policy.advanced == [1.0]


def test_the_copy_that_is_read_before_anything_has_happened_hears_of_now() -> None:
    policy = Copied()

    House(policy).governor.read(7.0)

    assert policy.copies[0].advanced == [7.0]


def test_while_a_policy_fails_the_pressure_shown_is_the_last_it_told() -> None:
    told, mute = House(Asked(failing(ValueError(), until=60.0))), House(Asked(failing(ValueError(), until=60.0)))
    told.governor.limit(0.0)
    for house in (told, mute):
        house.governor.limit(1.0)

    for now in (2.0, 30.0):
        assert told.governor.read(now)[0].pressure == 0.25
        assert mute.governor.read(now)[0].pressure == 0.0


@pytest.mark.parametrize("threshold", [0, -1.0, math.inf, math.nan, "soon", None])
def test_a_threshold_that_makes_no_sense_is_none(threshold: object) -> None:
    policy = Asked()
    policy.p95_threshold = threshold  # type: ignore[attr-defined]
    house = House(policy)
    house.watched.submitted = [0.0]

    house.governor.limit(100.0)

    assert (policy.signals.sample_count, house.faults) == (0, [])


def test_unfinished_calls_are_looked_through_only_when_one_can_have_crossed_the_threshold() -> None:
    looks: list[float] = []

    class Looked(Counts):
        def unfinished(self, now: float, older_than: float) -> tuple[list[float], float]:
            looks.append(now)
            return super().unfinished(now, older_than)

    policy = AskedOnRate()
    policy.p95_threshold = 2.0  # type: ignore[attr-defined]
    house = House(policy, Looked(submitted=[5.95]))

    # All in one slice.
    for now in (7.91, 7.92, 7.94, 7.96):
        house.governor.fresh = False
        house.governor.limit(now)

    assert [now for now in looks if now > 7.91] == [7.96]


def test_a_threshold_that_the_policy_moves_counts_at_once() -> None:
    policy = AskedOnRate()
    policy.p95_threshold = 5.0  # type: ignore[attr-defined]
    house = House(policy, Counts(submitted=[7.0]))
    house.governor.limit(9.0)
    assert policy.signals.sample_count == 0

    policy.p95_threshold = 1.0  # type: ignore[attr-defined]
    house.arrived(9.0)
    house.governor.limit(9.0)

    assert policy.signals.sample_count == 1


def test_a_policy_that_reads_no_ages_is_told_none() -> None:
    policy = AskedOnRate()
    house = House(policy, Counts(submitted=[7.0]))

    house.governor.limit(9.0)

    assert (policy.signals.oldest_unfinished, policy.signals.oldest_batch_wait) == (0.0, 0.0)


def test_what_a_failure_must_reach_is_read_once_for_all_failures_of_a_slice() -> None:
    policy = Asked()
    house = House(policy)
    house.completed(1.0, 1.0)

    for latency in (5.0, 2.0, 0.5):  # the first raises the P95 above the second
        house.governor.failed(1.01, latency)
    house.governor.limit(1.01)

    assert policy.signals.sample_count == 3
