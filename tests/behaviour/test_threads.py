"""Reading is safe from any thread and changes nothing; everything else belongs to the loop's thread and says so.

Promise 26.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import llm_traffic_scheduler
from llm_traffic_scheduler import (
    Decision,
    LimitPolicy,
    PressurePolicy,
    QueueTimeout,
    RunTimeout,
    SchedulerMisuse,
    SchedulerSnapshot,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import run_virtual
from tests.behaviour.doors import assert_whole, start
from tests.support import Recorder, hold, make_scheduler, noop, settle


def elsewhere(function: Callable[[], Any]) -> Any:
    """What `function()` returns in another thread, while this one waits; what it raises is raised here."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


@contextmanager
def quick_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


async def test_a_reader_in_another_thread_sees_what_the_loop_sees() -> None:
    scheduler = make_scheduler(interactive_rps_threshold=20.0)
    held = [hold(scheduler, kind, name=kind) for kind in ("interactive", "batch", "interactive", "batch")]
    await settle()
    await asyncio.sleep(1.5)

    assert elsewhere(scheduler.snapshot) == scheduler.snapshot()
    assert elsewhere(scheduler.calls) == scheduler.calls()
    assert elsewhere(scheduler.explain) == scheduler.explain()
    assert elsewhere(lambda: repr(scheduler)) == repr(scheduler)

    for call in held:
        call.release()
    await assert_whole(scheduler)


async def _traffic(scheduler: TrafficScheduler, seed: int, calls: int) -> None:
    """Calls of both kinds that end, fail, time out and are cancelled in an order that depends on `seed` alone."""
    chance = random.Random(seed)

    async def job(seconds: float, fails: bool) -> None:
        await asyncio.sleep(seconds)
        if fails:
            raise ConnectionError

    tasks: list[asyncio.Task[Any]] = []
    for number in range(calls):
        kind: Any = chance.choice(("interactive", "batch"))
        options: dict[str, Any] = {"label": str(number), "priority": chance.randrange(3)}
        if chance.random() < 0.3:
            options["queue_timeout"] = chance.random()
        if chance.random() < 0.3:
            options["run_timeout"] = 0.01 + chance.random() / 10
        seconds, fails = chance.random() / 10, chance.random() < 0.1
        tasks.append(start(scheduler.submit(kind, job, seconds, fails, **options)))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() / 50)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    known = (ConnectionError, asyncio.CancelledError, QueueTimeout, RunTimeout)
    assert [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, known)] == []


class Watched:
    """A law that notes each time it is told to change its state."""

    p95_threshold = 0.2

    def __init__(self) -> None:
        self.advances: list[tuple[float, Signals]] = []
        self._law = PressurePolicy(rps_threshold=30, p95_threshold=self.p95_threshold)

    def advance(self, now: float, signals: Signals) -> None:
        self.advances.append((now, signals))

    def decide(self, now: float, signals: Signals) -> Decision:
        return self._law.decide(now, signals)


def _busy_scheduler(law: LimitPolicy) -> TrafficScheduler:
    return TrafficScheduler(max_concurrency=8, window=1.0, policy=law)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_reading_at_any_instant_changes_nothing_of_what_follows(seed: int) -> None:
    events: list[list[str]] = []
    ends: list[SchedulerSnapshot] = []
    laws = [Watched(), Watched()]

    async def play(read: bool) -> None:
        scheduler = _busy_scheduler(laws[read])
        recorder = Recorder(scheduler)

        async def reader() -> None:
            while True:
                scheduler.snapshot()
                scheduler.explain()
                scheduler.calls()
                await asyncio.sleep(0.003)

        reading = start(reader() if read else asyncio.sleep(0))
        await _traffic(scheduler, seed, 200)
        reading.cancel()
        events.append([repr(event) for event in recorder.events])
        ends.append(scheduler.snapshot())

    run_virtual(play(read=False))
    run_virtual(play(read=True))

    assert len(events[0]) > 400
    assert events[0] == events[1]
    assert laws[0].advances == laws[1].advances
    assert ends[0] == ends[1]


def _look(scheduler: TrafficScheduler, name: str) -> None:
    """One look, and what must be so in every picture, whenever it was taken."""
    answer = getattr(scheduler, name)()
    if isinstance(answer, SchedulerSnapshot):
        assert answer.batch_min_concurrency <= answer.batch_limit <= answer.batch_max_concurrency
        assert 0 <= answer.running <= answer.max_concurrency
        assert min(answer.interactive_queued, answer.batch_queued, answer.overdue, answer.pressure) >= 0
        assert min(answer.oldest_interactive_running, answer.oldest_batch_running, answer.oldest_batch_wait) >= 0
    elif name == "calls":
        assert all(call.age >= call.waited >= 0 for call in answer)


@contextmanager
def between_lines(look: Callable[[], None], looks: Counter[str], failures: dict[str, str]) -> Iterator[None]:
    """Look between any two lines of the package's code, as a thread that reads may: eight times at each."""
    package = str(Path(llm_traffic_scheduler.__file__).parent)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(package):
            return None
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if event == "line" and looks[line] < 8:
            looks[line] += 1
            try:
                look()
            except Exception as error:
                failures.setdefault(line, repr(error))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", ["snapshot", "explain", "calls", "__repr__"])
@pytest.mark.slow
def test_a_look_between_any_two_lines_of_the_schedulers_code_succeeds_and_changes_nothing(name: str) -> None:
    looks: Counter[str] = Counter()
    failures: dict[str, str] = {}
    ends: list[SchedulerSnapshot] = []

    async def play(read: bool) -> None:
        scheduler = _busy_scheduler(Watched())
        with between_lines(lambda: _look(scheduler, name), looks, failures) if read else nullcontext():
            await _traffic(scheduler, 11, 60)
        ends.append(scheduler.snapshot())

    run_virtual(play(read=False))
    run_virtual(play(read=True))

    assert len(looks) > 300
    assert failures == {}
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["snapshot", "explain", "calls", "__repr__"])
@pytest.mark.slow
async def test_readers_in_other_threads_never_fail_and_never_disturb_the_loop(name: str) -> None:
    scheduler = _busy_scheduler(Watched())
    stop = threading.Event()
    errors: list[BaseException] = []
    looks = 0

    def read() -> None:
        nonlocal looks
        try:
            while not stop.is_set():
                getattr(scheduler, name)()
                looks += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    with quick_switching():
        for thread in threads:
            thread.start()
        await _traffic(scheduler, 7, 400)
        stop.set()
        for thread in threads:
            thread.join()

    assert errors == []
    assert looks > 0
    await assert_whole(scheduler)


_STEERING: dict[str, Callable[[TrafficScheduler], Any]] = {
    "configure": lambda scheduler: scheduler.configure(max_concurrency=9),
    "pause": lambda scheduler: scheduler.pause("batch"),
    "resume": lambda scheduler: scheduler.resume("batch"),
    "add_listener": lambda scheduler: scheduler.add_listener(print),
    "remove_listener": lambda scheduler: scheduler.remove_listener(print),
}


@pytest.mark.parametrize("name", list(_STEERING))
async def test_steering_from_another_thread_is_misuse_and_changes_nothing(name: str) -> None:
    scheduler = make_scheduler()
    await scheduler.submit("interactive", noop)
    before = scheduler.snapshot()

    with pytest.raises(SchedulerMisuse, match=r"outside the thread of the scheduler's event loop") as caught:
        elsewhere(lambda: _STEERING[name](scheduler))

    assert name in str(caught.value)
    assert "call_soon_threadsafe" in str(caught.value)
    assert scheduler.snapshot() == before
    await assert_whole(scheduler)


@pytest.mark.parametrize("name", list(_STEERING))
async def test_steering_from_another_running_loop_is_misuse(name: str) -> None:
    scheduler = make_scheduler()
    await scheduler.submit("interactive", noop)

    async def steer() -> None:
        _STEERING[name](scheduler)

    with pytest.raises(SchedulerMisuse, match=r"call_soon_threadsafe"):
        elsewhere(lambda: asyncio.run(steer()))


@pytest.mark.parametrize("name", ["configure", "pause", "resume", "add_listener"])
async def test_steering_through_call_soon_threadsafe_works_as_the_message_says(name: str) -> None:
    scheduler = make_scheduler()
    await scheduler.submit("interactive", noop)
    loop = asyncio.get_running_loop()

    elsewhere(lambda: loop.call_soon_threadsafe(_STEERING[name], scheduler))
    await settle()

    snapshot = scheduler.snapshot()
    assert snapshot.max_concurrency == (9 if name == "configure" else 2)
    assert snapshot.paused == ({"batch"} if name == "pause" else set())


@pytest.mark.parametrize("name", ["configure", "pause", "resume", "add_listener"])
async def test_a_scheduler_that_no_loop_uses_may_be_steered_from_any_thread(name: str) -> None:
    scheduler = make_scheduler()

    elsewhere(lambda: _STEERING[name](scheduler))

    scheduler.resume("batch")
    await scheduler.submit("batch", noop)


async def test_a_call_in_a_thread_keeps_its_slot_until_the_thread_is_done() -> None:
    scheduler = make_scheduler()
    started, stop = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        stop.wait(10)
        return "answer"

    task = start(scheduler.submit("batch", asyncio.to_thread, work))
    await asyncio.to_thread(started.wait, 10)
    assert scheduler.snapshot().batch_running == 1
    stop.set()

    assert await task == "answer"
    await assert_whole(scheduler)
