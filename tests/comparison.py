"""The questions of the README's comparison: each contestant is asked, in virtual time, to do what the row says.

A probe's docstring is its row. Where a row is about waiting, whoever never lets a call wait gets a `no`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Final

from llm_traffic_scheduler.testing import VirtualTimeLoop
from tests.contestants import CAP, Contestant, Kind
from tests.support import Held, now, settle

__all__ = ["IN_VIRTUAL_TIME"]


def _task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task whose failure is an answer, not an accident."""
    task = asyncio.create_task(coroutine)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def hold(limiter: Contestant, kind: Kind, *, within: float | None = None) -> Held:
    """As `tests.support.hold`, for any contestant."""
    held = Held(kind, None)
    call = limiter.call(kind, held.run) if within is None else limiter.call_within(within, kind, held.run)
    held.task = _task(call)
    return held


async def crowd(limiter: Contestant, kind: Kind, size: int) -> list[Held]:
    held = [hold(limiter, kind) for _ in range(size)]
    await settle()
    return held


async def release(*calls: Held) -> None:
    for held in calls:
        held.release()
    await settle()


def running(calls: list[Held]) -> int:
    return sum(held.started and not held.task.done() for held in calls)


async def fits(limiter: Contestant) -> int:
    """How many calls run at once when more than enough are there; afterwards none does."""
    calls = await crowd(limiter, "interactive", 2 * CAP)
    found = running(calls)
    await release(*calls)
    return found


class Feed:
    """Callers who come back as soon as their call has ended."""

    def __init__(self, limiter: Contestant, kind: Kind, *, callers: int, seconds: float) -> None:
        self._limiter, self._kind, self._seconds = limiter, kind, seconds
        self._running = self._most = 0
        self._callers = [_task(self._caller()) for _ in range(callers)]

    async def _caller(self) -> None:
        while True:
            await self._limiter.call(self._kind, self._work)

    async def _work(self) -> None:
        self._running += 1
        self._most = max(self._most, self._running)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self._running -= 1

    async def most(self, seconds: float) -> int:
        """The most calls that run at once within the next `seconds`."""
        self._most = self._running
        await asyncio.sleep(seconds)
        return self._most

    def stop(self) -> None:
        for caller in self._callers:
            caller.cancel()


async def never_above_the_cap(contestant: type[Contestant]) -> bool:
    """never more calls at once than the cap"""
    limiter = contestant(CAP)
    calls = [hold(limiter, kind) for _ in range(CAP) for kind in ("interactive", "batch", "batch")]
    most = 0
    for held in calls:
        await settle()
        most = max(most, running(calls))
        held.release()
    return most <= CAP


async def interactive_overtakes(contestant: type[Contestant]) -> bool:
    """an interactive call overtakes batch calls that wait"""
    limiter = contestant(CAP)
    first, *_ = await crowd(limiter, "interactive", CAP)
    batch = await crowd(limiter, "batch", 3)
    person = hold(limiter, "interactive")
    await settle()
    had_to_wait = not person.started
    await release(first)
    return had_to_wait and person.started and running(batch) == 0


async def a_slot_is_left(contestant: type[Contestant]) -> bool:
    """a flood of batch calls leaves a slot for the next interactive call"""
    limiter = contestant(CAP)
    batch = await crowd(limiter, "batch", 3 * CAP)
    person = hold(limiter, "interactive")
    await settle()
    return person.started and CAP // 2 <= running(batch) < CAP


async def batch_gives_way(contestant: type[Contestant]) -> bool:
    """batch gives way while interactive calls are slow, and comes back afterwards"""
    limiter = contestant(CAP)
    batch = Feed(limiter, "batch", callers=3 * CAP, seconds=1.0)
    before = await batch.most(10)
    people = Feed(limiter, "interactive", callers=1, seconds=0.8)
    await asyncio.sleep(10)
    meanwhile = await batch.most(10)
    people.stop()
    await asyncio.sleep(20)
    afterwards = await batch.most(10)
    # CAP - 1 is what one interactive call leaves in any case.
    return meanwhile < min(before, CAP - 1) and afterwards == before


async def batch_is_not_starved(contestant: type[Contestant]) -> bool:
    """a flood of interactive calls never starves batch"""
    limiter = contestant(CAP)
    Feed(limiter, "interactive", callers=3 * CAP, seconds=1.0)
    await asyncio.sleep(10)
    batch = hold(limiter, "batch")
    await asyncio.sleep(60)
    return batch.started


async def cancelled_waiters_leave(contestant: type[Contestant]) -> bool:
    """a cancelled waiter's function never runs, and the next in line moves up"""
    limiter = contestant(CAP)
    calls = await crowd(limiter, "interactive", CAP + 2)
    first, leaver, stayer = calls[0], *calls[CAP:]
    leaver.cancel()
    await settle()
    await release(first)
    moved_up = stayer.started
    await release(*calls)
    return moved_up and not leaver.started and leaver.task.cancelled() and await fits(limiter) == CAP


async def racing_cancels_lose_nothing(contestant: type[Contestant]) -> bool:
    """a cancel that races with the hand-over of a slot loses none"""
    limiter = contestant(CAP)
    for passes in range(5):
        for cancel_first in (True, False):
            calls = await crowd(limiter, "interactive", CAP + 2)
            steps = [calls[CAP].cancel, calls[0].release]
            for step in steps if cancel_first else reversed(steps):
                step()
                await settle(passes)
            await settle()
            await release(*calls)
            if await fits(limiter) != CAP:
                return False
    return True


async def waits_are_bounded(contestant: type[Contestant]) -> bool:
    """the wait for a slot can be bounded, call by call, and the run is not"""
    limiter = contestant(CAP)
    first, *others = await crowd(limiter, "interactive", CAP)
    begin = now()
    lucky = hold(limiter, "batch", within=1.0)
    await settle()
    unlucky = hold(limiter, "interactive", within=0.5)
    await asyncio.wait([unlucky.task])
    refused = isinstance(unlucky.task.exception(), TimeoutError) and not unlucky.started and now() == begin + 0.5
    await release(first, *others)
    await asyncio.sleep(10)
    in_time = lucky.started and not lucky.task.done()
    await release(lucky)
    return refused and in_time and await fits(limiter) == CAP


async def nothing_starts_late(contestant: type[Contestant]) -> bool:
    """no call starts after that bound, not even when the call before it blocked the event loop"""
    limiter = contestant(CAP)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    clock = loop._clock

    async def parse_a_long_answer() -> None:
        await asyncio.sleep(0.5)
        clock.now += 2.0  # what the clock says after two seconds without an await

    others = await crowd(limiter, "interactive", CAP - 1)
    blocker = _task(limiter.call("interactive", parse_a_long_answer))
    await settle()
    late = hold(limiter, "interactive", within=1.0)
    await blocker
    await settle()
    refused = late.task.done() and isinstance(late.task.exception(), TimeoutError)
    await release(late, *others)
    return refused and not late.started and await fits(limiter) == CAP


async def queues_are_bounded(contestant: type[Contestant]) -> bool:
    """the queue can be bounded, and a typed refusal says how many wait"""
    limiter = contestant(CAP, max_queued=2)
    calls = await crowd(limiter, "interactive", CAP + 3)
    refusal = calls[-1].task.exception() if calls[-1].task.done() else None
    typed = isinstance(refusal, Exception) and type(refusal) not in {Exception, RuntimeError, ValueError}
    return typed and not calls[-1].started and running(calls) == CAP and limiter.waiting(refusal) == 2


async def limits_move(contestant: type[Contestant]) -> bool:
    """the limit can be lowered and raised while calls run, and never lets too many in"""
    limiter = contestant(CAP)
    calls = await crowd(limiter, "interactive", 4 * CAP)
    for _ in range(5):
        limiter.resize(CAP // 2)
        limiter.resize(CAP)
    await settle()
    same = running(calls) == CAP
    limiter.resize(CAP // 2)
    await release(calls[0])
    lowered = running(calls) == CAP - 1 and not calls[CAP].started
    await release(*calls[1:CAP])
    shrunk = running(calls) == CAP // 2
    limiter.resize(2 * CAP)
    await settle()
    return same and lowered and shrunk and running(calls) == 2 * CAP


async def calls_stay_in_their_task(contestant: type[Contestant]) -> bool:
    """a call runs in its caller's own task: context variables, cancellation, stack"""
    limiter = contestant(CAP)
    request: ContextVar[str] = ContextVar("request")
    seen: list[object] = []

    async def work() -> None:
        seen.extend([request.get(None), asyncio.current_task(), "the_caller" in _names_on_the_stack()])
        request.set("from the call")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def the_caller() -> None:
        request.set("from the caller")
        try:
            await limiter.call("batch", work)
        finally:
            seen.append(request.get())

    caller = _task(the_caller())
    await asyncio.sleep(1)
    caller.cancel()
    await settle()
    return seen == ["from the caller", caller, True, "cancelled", "from the call"]


def _names_on_the_stack() -> set[str]:
    return {frame.name for frame in traceback.extract_stack()}


async def closing_is_graceful(contestant: type[Contestant]) -> bool:
    """closing lets running calls end, refuses the others, and reports"""
    limiter = contestant(CAP)
    calls = await crowd(limiter, "interactive", CAP)
    queued = await crowd(limiter, "batch", 2)
    closing = _task(limiter.close())
    await settle()
    newcomer = hold(limiter, "interactive")
    await asyncio.sleep(10)
    patient = not closing.done() and running(calls) == CAP
    await release(*calls)
    turned_away = [held.task.done() and not held.started for held in (*queued, newcomer)]
    return patient and all(turned_away) and await closing == (CAP, 2)


IN_VIRTUAL_TIME: Final = (
    never_above_the_cap,
    interactive_overtakes,
    a_slot_is_left,
    batch_gives_way,
    batch_is_not_starved,
    cancelled_waiters_leave,
    racing_cancels_lose_nothing,
    waits_are_bounded,
    nothing_starts_late,
    queues_are_bounded,
    limits_move,
    calls_stay_in_their_task,
    closing_is_graceful,
)
