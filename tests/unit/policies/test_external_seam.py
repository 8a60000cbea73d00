"""What an `ExternalPolicy` tells the scheduler of itself and of the laws inside, and the copies it makes.

Keeps the docstrings of `LimitPolicy` and `ObservingPolicy` for it.
"""

from __future__ import annotations

from llm_traffic_scheduler import (
    Arrived,
    ExternalPolicy,
    FixedPolicy,
    GaugeReading,
    LimitPolicy,
    ObservingPolicy,
    PressurePolicy,
    Signals,
)
from llm_traffic_scheduler.policies.base import Observation
from tests.unit.policies.gauged import SIGNALS, Dial, Told, looked


def test_it_reads_the_bounds_and_what_the_laws_inside_read() -> None:
    dial = Dial()

    assert ExternalPolicy(dial).reads == {"batch_max", "batch_min", "throttled_until"}
    assert ExternalPolicy(dial, also=PressurePolicy(5)).reads > {"rps", "p95", "throttled_until"}
    assert "interactive_queued" not in ExternalPolicy(dial, also=PressurePolicy(5)).reads
    assert ExternalPolicy(dial, fallback=Told()).reads > {"interactive_queued", "oldest_batch_wait", "pace"}
    assert isinstance(ExternalPolicy(dial), LimitPolicy)


def test_unfinished_calls_join_at_the_lowest_threshold_inside() -> None:
    dial = Dial()

    assert ExternalPolicy(dial, also=FixedPolicy(3)).p95_threshold is None
    assert ExternalPolicy(dial, also=PressurePolicy(5, 2.0)).p95_threshold == 2.0
    both = ExternalPolicy(dial, also=PressurePolicy(5, 2.0), fallback=PressurePolicy(5, 1.5))
    assert both.p95_threshold == 1.5


def test_on_another_loop_the_reading_is_forgotten_and_the_laws_inside_hear_of_it() -> None:
    fallback, also = Told(), Told()
    report = GaugeReading(0.5, 0.0)
    policy = looked(ExternalPolicy(Dial(report), fallback=fallback, also=also))
    policy.reset()

    assert policy.reading is None
    assert (fallback.resets, also.resets) == (1, 1)
    assert looked(policy).reading == report  # the gauge still shows it


def test_a_replica_looks_for_itself_and_complains_to_nobody() -> None:
    dial = Dial(0.5)
    policy = looked(ExternalPolicy(dial))
    replica = policy.replica()
    dial.shows = ConnectionError()
    replica.advance(1.0, SIGNALS)
    dial.shows = 1.0
    replica.advance(2.0, SIGNALS)

    assert replica.decide(2.0, SIGNALS).limit == 2
    assert policy.decide(2.0, SIGNALS).limit == 6


def test_a_replica_asks_once_for_all_the_time_it_is_brought_through() -> None:
    asked: list[None] = []

    def source() -> float:
        asked.append(None)
        return 0.5

    replica = ExternalPolicy(source).replica()
    for slice_end in range(100):
        replica.advance(float(slice_end), SIGNALS)

    assert len(asked) == 1
    assert replica.reading == GaugeReading(0.5, 99.0)


def test_a_replica_tells_nothing_to_a_law_that_has_no_copy() -> None:
    plain, smoothed = Told(), PressurePolicy(10, smoothing=5.0)
    policy = looked(ExternalPolicy(Dial(), fallback=plain, also=smoothed))
    replica = policy.replica()
    replica.advance(1.0, Signals(batch_max=10, rps=10.0))

    assert len(plain.advanced) == 1
    assert replica.fallback is plain
    assert replica.also is not smoothed
    assert isinstance(replica.also, PressurePolicy)
    assert smoothed.decide(9.0, SIGNALS).pressure == 0 < replica.also.decide(9.0, SIGNALS).pressure


class Listens(Told):
    """A law that hears of single calls, unless it says that it need not."""

    def __init__(self, observing: bool = True) -> None:
        super().__init__()
        self.observing = observing
        self.heard: list[Observation] = []

    def observe(self, now: float, event: Observation) -> None:
        self.heard.append(event)


def test_single_calls_are_heard_of_by_those_inside_that_need_them() -> None:
    needs, needs_not = Listens(), Listens(observing=False)
    policy = ExternalPolicy(Dial(), fallback=needs, also=needs_not)
    policy.observe(1.0, Arrived(7))

    assert policy.observing
    assert (needs.heard, needs_not.heard) == ([Arrived(7)], [])


def test_without_anybody_who_needs_them_single_calls_are_not_asked_for() -> None:
    assert not ExternalPolicy(Dial()).observing
    assert not ExternalPolicy(Dial(), fallback=Told(), also=Listens(observing=False)).observing
    assert isinstance(ExternalPolicy(Dial()), ObservingPolicy)
