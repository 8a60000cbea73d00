"""What type checkers know of the public names. Checked by `mypy --strict`, never run.

Keeps API.md's signatures. Each line with an ignored error is a use that must be refused: `warn_unused_ignores`, part of
strict, fails where it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Literal, assert_never, assert_type

from llm_traffic_scheduler import (
    AdaptivePolicy,
    Arrived,
    Calibration,
    CalibrationPoint,
    CallFinished,
    CallInfo,
    CallQueued,
    CallRejected,
    CallStarted,
    CloseReport,
    Decision,
    Ended,
    Event,
    ExternalPolicy,
    FirstToken,
    FixedPolicy,
    Gauge,
    GaugeReading,
    KindTotals,
    LimitChanged,
    LimitPolicy,
    LimitRecord,
    ObservingPolicy,
    Outcome,
    PressurePolicy,
    QueueFull,
    QueueTimeout,
    Reason,
    Rejected,
    RunTimeout,
    SchedulerSnapshot,
    Shadow,
    ShadowRecord,
    ShadowReport,
    Signals,
    Slot,
    Stream,
    StreamClosed,
    TrafficKind,
    TrafficScheduler,
    TrafficSnapshot,
    calibrate,
    current_slot,
)
from llm_traffic_scheduler.testing import HeldSlots, VirtualTimeLoop, hold, run_virtual, unlimited

scheduler = TrafficScheduler(max_concurrency=8, interactive_p95_threshold=0.5)


async def ask(question: str, temperature: float = 0.0) -> list[str]:
    return [question]


async def embed(texts: list[str], /, *, model: str) -> dict[str, float]:
    return {}


async def ping() -> None: ...


def later(seconds: int) -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


def awaitable(number: int) -> Awaitable[int]:
    return asyncio.sleep(0, number)


def blocking(question: str) -> str:
    return question


class Client:
    async def complete(self, prompt: str, tokens: int) -> tuple[str, int]:
        return prompt, tokens

    async def __call__(self, prompt: str) -> str:
        return prompt


async def results_have_the_type_that_the_function_returns() -> None:
    assert_type(await scheduler.submit("interactive", ask, "why?"), list[str])
    assert_type(await scheduler.submit("batch", ask, "why?", 0.7, priority=5), list[str])
    assert_type(await scheduler.submit(TrafficKind.BATCH, ping), None)
    assert_type(await scheduler.submit("batch", later, 3), bytes)
    assert_type(await scheduler.submit("batch", awaitable, 3), int)
    assert_type(await scheduler.submit("batch", lambda: embed(["a"], model="small")), dict[str, float])
    assert_type(await scheduler.submit("batch", partial(ask, "why?", temperature=0.7)), list[str])
    assert_type(await scheduler.submit("batch", partial(embed, model="small"), ["a"]), dict[str, float])
    assert_type(await scheduler.submit("batch", Client().complete, "why?", 100), tuple[str, int])
    assert_type(await scheduler.submit("batch", Client(), "why?"), str)
    assert_type(await scheduler.submit("batch", asyncio.to_thread, blocking, "why?"), str)


async def every_option_is_known() -> None:
    await scheduler.submit(
        "interactive", ping, priority=0.5, queue_timeout=1, run_timeout=None, label="ping", observe=False
    )
    assert_type(await scheduler.submit("batch", ask, "why?", preemptible=True), list[str])
    assert_type(scheduler.submit_from_thread("batch", ask, "why?", preemptible=True), Future[list[str]])
    async with scheduler.slot("batch", priority=-1, queue_timeout=None, run_timeout=2.5, label="a", observe=True):
        pass


async def wrong_uses_of_submit_are_refused(kind: str) -> None:
    await scheduler.submit("interactive", ask)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask, 3)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ping, "surplus")  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask("why?"))  # type: ignore[arg-type]
    await scheduler.submit("interactive", blocking, "why?")  # type: ignore[arg-type]
    await scheduler.submit("urgent", ping)  # type: ignore[arg-type]
    await scheduler.submit(kind, ping)  # type: ignore[arg-type]
    await scheduler.submit("interactive", ask, question="why?")  # type: ignore[arg-type, call-arg]
    await scheduler.submit("interactive", ping, priority="high")  # type: ignore[arg-type]
    await scheduler.submit("batch", ping, preemptible="yes")  # type: ignore[arg-type]
    await scheduler.submit("interactive", ping, weight=2)  # type: ignore[call-arg]
    await scheduler.submit(kind="interactive", coro_fn=ping)  # type: ignore[call-arg]


async def rows() -> AsyncIterator[str]:
    yield "why?"


async def bulk_work_knows_items_and_results() -> None:
    async for answer in scheduler.map("batch", ask, ["why?"]):
        assert_type(answer, list[str])
    async for answer in scheduler.map("interactive", ask, rows(), buffer=3, progress=True, run_timeout=3.0):
        assert_type(answer, list[str])
    async with scheduler.map(None, Client().__call__, ("why?",)) as answers:
        assert_type([answer async for answer in answers], list[str])
    async with scheduler.as_completed("batch", awaitable, range(3), progress=lambda done, total: None) as outcomes:
        async for outcome in outcomes:
            assert_type(outcome, Outcome[int, int])
            assert_type(outcome.index, int)
            assert_type(outcome.item, int)
            assert_type(outcome.result, int | None)
            assert_type(outcome.error, BaseException | None)
            assert_type(outcome.get(), int)
            outcome.result = 3  # type: ignore[misc]
    async for each in scheduler.as_completed("batch", ask, rows(), priority=len, tenant=str.lower, label="night"):
        assert_type(each, Outcome[str, list[str]])
    assert_type(await anext(scheduler.map("batch", lambda text: ask(text), ["why?"])), list[str])
    assert_type(await anext(scheduler.map("batch", partial(embed, model="small"), [["a"]])), dict[str, float])
    results: AsyncIterator[bytes] = scheduler.map("batch", later, [3])
    await anext(results)


def wrong_uses_of_bulk_work_are_refused() -> None:
    scheduler.map("batch", awaitable, ["why?"])  # type: ignore[arg-type]
    scheduler.map("batch", blocking, ["why?"])  # type: ignore[arg-type]
    scheduler.map("urgent", ask, ["why?"])  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], buffer="many")  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], label=len)  # type: ignore[arg-type]
    scheduler.map("batch", ask, ["why?"], weight=2)  # type: ignore[call-arg]
    scheduler.as_completed("batch", ask, 3)  # type: ignore[arg-type]


async def a_slot_is_what_the_block_gets() -> None:
    assert_type(scheduler.slot("batch"), AbstractAsyncContextManager[Slot])
    async with scheduler.slot("interactive", label="chat") as slot:
        assert_type(slot, Slot)
        assert_type(slot.kind, str)
        assert_type(slot.label, str | None)
        assert_type(slot.waited, float)
        slot.first_token()
        slot.tokens(3)
        slot.tokens("three")  # type: ignore[arg-type]
        slot.throttled()
        slot.throttled(20)
        slot.throttled(retry_after=None)
        slot.throttled("20")  # type: ignore[arg-type]
        slot.label = "other"  # type: ignore[misc]
    assert_type(current_slot(), Slot | None)

    with scheduler.slot("batch"):  # type: ignore[attr-defined]
        pass
    async with scheduler.slot("batch", weight=2):  # type: ignore[call-arg]
        pass


def threads_get_a_future_of_what_the_function_returns() -> None:
    assert_type(scheduler.submit_from_thread("interactive", ask, "why?"), Future[list[str]])
    assert_type(scheduler.submit_from_thread("batch", ping, label="ping", run_timeout=3).result(5), None)
    assert_type(scheduler.submit_from_thread("batch", later, 3), Future[bytes])
    assert_type(scheduler.slot_from_thread("batch", priority=2), AbstractContextManager[None])
    assert_type(scheduler.timeouts_in_force("batch"), tuple[float, float])
    with scheduler.slot_from_thread("interactive", queue_timeout=3) as nothing:
        assert_type(nothing, None)

    scheduler.submit_from_thread("interactive", ask, 3)  # type: ignore[arg-type]
    scheduler.submit_from_thread("interactive", blocking, "why?")  # type: ignore[arg-type]
    scheduler.submit_from_thread("urgent", ping)  # type: ignore[arg-type]
    scheduler.submit_from_thread("interactive", ping, weight=2)  # type: ignore[call-arg]
    scheduler.slot_from_thread("batch", weight=2)  # type: ignore[call-arg]


@scheduler.wrap("batch", priority=3, label="wrapped")
async def wrapped(question: str, *, words: int = 3) -> list[str]:
    return [question] * words


class WrappedClient:
    @scheduler.wrap("interactive")
    async def complete(self, prompt: str, tokens: int = 3) -> tuple[str, int]:
        return prompt, tokens

    @staticmethod
    @scheduler.wrap()
    async def static(prompt: str) -> bytes:
        return prompt.encode()


async def words(question: str, *, times: int = 1) -> AsyncIterator[str]:
    for _ in range(times):
        yield question


async def create(question: str) -> AsyncIterator[bytes]:
    return numbers(3)


@asynccontextmanager
async def managed(count: int) -> AsyncIterator[AsyncIterator[bytes]]:
    yield numbers(count)


async def numbers(count: int) -> AsyncIterator[bytes]:
    yield b"x" * count


async def a_stream_has_the_type_of_its_items() -> None:
    assert_type(scheduler.stream("interactive", words, "why?"), Stream[str])
    assert_type(scheduler.stream("batch", create, "why?", idle_timeout=None, run_timeout=3), Stream[bytes])
    assert_type(scheduler.stream(None, managed, 3, label="x", tenant="t"), Stream[bytes])
    async with scheduler.stream("interactive", words, "why?") as stream:
        assert_type(await stream.start(), None)
        async for word in stream:
            assert_type(word, str)
    assert_type(await anext(stream), str)
    assert_type(await stream.aclose(), None)
    assert_type(StreamClosed("x", idle=1.0).idle, float | None)

    scheduler.stream("interactive", words, 3)  # type: ignore[call-overload]
    scheduler.stream("urgent", words, "why?")  # type: ignore[call-overload]
    scheduler.stream("interactive", ping)  # type: ignore[call-overload]
    scheduler.stream("interactive", words, "why?", weight=2)  # type: ignore[call-overload]


@scheduler.wrap("interactive", label="wrapped")
async def wrapped_words(question: str, *, times: int = 1) -> AsyncIterator[str]:
    yield question * times


async def a_wrapped_generator_function_is_a_stream() -> None:
    assert_type(wrapped_words("why?", times=2), Stream[str])

    wrapped_words(3)  # type: ignore[arg-type]


async def a_wrapped_function_has_the_types_of_the_function() -> None:
    assert_type(await wrapped("why?"), list[str])
    assert_type(await wrapped(question="why?", words=4), list[str])
    assert_type(await WrappedClient().complete("why?", tokens=4), tuple[str, int])
    assert_type(await WrappedClient.static("why?"), bytes)
    assert_type(await scheduler.submit("batch", wrapped, "why?"), list[str])

    await wrapped(3)  # type: ignore[arg-type]
    await wrapped("why?", 4)  # type: ignore[call-arg]
    await WrappedClient().complete()  # type: ignore[call-arg]
    scheduler.wrap("batch")(blocking)  # type: ignore[arg-type]
    scheduler.wrap("batch")(later)  # type: ignore[arg-type]
    scheduler.wrap("urgent")  # type: ignore[arg-type]
    scheduler.wrap("batch", weight=2)  # type: ignore[call-arg]


def a_snapshot_is_whole_and_cannot_be_changed() -> None:
    snapshot = scheduler.snapshot()
    assert_type(snapshot, SchedulerSnapshot)
    assert_type(snapshot.name, str)
    assert_type(
        (snapshot.max_concurrency, snapshot.batch_max_concurrency, snapshot.batch_min_concurrency), tuple[int, int, int]
    )
    assert_type((snapshot.running, snapshot.interactive_running, snapshot.batch_running), tuple[int, int, int])
    assert_type((snapshot.interactive_queued, snapshot.batch_queued, snapshot.overdue), tuple[int, int, int])
    assert_type((snapshot.batch_limit, snapshot.pressure, snapshot.detail), tuple[int, float, str])
    assert_type(snapshot.reason, Reason)
    assert_type(snapshot.paused, frozenset[str])
    assert_type((snapshot.oldest_interactive_wait, snapshot.oldest_batch_wait), tuple[float, float])
    assert_type((snapshot.oldest_interactive_running, snapshot.oldest_batch_running), tuple[float, float])
    assert_type(snapshot.interactive, TrafficSnapshot)
    assert_type((snapshot.interactive.rps, snapshot.interactive.sample_count), tuple[float, int])
    assert_type(
        (snapshot.interactive.p50, snapshot.interactive.p95, snapshot.interactive.p99), tuple[float, float, float]
    )
    assert_type(snapshot.totals, Mapping[str, KindTotals])
    totals = snapshot.totals["batch"]
    assert_type((totals.submitted, totals.started, totals.completed, totals.failed), tuple[int, int, int, int])
    assert_type((totals.cancelled, totals.timed_out, totals.rejected, totals.preempted), tuple[int, int, int, int])

    snapshot.running = 3  # type: ignore[misc]
    snapshot.totals["batch"] = totals  # type: ignore[index]
    snapshot.interactive.p95 = 0.0  # type: ignore[misc]


def calls_can_be_looked_at() -> None:
    assert_type(scheduler.explain(), str)
    assert_type(scheduler.limit_history(), tuple[LimitRecord, ...])
    for record in scheduler.limit_history():
        assert_type((record.time, record.limit, record.pressure, record.reason), tuple[float, int, float, str])
    assert_type(scheduler.calls(), tuple[CallInfo, ...])
    for call in scheduler.calls():
        assert_type((call.kind, call.label), tuple[str, str | None])
        assert_type(call.state, Literal["queued", "released", "running", "overdue"])
        assert_type((call.age, call.waited), tuple[float, float])


async def the_end_is_reported() -> None:
    assert_type(await scheduler.close(), CloseReport)
    report = await scheduler.close(timeout=None, finish_queued=["batch", TrafficKind.INTERACTIVE])
    assert_type((report.finished, report.rejected, report.cancelled, report.abandoned), tuple[int, int, int, int])
    await scheduler.drain()
    async with TrafficScheduler(max_concurrency=2) as other:
        assert_type(other, TrafficScheduler)

    await scheduler.close(5)  # type: ignore[call-arg]
    await scheduler.close(finish_queued=["urgent"])  # type: ignore[list-item]


def events_are_a_closed_union(event: Event) -> str:
    match event:
        case CallQueued():
            return f"{event.queued} wait"
        case CallStarted():
            return f"after {event.waited} s"
        case CallFinished():
            assert_type(event.outcome, Literal["completed", "failed", "cancelled", "timed_out"])
            assert_type((event.ran, event.first_token, event.tokens), tuple[float, float | None, int])
            return event.outcome
        case CallRejected():
            assert_type(event.reason, Literal["queue_full", "queue_timeout", "closed"])
            return event.reason
        case LimitChanged():
            return f"{event.before} to {event.after}"
        case _:
            assert_never(event)


def one_event_forgotten_is_noticed(event: Event) -> None:
    if isinstance(event, (CallQueued, CallStarted, CallRejected, LimitChanged)):
        return
    assert_never(event)  # type: ignore[arg-type]


def listeners_take_one_event() -> None:
    def count(event: Event) -> None: ...
    def only_starts(event: CallStarted) -> None: ...

    scheduler.add_listener(count)
    scheduler.remove_listener(count)
    scheduler.add_listener(only_starts)  # type: ignore[arg-type]
    scheduler.add_listener(lambda: None)  # type: ignore[arg-type, misc]


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


def errors_carry_their_numbers(error: Rejected, full: QueueFull, late: QueueTimeout, ran: RunTimeout) -> None:
    assert_type((error.kind, error.retry_after), tuple[str, float | None])
    assert_type((full.queued, full.limit), tuple[int, int])
    assert_type(late.waited, float)
    as_builtin: list[TimeoutError] = [late, ran]
    del as_builtin


def virtual_time_returns_what_the_main_coroutine_does() -> None:
    assert_type(run_virtual(ask("why?")), list[str])
    assert_type(VirtualTimeLoop().time(), float)


async def doubles_have_the_types_of_the_real_thing() -> None:
    with hold(scheduler, 2) as held:
        assert_type(held, HeldSlots)
    double = unlimited()
    assert_type(double.calls[0].kind, str | None)
    assert_type(await double.submit("batch", ask, "why?"), list[str])
    assert_type(await double.submit(None, ask, "why?", 0.7, label="a"), list[str])
    async with double.slot() as slot:
        assert_type(slot, Slot)

    @double.wrap()
    async def question(text: str) -> bytes:
        return text.encode()

    assert_type(await question(text="why?"), bytes)
    await double.submit("batch", ask, 3)  # type: ignore[arg-type]
    await question(3)  # type: ignore[arg-type]


async def a_calibration_makes_a_scheduler_or_has_gaps() -> None:
    result = await calibrate(ping, rates=[1, 2.5], seconds_per_rate=20, progress=lambda share, text: print(share, text))
    assert_type(result, Calibration)
    assert_type(result.max_concurrency, int | None)
    assert_type(result.interactive_rps_threshold, float | None)
    assert_type(result.points, tuple[CalibrationPoint, ...])
    assert_type(result.points[0].p95, float | None)
    TrafficScheduler(**result.arguments())
    TrafficScheduler(batch_max_concurrency=2, **result.arguments())
    await calibrate(lambda: ask("why?"), rates=(1, 2), seconds_per_rate=20.0, is_throttled=lambda error: 3.0)

    TrafficScheduler(max_concurrency=result.max_concurrency)  # type: ignore[arg-type]
    await calibrate(ask, rates=[1], seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping(), rates=[1], seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping, rates=[1])  # type: ignore[call-arg]
    await calibrate(ping, rates=3, seconds_per_rate=20)  # type: ignore[arg-type]
    await calibrate(ping, rates=[1], seconds_per_rate=20, is_throttled=lambda error: "yes")  # type: ignore[arg-type, return-value]
