"""The scavenger: slow start, a gain per round trip, and out of the way when interactive calls become slower."""

from __future__ import annotations

import pytest

from llm_traffic_scheduler import Arrived, ConfigError, Ended
from llm_traffic_scheduler.simulation.laws import Scavenger
from tests.unit.simulation.laws.driven import Driven


def with_a_base(limit: int | None = None) -> Driven:
    """A law that has measured a base of 0.1 s per token."""
    driven = Driven(Scavenger())
    driven.law.observe(driven.now, Arrived(1))  # type: ignore[attr-defined]
    driven.run(8, pace=0.1)
    if limit is not None:
        while driven.limit < limit:
            driven.run(0.1, pace=0.12)
    return driven


def test_with_nobody_to_yield_to_it_doubles() -> None:
    driven = Driven(Scavenger())

    driven.run(8)

    assert driven.limits[-1] == 64
    assert set(driven.limits) == {1, 2, 4, 8, 16, 32, 64}


def test_with_nobody_to_yield_to_it_still_does_not_grow_unused() -> None:
    driven = Driven(Scavenger(), uses=False)

    assert driven.run(8, batch_running=1) <= 4


def test_one_call_that_took_long_does_not_stop_the_clock() -> None:
    driven = with_a_base(limit=8)
    before = driven.limit

    driven.law.observe(driven.now, Ended(1, 1000.0, None, 10_000))  # type: ignore[attr-defined]

    assert driven.run(6, pace=0.14) >= before + 3


def test_the_first_interactive_call_begins_a_slow_down() -> None:
    driven = Driven(Scavenger())
    driven.run(8)

    driven.law.observe(driven.now, Arrived(1))  # type: ignore[attr-defined]

    assert driven.run(1.5, pace=0.1) == 1
    assert driven.law.decide(driven.now, driven.signals).reason == "slow_down"


def test_after_a_slow_down_it_doubles_as_long_as_nobody_is_slower() -> None:
    driven = with_a_base()

    assert driven.run(8, pace=0.1) >= 32


def test_while_the_pace_is_within_its_allowance_it_gains_one_per_round_trip() -> None:
    driven = with_a_base()
    driven.run(4, pace=0.1)
    before = driven.run(3, pace=0.142)  # above 3/4 of the allowed rise: slow start is over

    after = driven.run(10, pace=0.142)

    assert after - before == pytest.approx(10 / 1.4, abs=3)


def test_a_rise_beyond_its_allowance_costs_as_much_as_it_is_and_half_at_most() -> None:
    little, much = (with_a_base(limit=16) for _ in range(2))
    driven_to = little.limit

    assert driven_to * 0.5 < little.run(1.5, pace=0.16) <= driven_to * 0.95
    assert driven_to * 0.45 <= much.run(1.2, pace=10.0) <= driven_to * 0.55


def test_where_the_pace_comes_near_its_allowance_slow_start_is_over() -> None:
    driven = with_a_base()
    driven.run(3, pace=0.145)
    before = driven.limit

    assert driven.run(4, pace=0.1) <= before + 4


def test_calls_that_never_end_halve_it() -> None:
    driven = with_a_base(limit=16)

    assert driven.run(30, interactive_running=5) == 1


def test_one_call_that_never_ends_harms_nobody() -> None:
    driven = with_a_base(limit=16)

    assert driven.run(8, interactive_running=1) == 16


def test_more_failures_than_completions_halve_it() -> None:
    driven = with_a_base(limit=16)

    assert driven.run(15, pace=0.1, outcome="failed") == 1


def test_callers_that_hang_up_say_nothing() -> None:
    driven = with_a_base(limit=16)
    before = driven.limit

    assert driven.run(5, pace=9.0, outcome="cancelled") == before


def test_throttling_holds_the_floor_and_halves() -> None:
    driven = with_a_base(limit=16)
    before = driven.limit

    assert driven.run(1.0, pace=0.1, throttled_until=driven.now + 2.0) == 1
    assert driven.run(1.2, pace=0.1) < before


def test_a_new_base_is_measured_after_nine_times_as_long_as_the_last_took() -> None:
    driven = with_a_base()

    slow = [step for step in range(2000) if driven.run(0.1, pace=0.1 if step % 10 == 0 else None) == 1]

    assert 0.05 < len(slow) / 2000 < 0.2


def test_what_was_under_way_when_batch_had_drained_makes_no_base() -> None:
    law = Scavenger(samples=1)
    driven = Driven(law)
    law.observe(driven.now, Arrived(1))
    driven.run(0.2)

    law.observe(driven.now + 0.1, Ended(1, 5.0, None, 10, "completed"))

    assert driven.run(0.5) == 1
    assert law.decide(driven.now, driven.signals).reason == "slow_down"


def test_it_does_not_grow_while_batch_work_does_not_use_what_it_has() -> None:
    driven = with_a_base(limit=8)
    driven.uses = False

    assert driven.run(20, pace=0.1, batch_running=2) <= 16


def test_the_pace_of_a_stream_leaves_out_its_first_token() -> None:
    streams, whole = Scavenger(samples=1), Scavenger(samples=1)
    for law, event in ((streams, Ended(1, 5.0, 4.0, 11)), (whole, Ended(1, 1.1, None, 11))):
        driven = Driven(law)
        law.observe(driven.now, Arrived(1))
        driven.run(6, interactive_running=1)
        law.observe(driven.now, event)
        driven.run(0.2)

    assert (streams._base, whole._base) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(
    "arguments, message",
    [({"rise": 0.0}, "rise must be a finite number above 0"), ({"samples": 0}, "samples must be a whole number")],
)
def test_numbers_that_cannot_be_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scavenger(**arguments)  # type: ignore[arg-type]


def test_it_shows_its_numbers() -> None:
    assert repr(Scavenger()) == "Scavenger(rise=0.5, samples=5)"
