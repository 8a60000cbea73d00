"""What type checkers know of policies and settings.

Checked by `mypy --strict`, never run, as public_api.py says.
"""

from __future__ import annotations

from typing import Literal, assert_never, assert_type

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    Decision,
    Ended,
    ExternalPolicy,
    FirstToken,
    FixedPolicy,
    Gauge,
    GaugeReading,
    LimitPolicy,
    ObservingPolicy,
    PressurePolicy,
    Shadow,
    ShadowRecord,
    ShadowReport,
    Signals,
    TrafficKind,
    TrafficScheduler,
)
from tests.typing.asked import ping, scheduler


class Headroom:
    """A user's own law needs no base class."""

    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> Decision:
        assert_type((signals.rps, signals.p95, signals.ttft_p95), tuple[float, float, float | None])
        assert_type((signals.interactive_running, signals.batch_queued), tuple[int, int])
        assert_type((signals.pace, signals.throttled_until, signals.slice_length), tuple[float | None, float, float])
        return Decision(signals.batch_max - signals.interactive_running, reason="headroom", valid_until=now + 1)


class Forgetful:
    def decide(self, now: float, signals: Signals) -> Decision:
        return Decision(1)


class Vague:
    def advance(self, now: float, signals: Signals) -> None: ...

    def decide(self, now: float, signals: Signals) -> float:
        return 1.0


def any_object_with_both_methods_is_a_policy() -> None:
    laws: list[LimitPolicy] = [Headroom(), PressurePolicy(rps_threshold=20), FixedPolicy(3)]
    TrafficScheduler(max_concurrency=8, policy=laws[0])
    scheduler.configure(policy=Headroom(), max_concurrency=12)
    scheduler.configure(interactive_rps_threshold=20.0, smoothing=None)

    TrafficScheduler(max_concurrency=8, policy=Forgetful())  # type: ignore[arg-type]
    TrafficScheduler(max_concurrency=8, policy=Vague())  # type: ignore[arg-type]
    TrafficScheduler(max_concurrency=8, policy=Headroom)  # type: ignore[arg-type]
    Decision(limit=2.5)  # type: ignore[arg-type]
    Decision(limit=2).limit = 3  # type: ignore[misc]


def an_outside_gauge_is_a_policy() -> None:
    gauge = Gauge()
    gauge.report(0.5)
    assert_type(gauge(), GaugeReading | None)
    laws: list[LimitPolicy] = [
        ExternalPolicy(gauge),
        ExternalPolicy(lambda: 0.5, max_age=30, refresh=0.5),
        ExternalPolicy(lambda: GaugeReading(0.5, at=3.0), fallback=FixedPolicy(3), also=Headroom()),
        ExternalPolicy(lambda: None),
    ]
    TrafficScheduler(max_concurrency=8, policy=laws[0])

    gauge.report("busy")  # type: ignore[arg-type]
    ExternalPolicy(0.5)  # type: ignore[arg-type]
    ExternalPolicy(Gauge)  # type: ignore[arg-type]
    ExternalPolicy(lambda: "busy")  # type: ignore[arg-type, return-value]
    ExternalPolicy(ping)  # type: ignore[arg-type]
    ExternalPolicy(gauge, FixedPolicy(3))  # type: ignore[call-arg, arg-type]
    ExternalPolicy(gauge, also=Forgetful())  # type: ignore[arg-type]


def laws_can_be_tried_beside_another() -> None:
    shadow = Shadow(PressurePolicy(rps_threshold=20), Headroom(), Shadow(FixedPolicy(3)), history=100)
    TrafficScheduler(max_concurrency=8, policy=shadow)
    assert_type(shadow.history, tuple[ShadowRecord, ...])
    assert_type(shadow.history[0].decisions, tuple[Decision | None, ...])
    assert_type((shadow.history[0].time, shadow.history[0].limits), tuple[float, tuple[int | None, ...]])
    assert_type(shadow.report(), tuple[ShadowReport, ...])
    report = shadow.report()[1]
    assert_type((report.policy, report.seconds, report.mean_limit), tuple[str, float, float])
    assert_type((report.mean_difference, report.more, report.less, report.faults), tuple[float, float, float, int])
    assert_type(shadow.explain(), str)

    Shadow()  # type: ignore[call-arg]
    Shadow(FixedPolicy(3), Forgetful())  # type: ignore[arg-type]


class Listens(Headroom):
    """It may hear of single calls beside."""

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        match event:
            case Arrived():
                assert_type(event.call, int)
            case FirstToken():
                assert_type((event.call, event.elapsed), tuple[int, float])
            case Ended():
                assert_type((event.latency, event.first_token, event.tokens), tuple[float, float | None, int])
                assert_type(event.outcome, Literal["completed", "failed", "cancelled", "timed_out", "rejected"])
            case _:
                assert_never(event)


class ListensToArrivals(Headroom):
    def observe(self, now: float, event: Arrived) -> None: ...


def a_policy_that_observes_is_one_of_its_own_kind() -> None:
    laws: list[ObservingPolicy] = [Listens(), AdaptivePolicy(p95_target=1.0), AdaptivePolicy()]
    TrafficScheduler(max_concurrency=8, policy=laws[0])
    scheduler.configure(policy=AdaptivePolicy(ttft_target=0.5, pace_target=0.05))
    observing: ObservingPolicy = Headroom()  # type: ignore[assignment]
    observing = ListensToArrivals()  # type: ignore[assignment]
    del observing

    AdaptivePolicy("1.0")  # type: ignore[arg-type]
    Arrived(call=3).call = 4  # type: ignore[misc]
    Ended(outcome="lost")  # type: ignore[arg-type]


def wrong_settings_are_refused() -> None:
    TrafficScheduler()  # type: ignore[call-arg]
    TrafficScheduler(8)  # type: ignore[call-arg]
    TrafficScheduler(max_concurrency="8")  # type: ignore[arg-type]
    TrafficScheduler(max_concurrency=8, weight=2)  # type: ignore[call-arg]
    scheduler.configure(name="other")  # type: ignore[call-arg]
    scheduler.configure(window=None)  # type: ignore[arg-type]
    scheduler.pause("urgent")  # type: ignore[arg-type]
    scheduler.pause("batch")
    scheduler.resume(TrafficKind.BATCH)
