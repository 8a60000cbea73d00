"""Small words that the behaviour tests share: hold a slot, let the loop run, listen, count timers.

`from tests.support import hold, make_scheduler, settle`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from llm_traffic_scheduler import (
    CallFinished,
    CallQueued,
    CallRejected,
    CallStarted,
    Event,
    FixedPolicy,
    KindTotals,
    LimitChanged,
    SchedulerError,
    Signals,
    TrafficScheduler,
)
from llm_traffic_scheduler.testing import VirtualTimeLoop

__all__ = [
    "Held",
    "Law",
    "Recorder",
    "account",
    "armed_timers",
    "cancel_all_soon",
    "hold",
    "make_scheduler",
    "noop",
    "now",
    "other_tasks",
    "settle",
]

Answer: TypeAlias = Callable[[float, Signals], Any]

EventT = TypeVar("EventT", CallFinished, CallQueued, CallRejected, CallStarted, LimitChanged)

# Whatever follows from a change is done within three passes: set_result, the waiter's wake-up, its task's end.
_PASSES = 10


def make_scheduler(*, max_concurrency: int = 2, **settings: Any) -> TrafficScheduler:
    """A scheduler of two slots, one of them open to batch, unless the test says otherwise.

    Its batch limit is all that `batch_max_concurrency` allows, unless the test brings a law.
    """
    if not settings.keys() & {"policy", "interactive_rps_threshold", "interactive_p95_threshold"}:
        settings["policy"] = FixedPolicy(2**63 - 1)
    return TrafficScheduler(max_concurrency=max_concurrency, **settings)


async def noop() -> None:
    """Do nothing, and return at once."""


async def settle(passes: int = _PASSES) -> None:
    """Let the loop run until nothing more happens by itself; virtual time stands still."""
    for _ in range(passes):
        await asyncio.sleep(0)


def now() -> float:
    """The running loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


class Held:
    """A call that ends when the test says so.

    `started` once its function has been called; `task` is its caller's, to await or to cancel.
    """

    def __init__(self, name: str, log: list[str] | None) -> None:
        self.name = name
        self.started = False
        self.task: asyncio.Task[str]
        self._log = log
        self._gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: BaseException | None = None

    async def run(self) -> str:
        """The call's own code: waits for `release` or `fail`."""
        self.started = True
        if self._log is not None:
            self._log.append(self.name)
        return await self._gate

    def release(self) -> None:
        """Let the call end and return its name; without effect if its run was cancelled."""
        if not self._gate.done():
            self._gate.set_result(self.name)

    def fail(self, error: BaseException) -> None:
        """Let the call raise `error`."""
        self._failure = error
        self._gate.set_exception(error)

    def cancel(self) -> None:
        """Cancel the caller's task."""
        self.task.cancel()

    def ended(self, task: asyncio.Task[str]) -> None:
        """Tell the loop of an error that no test has asked for; refusals and cancels are the tests' daily bread."""
        error = None if task.cancelled() else task.exception()
        if error is not None and error is not self._failure and not isinstance(error, SchedulerError):
            task.get_loop().call_exception_handler({"message": f"{self} broke", "exception": error, "task": task})

    def __repr__(self) -> str:
        return f"<Held {self.name!r} {'started' if self.started else 'not started'}>"


def hold(
    scheduler: TrafficScheduler,
    kind: Any = "interactive",
    *,
    name: str = "",
    log: list[str] | None = None,
    **options: Any,
) -> Held:
    """Submit a call that keeps its slot until `release()`; it asks for its slot in the loop's next pass.

    `log` gets its name when it starts. `options` are those of `submit`.
    """
    held = Held(name or kind, log)
    held.task = asyncio.create_task(scheduler.submit(kind, held.run, **options), name=held.name)
    held.task.add_done_callback(held.ended)
    return held


class Law:
    """A policy made of one function: `Law(lambda now, signals: Decision(3))`.

    `attributes` are the optional ones of `LimitPolicy`: `reads`, `p95_threshold`.
    """

    def __init__(self, answer: Answer, advance: Answer | None = None, **attributes: object) -> None:
        self._answer = answer
        self._advance = advance
        for name, value in attributes.items():
            setattr(self, name, value)

    def advance(self, now: float, signals: Signals) -> None:
        if self._advance is not None:
            self._advance(now, signals)

    def decide(self, now: float, signals: Signals) -> Any:
        return self._answer(now, signals)


class Recorder:
    """A listener that keeps every event.

    `recorder = Recorder(scheduler)` adds it.
    """

    def __init__(self, scheduler: TrafficScheduler | None = None) -> None:
        self.events: list[Event] = []
        if scheduler is not None:
            scheduler.add_listener(self)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, type_: type[EventT]) -> list[EventT]:
        """The events of one type, in order."""
        return [event for event in self.events if isinstance(event, type_)]

    @property
    def names(self) -> list[str]:
        """Type, kind and label of each event, in order: "CallStarted interactive a"."""
        return [
            "LimitChanged" if isinstance(event, LimitChanged) else f"{type(event).__name__} {event.kind} {event.label}"
            for event in self.events
        ]


def armed_timers() -> list[asyncio.TimerHandle]:
    """Timers that the running virtual loop still holds, cancelled ones not counted."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return [timer for _, _, timer in loop._clock.timers if not timer.cancelled()]


def other_tasks() -> set[asyncio.Task[Any]]:
    """Tasks of the running loop beside the test's own."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def cancel_all_soon() -> None:
    """Cancel every task but the test's own in the loop's next pass, after what is due there now."""
    me = asyncio.current_task()
    asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in asyncio.all_tasks() if task is not me])


def account(scheduler: TrafficScheduler, kind: str) -> KindTotals:
    """The totals of one kind, after asserting that they add up."""
    snapshot = scheduler.snapshot()
    totals = snapshot.totals[kind]
    present = (
        (snapshot.interactive_queued + snapshot.interactive_running)
        if kind == "interactive"
        else (snapshot.batch_queued + snapshot.batch_running)
    )
    ended = totals.completed + totals.failed + totals.cancelled + totals.timed_out + totals.rejected
    assert totals.submitted == ended + present, snapshot
    return totals
