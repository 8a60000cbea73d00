"""What other laws would have done, recorded beside the one that acts, which never notices.

Keeps the part of API.md and CONTROL.md on `Shadow`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_traffic_scheduler import (
    Arrived,
    ConfigError,
    Decision,
    ExternalPolicy,
    FixedPolicy,
    LimitPolicy,
    ObservingPolicy,
    PressurePolicy,
    Shadow,
    Signals,
)
from llm_traffic_scheduler.policies.base import Observation
from tests.support import Law

SIGNALS = Signals(max_concurrency=12, batch_max=10, batch_min=2)


class Steered:
    """A law that decides on what the test sets, or raises it, and keeps when it was told something."""

    def __init__(self, answer: Any = 5) -> None:
        self.answer = answer
        self.advanced: list[float] = []
        self.resets = 0

    def advance(self, now: float, signals: Signals) -> None:
        self.advanced.append(now)

    def decide(self, now: float, signals: Signals) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return Decision(self.answer, self.answer / 10, "steered") if isinstance(self.answer, int) else self.answer

    def reset(self) -> None:
        self.resets += 1

    def __repr__(self) -> str:
        return "Steered()"


class Broken:
    """A law of which everything but `named` works."""

    def __init__(self, named: str, error: BaseException) -> None:
        self._named, self._error = named, error

    def _perhaps(self, name: str) -> None:
        if name == self._named:
            raise self._error

    def advance(self, now: float, signals: Signals) -> None:
        self._perhaps("advance")

    def decide(self, now: float, signals: Signals) -> Decision:
        self._perhaps("decide")
        return Decision(3)

    def reset(self) -> None:
        self._perhaps("reset")


def played(shadow: Shadow, *times: float) -> Shadow:
    for now in times:
        shadow.advance(now, SIGNALS)
    return shadow


# Who acts


def test_only_the_acting_policys_answer_acts() -> None:
    shadow = played(Shadow(Steered(5), Steered(3), FixedPolicy(9)), 0.0)

    assert shadow.decide(0.0, SIGNALS) == Decision(5, 0.5, "steered")


def test_all_are_told_what_holds() -> None:
    acting, other = Steered(), Steered()
    played(Shadow(acting, other), 0.0, 1.0)

    assert acting.advanced == other.advanced == [0.0, 1.0]


ERRORS = [ValueError("a bug"), MemoryError(), RecursionError(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("where", ["advance", "decide", "reset"])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_another_policy_raises_is_counted_and_goes_no_further(where: str, error: BaseException) -> None:
    last = Steered(7)
    shadow = Shadow(Steered(5), Broken(where, error), last)
    shadow.reset()
    played(shadow, 0.0, 1.0)

    assert shadow.decide(1.0, SIGNALS).limit == 5
    assert [report.faults for report in shadow.report()] == [0, 1 if where == "reset" else 2, 0]
    assert shadow.history[-1].limits == (5, None if where == "decide" else 3, 7)
    assert last.resets == 1


@pytest.mark.parametrize(
    "answer",
    [None, 3.0, "3", Decision(True), Decision(2.5), Decision(3, "high"), Decision(3, 0.5, ["x"])],  # type: ignore[arg-type]
    ids=repr,
)
def test_an_answer_that_is_none_is_a_fault(answer: Any) -> None:
    shadow = played(Shadow(Steered(5), Steered(answer)), 0.0, 1.0)

    assert shadow.history[0].limits == (5, None)
    assert shadow.report()[1].faults == 2
    assert shadow.report()[1].seconds == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_meant_for_the_process_goes_on(error: BaseException) -> None:
    with pytest.raises(type(error)):
        played(Shadow(Steered(), Broken("decide", error)), 0.0)


def test_the_acting_policys_own_faults_are_as_without_a_shadow() -> None:
    other = Steered()
    shadow = Shadow(Broken("advance", ZeroDivisionError()), other)
    with pytest.raises(ZeroDivisionError):
        shadow.advance(0.0, SIGNALS)
    assert (other.advanced, shadow.history[0].limits) == ([0.0], (3, 5))

    shadow = played(Shadow(Broken("decide", ZeroDivisionError()), Steered()), 0.0)
    with pytest.raises(ZeroDivisionError):
        shadow.decide(0.0, SIGNALS)
    assert shadow.history[0].limits == (None, 5)


def test_an_acting_policy_that_cannot_reset_says_so_and_the_others_are_reset() -> None:
    other = Steered()
    with pytest.raises(ZeroDivisionError):
        Shadow(Broken("reset", ZeroDivisionError()), other).reset()

    assert other.resets == 1


# The record


def test_an_instant_shows_what_each_would_have_decided_inside_the_bounds() -> None:
    shadow = played(Shadow(Steered(5), FixedPolicy(2**63 - 1), Steered(1)), 4.0)

    (record,) = shadow.history
    assert record.time == 4.0
    assert record.limits == (5, 10, 2)
    assert record.decisions[0] == Decision(5, 0.5, "steered")
    assert [decision.reason for decision in record.decisions if decision] == ["steered", "fixed", "steered"]


def test_the_history_keeps_the_last_instants_and_the_report_covers_all() -> None:
    shadow = played(Shadow(Steered(5), Steered(3), history=2), 0.0, 1.0, 2.0, 3.0)

    assert [record.time for record in shadow.history] == [2.0, 3.0]
    assert shadow.report()[1].seconds == 3.0


def test_a_history_that_grows_while_it_is_read_is_read_again() -> None:
    class GrowsOnce(deque[Any]):
        grown = False

        def __iter__(self) -> Iterator[Any]:
            if not self.grown:
                self.grown = True
                raise RuntimeError("deque mutated during iteration")
            return super().__iter__()

    shadow = played(Shadow(Steered(5)), 0.0, 1.0)
    shadow._history = GrowsOnce(shadow._history)

    assert [record.time for record in shadow.history] == [0.0, 1.0]


def test_the_report_weighs_by_time() -> None:
    other = Steered(8)
    shadow = played(Shadow(Steered(5), other), 0.0)
    for answer, now in ((3, 1.0), (5, 4.0), (9, 10.0)):  # 8 for 1 s, 3 for 3 s, 5 for 6 s
        other.answer = answer
        shadow.advance(now, SIGNALS)

    acting, report = shadow.report()
    assert (acting.seconds, acting.mean_limit, acting.mean_difference, acting.more, acting.less) == (10, 5, 0, 0, 0)
    assert report.policy == "Steered()"
    assert (report.seconds, report.faults) == (10.0, 0)
    assert report.mean_limit == pytest.approx((8 * 1 + 3 * 3 + 5 * 6) / 10)
    assert report.mean_difference == pytest.approx(report.mean_limit - 5)
    assert (report.more, report.less) == pytest.approx((0.1, 0.3))


def test_time_in_which_one_of_the_two_has_no_answer_is_not_compared() -> None:
    acting, other = Steered(5), Steered(8)
    shadow = played(Shadow(acting, other), 0.0)
    other.answer = ValueError()
    shadow.advance(1.0, SIGNALS)
    acting.answer, other.answer = ValueError(), 2
    shadow.advance(3.0, SIGNALS)
    shadow.advance(7.0, SIGNALS)

    acting_report, report = shadow.report()
    assert (acting_report.seconds, acting_report.mean_limit) == (3.0, 5.0)
    assert (report.seconds, report.mean_limit, report.more) == (1.0, 8.0, 1.0)


@pytest.mark.parametrize("times", [(5.0, 3.0), (math.nan, 1.0), (-math.inf, 1.0), (2.0, 2.0)])
def test_a_clock_that_goes_back_or_wrong_adds_no_time(times: tuple[float, float]) -> None:
    shadow = played(Shadow(Steered(5), Steered(3)), *times)

    assert [report.seconds for report in shadow.report()] == [0, 0]


def test_without_a_record_the_report_is_empty() -> None:
    shadow = Shadow(Steered(), Steered())

    assert shadow.history == ()
    assert [(report.mean_limit, report.more) for report in shadow.report()] == [(0.0, 0.0), (0.0, 0.0)]


def test_explain_says_it_in_a_line_for_each() -> None:
    shadow = played(Shadow(Steered(5), FixedPolicy(3), FixedPolicy(9)), 0.0, 10.0)

    assert shadow.explain().splitlines() == [
        "acting: Steered(), mean limit 5 over 10 s",
        "beside it: FixedPolicy(3), mean limit 3 (-2); more for 0% of 10 s, less for 100%; 0 faults",
        "beside it: FixedPolicy(9), mean limit 9 (+4); more for 100% of 10 s, less for 0%; 0 faults",
    ]


def test_on_another_loop_a_new_record_begins() -> None:
    acting, other = Steered(), Steered()
    shadow = played(Shadow(acting, other), 100.0, 101.0)
    shadow.reset()

    assert shadow.history == ()
    assert shadow.report()[1].seconds == 0
    assert (acting.resets, other.resets) == (1, 1)
    assert played(shadow, 0.0, 1.0).report()[1].seconds == 1.0


# The seam


def test_what_the_scheduler_asks_about_the_policy_is_the_acting_ones() -> None:
    acting = PressurePolicy(p95_threshold=2.0)
    shadow = Shadow(acting, Steered(), PressurePolicy(p95_threshold=1.0))

    assert shadow.reads == acting.reads
    assert shadow.p95_threshold == 2.0
    assert Shadow(Steered(), acting).p95_threshold is None
    assert Shadow(Steered()).reads > {"interactive_queued", "oldest_unfinished", "pace"}
    assert isinstance(shadow, LimitPolicy)


def test_a_replica_is_the_acting_ones_and_records_nothing() -> None:
    smoothed = PressurePolicy(10, smoothing=5.0)
    shadow = played(Shadow(smoothed, Steered()), 0.0)
    replica = shadow.replica()
    replica.advance(1.0, SIGNALS)

    assert isinstance(replica, PressurePolicy)
    assert replica is not smoothed
    assert len(shadow.history) == 1


@pytest.mark.parametrize("make", [Steered, lambda: PressurePolicy(10)])
def test_an_acting_policy_without_a_copy_leaves_the_shadow_without_one(make: Callable[[], LimitPolicy]) -> None:
    shadow = Shadow(make(), Steered())

    assert shadow.replica() is shadow


class Listens(Steered):
    """A law that hears of single calls, unless it says that it need not."""

    def __init__(self, observing: bool = True, error: BaseException | None = None) -> None:
        super().__init__()
        self.observing = observing
        self.heard: list[Observation] = []
        self._error = error

    def observe(self, now: float, event: Observation) -> None:
        self.heard.append(event)
        if self._error is not None:
            raise self._error


def test_single_calls_are_heard_of_by_those_that_need_them() -> None:
    acting, needs_not, needs = Steered(), Listens(observing=False), Listens()
    shadow = Shadow(acting, needs_not, needs)
    shadow.observe(1.0, Arrived(7))

    assert shadow.observing
    assert (needs_not.heard, needs.heard) == ([], [Arrived(7)])
    assert not Shadow(acting, needs_not).observing
    assert Shadow(needs).observing
    assert isinstance(shadow, ObservingPolicy)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_another_policy_raises_on_a_single_call_is_counted_and_goes_no_further(error: BaseException) -> None:
    acting, last = Listens(), Listens()
    shadow = Shadow(acting, Listens(error=error), last)
    shadow.observe(1.0, Arrived(7))

    assert len(acting.heard) == len(last.heard) == 1
    assert [report.faults for report in shadow.report()] == [0, 1, 0]


def test_what_the_acting_policy_raises_on_a_single_call_is_as_without_a_shadow() -> None:
    other = Listens()
    with pytest.raises(ZeroDivisionError):
        Shadow(Listens(error=ZeroDivisionError()), other).observe(1.0, Arrived(7))

    assert len(other.heard) == 1


# Shadows of shadows


def test_shadows_nest() -> None:
    inner = Shadow(Steered(4), Steered(8))
    outer = Shadow(Shadow(Steered(5), Steered(6)), inner)
    played(outer, 0.0, 1.0)

    assert outer.decide(1.0, SIGNALS).limit == 5
    assert outer.history[-1].limits == (5, 4)
    assert inner.report()[1].more == 1.0


# The door


@pytest.mark.parametrize("value", [None, 3, FixedPolicy, object()])
def test_what_is_no_policy_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^acting must be an object with the methods advance and decide, got "):
        Shadow(value)
    with pytest.raises(ConfigError, match=r"^others\[1\] must be an object with the methods advance and decide, got "):
        Shadow(FixedPolicy(3), FixedPolicy(4), value)


def test_a_threshold_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^others\[0\].p95_threshold must be a finite number above 0"):
        Shadow(FixedPolicy(3), Law(lambda now, signals: Decision(3), p95_threshold=-1))


def test_the_same_object_twice_is_refused_however_deep() -> None:
    law = PressurePolicy(5)
    again = r"a second time: a policy object serves once"

    with pytest.raises(ConfigError, match=again):
        Shadow(law, law)
    with pytest.raises(ConfigError, match=again):
        Shadow(FixedPolicy(3), law, law)
    with pytest.raises(ConfigError, match=again):
        Shadow(law, Shadow(FixedPolicy(3), law))
    with pytest.raises(ConfigError, match=again):
        Shadow(law, Shadow(FixedPolicy(3), ExternalPolicy(lambda: None, also=Shadow(law))))


@pytest.mark.parametrize("history", [-1, 2.5, None, True])
def test_the_history_is_a_whole_number_of_instants(history: Any) -> None:
    with pytest.raises(ConfigError, match=r"^history must be"):
        Shadow(FixedPolicy(3), history=history)


def test_repr_shows_who_is_inside() -> None:
    assert repr(Shadow(FixedPolicy(3), FixedPolicy(4))) == "Shadow(FixedPolicy(3), FixedPolicy(4))"
