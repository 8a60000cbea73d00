"""What a policy is told and what people see, against a dull twin that keeps every sample for ever.

Keeps promises 28 to 31 of SEMANTICS.md as seen through the scheduler, and that the limit is the law on those signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llm_traffic_scheduler import CallStarted, Decision, Event, PressurePolicy, Signals, TrafficScheduler
from llm_traffic_scheduler.testing import VirtualTimeLoop

CAP, BATCH_MAX, BATCH_MIN = 12, 9, 2
ROUNDING = 1e-9
ONE_PERCENT = 0.01


class Recording:
    """The pressure law, with a note of what it was asked and what it said."""

    def __init__(self, rps_threshold: float, p95_threshold: float) -> None:
        self.rps_threshold, self.p95_threshold = rps_threshold, p95_threshold
        self._law = PressurePolicy(rps_threshold, p95_threshold)
        self.reads = self._law.reads
        self.asked: list[tuple[Signals, Decision]] = []

    def advance(self, now: float, signals: Signals) -> None:
        self._law.advance(now, signals)

    def decide(self, now: float, signals: Signals) -> Decision:
        decision = self._law.decide(now, signals)
        self.asked.append((signals, decision))
        return decision

    def formula(self, signals: Signals) -> tuple[int, float]:
        """CONTROL.md's, term by term."""
        pressure = max(signals.rps / self.rps_threshold, signals.p95 / self.p95_threshold)
        limit = round(BATCH_MAX - (BATCH_MAX - BATCH_MIN) * min(1.0, pressure))
        return max(limit, BATCH_MIN), pressure


@dataclass(eq=False)
class Chat:
    """One interactive call, and when what happened to it."""

    submitted: float
    observed: bool
    ended: float = math.inf
    failed: bool = False
    counts: bool = True
    unsure: bool = False

    @property
    def latency(self) -> float:
        return self.ended - self.submitted


def quantile(percent: int, samples: list[float]) -> float:
    """Nearest-rank; 0.0 without samples."""
    return sorted(samples)[-(-len(samples) * percent // 100) - 1] if samples else 0.0


def close(value: float, exact: float) -> bool:
    return abs(value - exact) <= ONE_PERCENT * exact + ROUNDING


class SignalsMachine(RuleBasedStateMachine):
    """Interactive calls of all lengths beside a batch backlog; some fail, some are not to be observed."""

    @initialize(
        window=st.sampled_from([1.0, 4.0, 10.0]), rps=st.sampled_from([0.5, 3.0, 20.0]), p95=st.sampled_from([0.3, 2.0])
    )
    def build(self, window: float, rps: float, p95: float) -> None:
        self.loop = VirtualTimeLoop()
        self.window = window
        self.policy = Recording(rps, p95)
        self.scheduler = TrafficScheduler(
            max_concurrency=CAP,
            batch_max_concurrency=BATCH_MAX,
            batch_min_concurrency=BATCH_MIN,
            window=window,
            policy=self.policy,
        )
        self.scheduler.add_listener(self.judge_start)
        self.chats: list[Chat] = []
        self.tasks: list[asyncio.Task[None]] = []
        for _ in range(2 * CAP):
            self.tasks.append(self.loop.create_task(self.nightly()))
        self.passes()

    def judge_start(self, event: Event) -> None:
        """Batch calls start within what the law says at that very instant."""
        if isinstance(event, CallStarted) and event.kind == "batch":
            batch_running = self.scheduler.snapshot().batch_running
            assert batch_running <= self.policy.formula(self.policy.asked[-1][0])[0]

    async def nightly(self) -> None:
        while True:
            await self.scheduler.submit("batch", asyncio.sleep, 0.3 * self.window)

    async def chat(self, lasts: float, fails: bool, observed: bool) -> None:
        chat = Chat(self.loop.time(), observed)
        self.chats.append(chat)
        with contextlib.suppress(ZeroDivisionError):
            await self.scheduler.submit("interactive", self.answer, chat, lasts, fails, observe=observed)
        assert chat.ended == self.loop.time()

    async def answer(self, chat: Chat, lasts: float, fails: bool) -> None:
        await asyncio.sleep(lasts)
        chat.ended = self.loop.time()
        if fails:
            # A lower bound, which counts from the present P95 up; as long as it runs, the call is part of that.
            self.scheduler.snapshot()
            signals, _ = self.policy.asked[-1]
            chat.failed, chat.counts = True, chat.latency >= signals.p95
            # Within a slice the scheduler may still hold a failure against the P95 before the last one.
            others = [other for other in self.chats if other.failed and other.observed and other is not chat]
            chat.unsure = any(chat.ended - other.ended <= self.window / 100 + ROUNDING for other in others)
            raise ZeroDivisionError

    @rule(
        number=st.sampled_from([1, 1, 8]),
        share=st.one_of(st.floats(0.001, 0.2), st.floats(0.01, 3.0)),
        fails=st.sampled_from([False, False, False, True]),
        observed=st.sampled_from([True, True, True, False]),
    )
    def arrive(self, number: int, share: float, fails: bool, observed: bool) -> None:
        for _ in range(number):
            self.tasks.append(self.loop.create_task(self.chat(share * self.window, fails, observed)))
        self.passes()

    @rule(share=st.one_of(st.floats(0.001, 0.2), st.floats(0.001, 1.5)))
    def time_passes(self, share: float) -> None:
        self.loop.call_later(share * self.window, self.loop.stop)
        self.loop.run_forever()
        self.passes()

    def passes(self) -> None:
        """Let everything happen that does not take time."""
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    @invariant()
    def what_is_shown_is_what_the_twin_knows(self) -> None:
        now = self.loop.time()
        traffic = self.scheduler.snapshot().interactive
        signals, _ = self.policy.asked[-1]
        observed = [chat for chat in self.chats if chat.observed]
        ages = [now - chat.submitted for chat in observed if chat.ended > now]
        joined = [age for age in ages if age > self.policy.p95_threshold]
        if any(chat.unsure and chat.ended >= now - 2 * self.window for chat in observed):
            return

        assert math.isclose(signals.oldest_unfinished, max(ages, default=0.0), abs_tol=ROUNDING)
        assert (signals.rps, signals.sample_count) == (traffic.rps, traffic.sample_count)
        assert (signals.p50, signals.p99) == (traffic.p50, traffic.p99)
        assert any(
            close(traffic.rps * self.window, sum(chat.submitted >= since for chat in observed))
            and traffic.sample_count == len(samples) + len(joined)
            and close(traffic.p50, quantile(50, samples + joined))
            and close(traffic.p95, quantile(95, samples + joined))
            and close(traffic.p99, quantile(99, samples + joined))
            and (only_failures or close(signals.p95, quantile(95, samples + joined)))
            and (only_failures or close(signals.p95_finished, quantile(95, samples)))
            for since, samples, only_failures in self.windows(now)
        ), (traffic, signals)

    def windows(self, now: float) -> Iterator[tuple[float, list[float], bool]]:
        """What may be in the window: everything since one of the moments of its oldest slice.

        And whether it may hold failures without a success; then signals keep the P95 they had.
        """
        oldest = now - self.window - ROUNDING
        ended = [chat for chat in self.chats if chat.observed and chat.ended <= now]
        moments = {time for chat in self.chats for time in (chat.submitted, chat.ended)}
        borders = sorted(time for time in moments if oldest <= time <= oldest + self.window / 100 + 2 * ROUNDING)
        for since in [oldest, *(math.nextafter(time, math.inf) for time in borders)]:
            inside = [chat for chat in ended if chat.ended >= since]
            only_failures = bool(inside) and all(chat.failed for chat in inside)
            yield since, [chat.latency for chat in inside if chat.counts], only_failures

    @invariant()
    def the_limit_is_the_law_on_those_signals(self) -> None:
        snapshot = self.scheduler.snapshot()
        signals, decision = self.policy.asked[-1]

        assert (snapshot.batch_limit, snapshot.pressure) == self.policy.formula(signals)
        assert decision.limit == snapshot.batch_limit
        assert snapshot.batch_queued
        assert snapshot.running == CAP or snapshot.batch_running >= snapshot.batch_limit, (
            "a batch call may run and waits"
        )
        assert snapshot.listener_faults == 0
        counts = (snapshot.interactive_running, snapshot.interactive_queued, snapshot.batch_running)
        assert counts == (signals.interactive_running, signals.interactive_queued, signals.batch_running)
        assert all(decision.limit == self.policy.formula(signals)[0] for signals, decision in self.policy.asked)
        del self.policy.asked[:-1]
        self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.passes()
        self.loop.close()


TestSignals = SignalsMachine.TestCase
