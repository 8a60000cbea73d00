"""One arm on one workload: every call counted once, in virtual time, alike in every run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, TypeVarTuple

import pytest

from llm_traffic_scheduler import Arrived, ConfigError, Ended, FirstToken, FixedPolicy, TrafficScheduler
from llm_traffic_scheduler.simulation.arms import FixedSplit, Kind, Unscheduled
from llm_traffic_scheduler.simulation.backend import Broken, OnFirstToken
from llm_traffic_scheduler.simulation.batching_server import BatchingServer
from llm_traffic_scheduler.simulation.results import RunResult
from llm_traffic_scheduler.simulation.runner import Clients, Workload, run_arm
from llm_traffic_scheduler.simulation.traces import CallLength, RecordedCall

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHAT = tuple(RecordedCall(0.5 * number, CallLength(600, 80)) for number in range(60))
BATCH = (CallLength(1000, 100), CallLength(2000, 200))


class TokenASecond:
    """Every call takes one second for each token of its answer, whatever runs beside it; 99 of them never end."""

    async def serve(self, prompt_tokens: int, output_tokens: int, *, first_token: OnFirstToken | None = None) -> None:
        if output_tokens == 99:
            await asyncio.get_running_loop().create_future()
        if output_tokens == 13:
            raise Broken if prompt_tokens else ConnectionError
        await asyncio.sleep(output_tokens)


def calls(*seconds: int, at: float = 0.0) -> tuple[RecordedCall, ...]:
    return tuple(RecordedCall(at, CallLength(0, length)) for length in seconds)


def simple(interactive: tuple[RecordedCall, ...] | Clients, **changes: object) -> Workload:
    settings = {"span": 10.0, "batch": (CallLength(7, 3),), "backlog": 4, "backend": TokenASecond, "grace": 5.0}
    return Workload(interactive=interactive, **{**settings, **changes})  # type: ignore[arg-type]


def scheduler(limit: int = 8) -> TrafficScheduler:
    return TrafficScheduler(max_concurrency=16, batch_max_concurrency=limit, policy=FixedPolicy(limit))


def chat(make_arm: Callable[[], TrafficScheduler | FixedSplit] = scheduler, **changes: object) -> RunResult:
    settings = {"interactive": CHAT, "span": 30.0, "batch": BATCH, "backlog": 24}
    return run_arm(Workload(**{**settings, **changes}), make_arm, sample_every=1.0)  # type: ignore[arg-type]


def test_each_interactive_call_is_measured_from_its_arrival_to_its_end() -> None:
    result = run_arm(simple((*calls(1), *calls(2, 3, at=4.5)), backlog=0), Unscheduled)

    assert result.arrivals == (0.0, 4.5, 4.5)
    assert result.latencies == pytest.approx((1.0, 2.0, 3.0))


def test_the_time_to_first_token_is_known_where_the_backend_reports_it() -> None:
    result = chat()

    assert len(result.first_tokens) == len(CHAT)
    assert 0 < result.first_token.p95 < result.interactive.p50
    assert run_arm(simple(calls(1)), Unscheduled).first_token.count == 0


def test_a_wait_in_the_arm_is_part_of_the_latency() -> None:
    result = run_arm(simple(calls(2, 2, 2)), lambda: FixedSplit(2, 1))

    assert result.latencies == pytest.approx((2.0, 4.0, 5.0))  # a batch call has the second slot until 3 s


def test_batch_calls_count_if_they_end_within_the_span_with_all_their_tokens() -> None:
    result = run_arm(simple(calls(1)), lambda: FixedSplit(4, 2))

    ends = [call.ended for call in result.batch]
    assert ends[:6] == pytest.approx([3.0, 3.0, 6.0, 6.0, 9.0, 9.0])
    assert result.goodput == pytest.approx(6 * 10 / 10.0)


def test_calls_in_flight_at_the_end_of_the_span_are_waited_for() -> None:
    result = run_arm(simple(calls(4, at=9.0)), lambda: FixedSplit(4, 2))

    assert result.latencies == pytest.approx((4.0,))
    assert result.unfinished == 0


def test_what_batch_does_while_they_are_waited_for_counts_for_nothing() -> None:
    result = run_arm(simple(calls(4, at=9.0)), lambda: FixedSplit(4, 2))

    assert [call.ended for call in result.batch][-2:] == pytest.approx([12.0, 12.0])
    assert result.goodput == pytest.approx(6 * 10 / 10.0)


def test_a_call_that_never_ends_is_a_miss_and_the_run_is_over_after_the_grace() -> None:
    result = run_arm(simple(calls(99, 1)), Unscheduled)

    assert (result.unfinished, result.latencies[0]) == (1, math.inf)
    assert result.within(1000.0) == 0.5
    assert result.batch[-1].ended == pytest.approx(12.0)  # the next ones would have ended at 15 s


def test_a_failure_that_was_announced_is_a_miss_and_batch_goes_on_after_a_second() -> None:
    lengths = (CallLength(7, 13), CallLength(7, 3))
    result = run_arm(simple((*calls(1), RecordedCall(0.0, CallLength(1, 13))), batch=lengths, backlog=1), Unscheduled)

    assert (result.failed, result.within(1000.0)) == (1, 0.5)
    assert [call.started for call in result.batch] == pytest.approx([1.0, 5.0])
    assert result.batch_failed == 3


def test_any_other_failure_ends_the_run() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_arm(simple(calls(13)), Unscheduled)

    assert caught.group_contains(ConnectionError)


def test_every_arm_sees_the_same_arrivals_and_the_same_batch_calls_in_the_same_order() -> None:
    narrow, wide = (run_arm(simple(CHAT[:20]), partial(FixedSplit, 8, room)) for room in (1, 3))

    assert narrow.arrivals == wide.arrivals == pytest.approx([call.arrival for call in CHAT[:20]])
    assert len(wide.batch) > len(narrow.batch)


def test_two_runs_are_equal() -> None:
    assert chat() == chat()


def test_the_scheduler_with_a_fixed_limit_does_what_the_fixed_split_does() -> None:
    ours, by_hand = chat(), chat(lambda: FixedSplit(16, 8))

    assert (ours.latencies, ours.batch, ours.goodput) == (by_hand.latencies, by_hand.batch, by_hand.goodput)


def test_tokens_that_the_engine_computed_twice_are_waste() -> None:
    flood = Workload(interactive=CHAT, span=30.0, batch=(CallLength(1700, 400),), backlog=400)

    assert run_arm(flood, Unscheduled).wasted_tokens > 0
    assert chat().wasted_tokens == 0


def test_starts_at_one_instant_and_the_peak_are_counted_at_the_server() -> None:
    result = run_arm(simple(calls(1, 1, at=0.5), backlog=20), lambda: FixedSplit(6, 4))

    assert (result.most_starts, result.peak_at_server) == (4, 6)


def test_batch_calls_in_the_place_of_others_are_none_more() -> None:
    # Both of the first two end at 4 s, and the next two begin at once.
    workload = simple((), batch=(CallLength(0, 3), CallLength(0, 2), *[CallLength(0, 9)] * 6), backlog=8)

    result = run_arm(workload, lambda: Ladder(FixedSplit(6, 2)))

    assert [call.ended for call in result.batch] == pytest.approx([4.0, 4.0])
    assert (result.most_starts, result.most_added) == (2, 1)


@pytest.mark.parametrize("reports", [False, True])
def test_calls_report_first_tokens_and_tokens_to_the_scheduler_if_they_are_told_to(reports: bool) -> None:
    policy = Listening()
    workload = Workload(interactive=CHAT[:5], span=5.0, batch=BATCH, backlog=2, reports=reports)
    run_arm(workload, lambda: TrafficScheduler(max_concurrency=8, batch_max_concurrency=2, policy=policy))

    ended = [event for event in policy.heard if isinstance(event, Ended)]
    assert [event.tokens for event in ended] == [80 if reports else 0] * 5
    assert len([event for event in policy.heard if isinstance(event, FirstToken)]) == (5 if reports else 0)


def test_samples_show_the_limit_and_what_is_at_the_server() -> None:
    result = chat()

    assert [sample.time for sample in result.samples] == pytest.approx([number + 0.5 for number in range(30)])
    assert {limit for _, limit in result.limits} == {8}
    assert max(sample.batch for sample in result.samples) == 8
    assert result.idle_slots(8) == pytest.approx(8 - sum(sample.batch for sample in result.samples) / 30)
    assert (result.limit_turns, result.total_turns > 0) == (0, True)


def test_nobody_is_asked_for_a_snapshot_unless_samples_are_wanted() -> None:
    result = run_arm(simple(calls(1)), scheduler)

    assert (result.samples, result.idle_slots(8)) == ((), 0.0)


class Ladder:
    """Lets the first four calls in one by one, a second apart."""

    def __init__(self, inner: FixedSplit) -> None:
        self._inner, self._begun = inner, 0

    async def submit(self, kind: Kind, coro_fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts) -> T:
        self._begun += 1
        await asyncio.sleep(min(self._begun, 4))
        return await self._inner.submit(kind, coro_fn, *args)


class Listening(FixedPolicy):
    observing = True

    def __init__(self) -> None:
        super().__init__(2)
        self.heard: list[Arrived | FirstToken | Ended] = []

    def observe(self, now: float, event: Arrived | FirstToken | Ended) -> None:
        self.heard.append(event)


@dataclass
class TwoInARow:
    began: list[float] = field(default_factory=list)

    async def play(self, call: Callable[[CallLength], Awaitable[None]], span: float, /) -> None:
        for _ in range(2):
            self.began.append(asyncio.get_running_loop().time())
            await call(CallLength(0, 4))


def test_clients_that_wait_for_their_answers_begin_the_next_call_after_the_last() -> None:
    clients = TwoInARow()
    result = run_arm(simple(clients), Unscheduled)

    assert result.arrivals == pytest.approx((0.0, 4.0))
    assert result.latencies == pytest.approx((4.0, 4.0))
    assert len(clients.began) == 2


def test_no_interactive_calls_at_all_are_a_workload_too() -> None:
    result = run_arm(simple(()), Unscheduled)

    assert (result.latencies, result.interactive.count, result.within(1.0)) == ((), 0, 1.0)
    assert result.goodput == pytest.approx(12 * 10 / 10.0)


def test_progress_adds_up_to_the_whole_span() -> None:
    heard: list[float] = []
    run_arm(simple(calls(1)), Unscheduled, progress=heard.append)

    assert sum(heard) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"span": math.nan}, "span must be a finite number, at least 0, got nan"),
        ({"batch": ()}, "needs their lengths, got none"),
    ],
)
def test_a_workload_that_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simple((), **changes)


def test_the_default_backend_is_the_simulated_a100() -> None:
    assert Workload(interactive=(), span=1.0, batch=BATCH).backend is BatchingServer
