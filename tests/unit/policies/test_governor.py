"""From what is known to the batch limit in force: when the policy is asked, and what becomes of its faults.

Keeps promises 5 (how long a decision is kept), 29, 30 and 32 of SEMANTICS.md as far as they are decided without a loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count

import pytest

from llm_traffic_scheduler import ConfigError, Decision, PressurePolicy, Signals
from llm_traffic_scheduler.core.admission import Limits
from llm_traffic_scheduler.policies.validity import caught_up
from tests.unit.core.tracing import EveryInstruction
from tests.unit.policies.governed import SLICE, WINDOW, Asked, AskedOnRate, Counts, House, failing


def test_an_answer_is_kept_until_its_valid_until() -> None:
    policy = Asked(lambda now, signals: Decision(4, valid_until=5.0))
    house = House(policy)

    for now in (1.0, 2.0, 4.999, 5.0):
        assert house.governor.limit(now) == 4

    assert policy.decided == [1.0, 5.0]


def test_an_arrival_makes_the_governor_ask_again() -> None:
    policy = AskedOnRate()
    house = House(policy)
    house.governor.limit(1.0)

    house.arrived(1.5)
    house.governor.limit(1.5)

    assert policy.decided == [1.0, 1.5]
    assert policy.signals.rps == 1 / WINDOW


def test_a_sample_that_leaves_the_window_makes_the_governor_ask_again() -> None:
    policy = AskedOnRate()
    house = House(policy)
    house.arrived(0.0)

    rates = []
    for now in (1.0, 9.9, 10.0):
        house.governor.limit(now)
        rates.append(policy.signals.rps)

    assert policy.decided == [1.0, 10.0]
    assert rates == [0.1, 0.1, 0.0]


@pytest.mark.parametrize("policy, asked", [(Asked(), 2), (AskedOnRate(), 1)])
def test_changed_counts_matter_to_a_policy_that_reads_them(policy: Asked, asked: int) -> None:
    house = House(policy)
    house.governor.limit(1.0)

    house.watched.counts = (1, 0, 0, 0)
    house.governor.limit(1.0)

    assert len(policy.decided) == asked


@pytest.mark.parametrize("limit, clamped", [(-1, 2), (0, 2), (3, 3), (7, 6), (10**30, 6)])
def test_a_limit_outside_the_bounds_is_clamped(limit: int, clamped: int) -> None:
    house = House(Asked(lambda now, signals: Decision(limit, 0.5)))

    assert house.governor.limit(0.0) == clamped
    decision, _, _ = house.governor.read(0.0)
    assert (decision.limit, decision.pressure) == (clamped, 0.5)


def test_changed_bounds_ask_again() -> None:
    policy = AskedOnRate(lambda now, signals: Decision(signals.batch_max))
    house = House(policy)
    assert house.governor.limit(0.0) == 6

    house.watched.limits = Limits(max_concurrency=8, batch_max=3)
    house.governor.forget()

    assert house.governor.limit(0.0) == 3


def test_a_change_of_the_limit_is_told_once() -> None:
    house = House(Asked(lambda now, signals: Decision(4 if now < 5 else 3, valid_until=now)))

    for now in (1.0, 2.0, 5.0, 6.0):
        house.governor.limit(now)

    assert house.changes == [(4, 3)]


def test_the_policy_is_advanced_at_most_once_per_slice_and_before_its_events() -> None:
    policy = Asked()
    house = House(policy)

    for step in range(400):
        house.arrived(step / 100)  # ten events per slice

    slices = [math.floor(now / SLICE + 1e-6) for now in policy.advanced]
    assert slices == sorted(set(slices))
    assert len(slices) == 40
    assert policy.decided == []


def test_after_a_quiet_spell_the_policy_is_advanced_where_the_signals_changed() -> None:
    policy = Asked()
    house = House(policy)
    for now in (0.0, 3.0, 4.0):
        house.arrived(now)
    policy.advanced.clear()

    house.arrived(500.0)

    # The slice of the last arrival ends at 4.1; then the arrivals leave one by one.
    assert policy.advanced == pytest.approx([4.1, 10.0, 13.0, 14.0, 500.0])


def test_reading_changes_nothing_and_shows_what_would_be_decided() -> None:
    looked_at, moved_on = (House(PressurePolicy(rps_threshold=1.0, smoothing=3.0)) for _ in range(2))
    for house in (looked_at, moved_on):
        for number in range(50):
            house.arrived(number / 10)

    # The last arrival leaves at 14.9; long after that only a trace of the average is left.
    for now in (5.0, 9.0, 16.0, 40.0):
        decision, signals, reading = looked_at.governor.read(now)
        limit = moved_on.governor.limit(now)
        decided, decided_on, window = moved_on.governor.read(now)

        assert (decision.limit, signals, reading) == (limit, decided_on, window)
        assert decision.pressure == pytest.approx(decided.pressure)
    assert looked_at.governor.read(4.95) == looked_at.governor.read(4.95)
    assert looked_at.changes == []


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), RecursionError()])
def test_when_a_policy_raises_its_last_decision_stays_for_one_window_and_then_the_floor(error: BaseException) -> None:
    house = House(Asked(failing(error, until=60.0)))

    assert [house.governor.limit(now) for now in (0.0, 1.0, 10.9, 11.0, 30.0)] == [4, 4, 4, 2, 2]
    assert house.faults == [error] * 4
    assert house.governor.limit(60.0) == 4


def test_a_second_fault_after_a_good_answer_gets_a_window_of_its_own() -> None:
    broken = [False]

    def answer(now: float, signals: Signals) -> Decision:
        if broken[0]:
            raise ValueError
        return Decision(5, valid_until=now)

    house = House(Asked(answer))
    limits = []
    for now, fault in ((0.0, False), (1.0, True), (8.0, False), (9.0, True), (18.9, True), (19.0, True)):
        broken[0] = fault
        limits.append(house.governor.limit(now))

    assert limits == [5, 5, 5, 5, 5, 2]


def test_a_policy_that_takes_a_failing_ones_place_and_fails_too_gets_a_window_of_its_own() -> None:
    house = House(Asked(failing(ValueError(), until=math.inf)))
    for now in (0.0, 1.0):
        house.governor.limit(now)

    house.governor.set_policy(Asked(failing(ValueError(), until=math.inf)))

    assert [house.governor.limit(now) for now in (12.0, 21.5, 22.0)] == [4, 4, 2]


def test_a_policy_that_never_answered_leaves_the_floor() -> None:
    house = House(Asked(failing(ValueError(), until=math.inf)))

    assert house.governor.limit(1.0) == 2
    assert house.governor.read(1.0)[0].reason == "policy_failed"


@pytest.mark.parametrize("limit", [3.0, True, None, math.nan, "3"])
def test_an_answer_that_is_no_whole_number_is_a_fault(limit: int) -> None:
    house = House(Asked(lambda now, signals: Decision(4 if now < 1 else limit, valid_until=now)))

    assert [house.governor.limit(now) for now in (0.0, 1.0, 11.0)] == [4, 4, 2]
    assert all(isinstance(fault, ConfigError) for fault in house.faults)
    assert house.governor.read(1.5)[0].reason == "policy_failed"


def test_a_policy_that_cannot_be_advanced_is_reported_and_still_asked() -> None:
    class Stuck(Asked):
        def advance(self, now: float, signals: Signals) -> None:
            raise ZeroDivisionError

    house = House(Stuck())
    house.arrived(0.0)

    assert house.governor.limit(0.0) == 4
    assert [type(fault) for fault in house.faults] == [ZeroDivisionError]


@pytest.mark.parametrize("valid_until", [math.nan, -math.inf, 0.0, 3.0])
def test_the_next_look_is_always_later_than_now(valid_until: float) -> None:
    house = House(Asked(lambda now, signals: Decision(4, valid_until=valid_until)))
    house.governor.limit(3.0)

    assert 3.0 < house.governor.next_look(3.0) <= 3.0 + SLICE


def test_the_next_look_is_when_the_decision_expires_or_a_sample_leaves() -> None:
    house = House(Asked(lambda now, signals: Decision(4, valid_until=12.0)))
    house.governor.limit(1.0)
    assert house.governor.next_look(1.0) == pytest.approx(12.0)

    house.arrived(1.0)
    house.governor.limit(1.0)
    assert house.governor.next_look(1.0) == pytest.approx(1.0 + SLICE)  # the policy is to hear of the arrival

    house.governor.limit(3.0)
    assert house.governor.next_look(3.0) == pytest.approx(11.0)


def test_a_decision_that_stands_for_ever_needs_no_look() -> None:
    house = House(Asked())
    house.governor.limit(3.0)

    assert house.governor.next_look(3.0) == math.inf


def test_while_a_policy_fails_it_is_looked_at_once_a_slice() -> None:
    house = House(Asked(failing(ValueError(), until=math.inf)))
    house.governor.limit(2.0)

    assert house.governor.next_look(2.0) == pytest.approx(2.0 + SLICE)


def test_unfinished_calls_older_than_the_policys_threshold_join_the_quantiles() -> None:
    house = House(PressurePolicy(p95_threshold=2.0))
    house.completed(10.0, 0.5)
    house.watched.submitted = [7.0, 9.5]

    assert house.governor.limit(10.0) == 2  # 3 s against 2 s
    _, signals, reading = house.governor.read(10.0)
    assert (signals.p95, signals.sample_count, signals.oldest_unfinished) == (3.0, 2, 3.0)
    assert reading.p95_finished == signals.p95_finished == pytest.approx(0.5, rel=0.01)


def test_an_unfinished_call_is_noticed_as_soon_as_it_is_older_than_the_threshold() -> None:
    house = House(PressurePolicy(p95_threshold=2.0))
    house.watched.submitted = [7.0]

    assert [house.governor.limit(now) for now in (7.5, 9.0, 9.001)] == [6, 6, 2]


def test_without_a_threshold_only_finished_calls_are_samples() -> None:
    policy = Asked()
    house = House(policy)
    house.watched.submitted = [0.0]
    house.governor.limit(100.0)

    assert (policy.signals.p95, policy.signals.sample_count) == (0.0, 0)
    assert policy.signals.oldest_unfinished == 100.0


@pytest.mark.parametrize("latency, samples", [(0.9, 1), (1.1, 2)])
def test_a_failure_counts_only_from_the_present_p95_up(latency: float, samples: int) -> None:
    policy = Asked()
    house = House(policy)
    house.completed(1.0, 1.0)

    house.governor.failed(2.0, latency)
    house.governor.limit(2.0)

    assert policy.signals.sample_count == samples


def test_another_policy_is_asked_at_once() -> None:
    house = House(Asked())
    assert house.governor.limit(1.0) == 4

    house.governor.set_policy(Asked(lambda now, signals: Decision(5)))

    assert house.governor.limit(1.0) == 5


def test_a_reader_in_another_thread_advances_no_policy_that_is_replaced_meanwhile() -> None:
    for instruction in range(300):
        policy, looks = Asked(), count()
        house = House(policy)
        house.arrived(0.0)
        advanced = list(policy.advanced)

        def look(house: House = house, looks: Iterator[int] = looks, at: int = instruction) -> None:
            if next(looks) == at:
                house.governor.set_policy(Asked())

        with EveryInstruction(look):
            caught_up(house.governor, 60.0)

        assert policy.advanced == advanced


class Unreadable(Asked):
    """A policy that does not even say what it looks at."""

    @property
    def reads(self) -> frozenset[str]:
        raise RuntimeError("not now")


def test_a_policy_that_cannot_say_what_it_reads_is_taken_to_read_everything() -> None:
    policy = Unreadable()
    house = House(policy)
    house.governor.limit(0.0)

    house.watched.counts = (1, 0, 0, 0)
    house.governor.limit(0.0)

    assert policy.decided == [0.0, 0.0]


@pytest.mark.parametrize("smoothing,looks", [(None, 2), (5.0, 102)])
def test_a_reading_after_a_quiet_spell_looks_once_at_who_waits_unless_the_policy_averages(
    smoothing: float | None, looks: int
) -> None:
    class Crowd(Counts):
        looked = 0

        def unfinished(self, now: float, older_than: float) -> tuple[list[float], float]:
            self.looked += 1
            return super().unfinished(now, older_than)

    crowd = Crowd(submitted=[0.0] * 1_000)
    house = House(PressurePolicy(p95_threshold=1.0, smoothing=smoothing), crowd)
    house.arrived(0.0)
    crowd.looked = 0

    house.governor.read(60.0)

    assert crowd.looked <= looks


def test_a_first_token_that_has_left_the_window_is_no_reason_to_look_again_at_once() -> None:
    house = House(Asked())
    house.completed(0.0, 1.0)
    house.governor.first_token(0.0, 0.5)
    house.governor.pace(0.0, 0.01)

    for now in (0.0, WINDOW + SLICE, 2 * WINDOW):
        house.governor.limit(now)

        assert house.governor.next_look(now) >= now + SLICE / 200
